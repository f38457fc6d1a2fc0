"""Trials in separate processes of what may fail: a package that raises, a library that crashes, a driver that hangs.

Started as ``python -c``, with `CHILD`, so that nothing of the parent's is imported; answers are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from anatune.resources import usable_cores

CHILD = """\
import json, os, sys
sys.path[:] = json.loads(sys.argv[1])
from anatune.doctor.trials import answer
answer(sys.argv[2:])
"""
Told = dict[str, Any]
"""The answers of a trial by key, as JSON values."""
IS_TRIED = "is tried"
"""The answer for a word before it is tried, which remains if the process dies."""
_MOST_SECONDS = 60.0
"""Time limit of a trial; importing TVM takes 3 s of CPU time, and several times as long on a busy machine."""


def run_trials(trials: Mapping[str, Sequence[str]], most_seconds: float = _MOST_SECONDS) -> dict[str, Told]:
    """Run trials in parallel, as many as there are cores, and return their answers.

    Parameters
    ----------
    trials : mapping
        Name -> words of the trial: the name of a function in `TRIALS`, or modules to import.
    most_seconds : float
        Time limit of one trial, s.

    Returns
    -------
    dict
        Name -> key -> answer; for a module None if it can be imported, or the reason why not. The key "died" says how
        the process ended if it did not end normally.
    """
    with ThreadPoolExecutor(max(1, min(len(trials), usable_cores()))) as pool:
        answers = pool.map(lambda words: _run(words, most_seconds), trials.values())
        return dict(zip(trials, answers, strict=True))


def _run(words: Sequence[str], most_seconds: float) -> Told:
    command = [sys.executable, "-c", CHILD, json.dumps(sys.path), *words]
    try:
        done = subprocess.run(command, capture_output=True, timeout=most_seconds, stdin=subprocess.DEVNULL, check=False)
        out, ended = done.stdout, _ending(done.returncode)
    except subprocess.TimeoutExpired as error:
        out, ended = error.stdout or b"", f"it took longer than {most_seconds:g} s"
    except OSError as error:
        out, ended = b"", f"Python cannot be started: {error.strerror}"
    told: Told = {}
    for line in out.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # the process was ended in the middle of a line
            key, value = json.loads(line)
            told[key] = value
    if ended:
        told["died"] = ended
    return told


def _ending(status: int) -> str:
    """Return how a process ended; "" if it ended normally."""
    if status >= 0:
        return f"it ended with status {status}" if status else ""
    try:
        return f"it died of {signal.Signals(-status).name}"
    except ValueError:
        return f"it died of signal {-status}"


def answer(words: Sequence[str]) -> None:
    """Do a trial and write its answers to standard output, separate from output of the packages."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(key: str, value: object) -> None:
        stream.write(json.dumps([key, value]) + "\n")
        stream.flush()

    for word in words:
        try:
            tell(word, IS_TRIED)
            reason = None
            if word in TRIALS:
                reason = TRIALS[word](tell)
            else:
                import_module(word)
            tell(word, reason)
        except BaseException as error:  # noqa: BLE001 - whatever a package raises is what is wanted
            tell(word, _reason(error))
    stream.close()
    os._exit(0)  # skip threads and exit functions of packages


def _reason(error: BaseException) -> str:
    """Return an error in one line, with the name of its class only if that is informative."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    kind = "" if type(error).__name__ in ("ImportError", "ModuleNotFoundError") else f"{type(error).__name__}: "
    return f"{kind}{lines[0]}"[:200].rstrip(": ") or type(error).__name__


def _planning(tell: Callable[[str, object], None]) -> None:
    """Read the specs, make a space, compile and run a function, as a plan does, without compiling the model."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NUMBA_CACHE_DIR"] = folder  # leave the user's cache unchanged, which another check examines
        _plan_a_little(tell)


def _plan_a_little(tell: Callable[[str, object], None]) -> None:
    import anatune
    from anatune.core.hardware.files import list_hardware
    from anatune.errors import DeviceError, SpecError
    from anatune.measure.cpu.detect import detect_cpu

    try:
        tell("specs", len(list_hardware()))
    except SpecError as error:
        tell("specs", str(error))
    tell("points", anatune.space(anatune.matmul(64, 64, 64), "rtx3090").size)
    compiled = import_module("numba").njit(lambda number: number + 1)
    tell("compiled", compiled(1) == 2)
    try:
        cpu_spec = detect_cpu()
        tell("cpu", f"{cpu_spec.model} ({cpu_spec.arch}, {cpu_spec.compute.isa})")
    except DeviceError as error:
        tell("cpu", None)
        tell("no cpu", str(error))


def _tvm(tell: Callable[[str, object], None]) -> str | None:
    """Return why TVM cannot generate code for CPUs; None if it can."""
    tvm = import_module("tvm")
    llvm_version = tvm.get_global_func("target.build.llvm", allow_missing=True)
    return None if llvm_version is not None else "this TVM was built without LLVM, which CPU kernels need"


def _compiler(tell: Callable[[str, object], None]) -> None:
    """Load NVRTC and answer its version and architectures."""
    from anatune.codegen.cuda.nvrtc import compiler_version, known_archs

    tell("version", compiler_version())
    archs = known_archs()
    tell("archs", f"{archs[0]} to {archs[-1]}" if archs else "none")


def _gpu(tell: Callable[[str, object], None]) -> str | None:
    """Ask NVIDIA's driver, or HIP for AMD GPUs, directly for its version and devices."""
    import ctypes

    def names(ask: Callable[..., int], many: int) -> list[str]:
        texts = [ctypes.create_string_buffer(256) for _ in range(many)]
        for index, text in enumerate(texts):
            ask(text, len(text), index)
        return [text.value.decode(errors="replace") for text in texts]

    version, count = ctypes.c_int(), ctypes.c_int()
    with contextlib.suppress(OSError):
        hip = ctypes.CDLL("libamdhip64.so")
        if not hip.hipInit(0) and not hip.hipGetDeviceCount(ctypes.byref(count)):
            tell("amd", names(hip.hipDeviceGetName, count.value))
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"no NVIDIA driver ({name} cannot be loaded)"
    if status := driver.cuInit(0):
        return f"the NVIDIA driver cannot be started (cuInit: error {status})"
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGetCount(ctypes.byref(count))
    tell("driver", f"{version.value // 1000}.{version.value % 1000 // 10}")
    tell("devices", names(driver.cuDeviceGetName, count.value))
    return None


TRIALS: dict[str, Callable[[Callable[[str, object], None]], str | None]] = {
    "*planning": _planning,
    "*tvm": _tvm,
    "*compiler": _compiler,
    "*gpu": _gpu,
}
"""Word -> function of a trial, which returns the problem, or None."""
