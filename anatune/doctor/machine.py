"""Checks of this machine: cores, clocks, counters, compilers, GPUs, shell completion."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from anatune.doctor.findings import Finding
from anatune.doctor.packages import version_of
from anatune.doctor.trials import Told
from anatune.requirements import pip_line
from anatune.resources import allowed_cores, cpu_quota

_MACHINE = "This machine"
_COMPILERS = "Compilers and GPUs"
_TUNE = "tune, hw calibrate"


def machine_findings(told: Told, root: str | Path = "/") -> Iterator[Finding]:
    """Yield findings about the CPU, its cores, clocks and counters.

    Parameters
    ----------
    told : mapping
        Answers of the trial ``*planning``, which detects the CPU.
    root : str or path
        Folder that contains ``/proc`` and ``/sys``; another one in tests.
    """
    base = Path(root)
    if told.get("no cpu"):
        yield Finding(_MACHINE, "warning", "CPU", f"cannot be detected: {told['no cpu']}", "--hw host")
    elif told.get("cpu"):
        yield Finding(_MACHINE, "ok", "CPU", str(told["cpu"]))
    yield _cores(base)
    yield from _clocks(base / "sys/devices/system/cpu")
    yield from _counters(base)


def _cores(base: Path) -> Finding:
    """Return the finding about the logical processors that this process may use."""
    there = os.cpu_count() or 1
    usable, quota = allowed_cores(), cpu_quota(base)
    told = f"{usable} of {there} logical processors can be used, {platform.system()} {platform.machine()}"
    if quota is not None and quota < usable:
        text = f"{told}, with a CPU quota of {quota:g} of them: measured times are wrong when the quota is used up"
        return Finding(_MACHINE, "warning", "cores", text, _TUNE, "raise the container's CPU quota")
    if usable == 1 and there > 1:
        text = f"{told}: builds and measurements take turns on one core"
        return Finding(_MACHINE, "warning", "cores", text, _TUNE, "widen the affinity (taskset)")
    return Finding(_MACHINE, "ok", "cores", told)


def _clocks(folder: Path) -> Iterator[Finding]:
    """Yield findings about the frequency governor and turbo clocks, as far as the system reports them."""
    governors = sorted({_text(path) for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    if governors and set(governors) != {"performance"}:
        text = f"frequency governor {', '.join(governors)}: the first samples of a kernel run at a lower clock"
        yield Finding(_MACHINE, "warning", "clock", text, _TUNE, "sudo cpupower frequency-set -g performance")
    elif governors:
        yield Finding(_MACHINE, "ok", "clock", "frequency governor performance")
    else:
        yield Finding(_MACHINE, "note", "clock", "the system does not report its frequency governor")
    turbo = {"0": "on", "1": "off"}.get(_text(folder / "intel_pstate/no_turbo"), "")
    turbo = turbo or {"0": "off", "1": "on"}.get(_text(folder / "cpufreq/boost"), "")
    if turbo:
        judged = "times are measured relative to a reference kernel" if turbo == "on" else "clocks do not vary"
        yield Finding(_MACHINE, "note", "turbo", f"{turbo}: {judged}")


def _counters(base: Path) -> Iterator[Finding]:
    """Yield findings about counters of hardware events and energy, which anatune does not need."""
    if not sys.platform.startswith("linux"):
        return
    level = _text(base / "proc/sys/kernel/perf_event_paranoid")
    if not any((base / "sys/bus/event_source/devices").glob("cpu*")):
        text = "none (usual on virtual machines); anatune does not need them, but perf stat does"
    else:
        text = f"available, perf_event_paranoid {level or 'unknown'}; anatune does not need them"
    yield Finding(_MACHINE, "note", "performance counters", text)
    from anatune.measure.energy import cpu_counter

    folder = base / "sys/class/powercap"
    counters = sorted(folder.glob("intel-rapl:?/energy_uj"))
    if not counters:
        yield Finding(_MACHINE, "note", "energy counter", "none on this CPU: records contain no energy")
    elif cpu_counter(folder) is not None:
        yield Finding(_MACHINE, "ok", "energy counter", "RAPL can be read")
    else:
        text, fix = (
            "RAPL is there, but this user may not read it: records contain no energy",
            f"sudo chmod a+r {' '.join(map(str, counters))}",
        )
        yield Finding(_MACHINE, "note", "energy counter", text, "tune", fix)


def compiler_findings() -> Iterator[Finding]:
    """Yield findings about C and C++ compilers, binutils and cross compilers, which are asked for their versions."""
    yield _program(
        "C compiler", ("cc", "gcc", "clang"), "tune, compile, export", "apt install gcc, or your system's package"
    )
    compiler_names = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    yield _program(
        "C++ compiler", compiler_names, "anatune.verify of GPU kernels", "apt install g++, or your system's package"
    )
    yield _program("binutils", ("objcopy", "llvm-objcopy"), "export", "apt install binutils, or your system's package")
    other = "aarch64" if platform.machine() in ("x86_64", "AMD64") else "x86_64"
    name, package = f"{other}-linux-gnu-gcc", f"apt install gcc-{other.replace('_', '-')}-linux-gnu"
    yield _program("cross compiler", (name,), f"export for {other}, tune on boards", package)


def _program(subject: str, names: tuple[str, ...], serves: str, fix: str) -> Finding:
    for name in filter(None, names):
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run(
                [path, "--version"], capture_output=True, text=True, errors="replace", timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Finding(_COMPILERS, "broken", subject, f"{path} cannot be run ({type(error).__name__})", serves, fix)
        line = next(iter(done.stdout.splitlines()), "")
        if done.returncode != 0:
            return Finding(_COMPILERS, "broken", subject, f"{path} --version ends with {done.returncode}", serves, fix)
        return Finding(_COMPILERS, "ok", subject, f"{line or name} ({path})")
    wanted = ", ".join(filter(None, names))
    return Finding(_COMPILERS, "missing", subject, f"none found ({wanted})", serves, fix)


def gpu_findings(told: Told, compiler: Told | None) -> Iterator[Finding]:
    """Yield findings from the trials of the CUDA compiler and of the GPU drivers.

    Parameters
    ----------
    told, compiler : mapping
        Answers of the trials ``*gpu`` and ``*compiler``; None if the latter was not made because the extra is missing.
    """
    if compiler is not None:
        reason = compiler.get("died") or compiler.get("*compiler")
        if reason:
            serves, fix = "plan --compile, GPU kernels", pip_line("cuda")
            yield Finding(_COMPILERS, "broken", "NVRTC", str(reason).partition("; install")[0], serves, fix)
        else:
            text = f"{compiler.get('version')} compiles for {compiler.get('archs')}"
            yield Finding(_COMPILERS, "ok", "NVRTC", text)
    if amd := told.get("amd"):
        yield Finding(_COMPILERS, "ok", "AMD GPU", f"{_count_names(amd)}, through HIP")
    reason, devices = told.get("died") or told.get("*gpu"), told.get("devices") or []
    if reason:
        text = f"none: {reason}; planning and compiling kernels need no GPU"
        yield Finding(_COMPILERS, "note", "GPU", text, "tune --hw host_gpu")
    elif not devices:
        yield Finding(
            _COMPILERS, "note", "GPU", f"the driver (CUDA {told.get('driver')}) finds none", "tune --hw host_gpu"
        )
    else:
        yield Finding(_COMPILERS, "ok", "GPU", f"{_count_names(devices)}, driver for CUDA {told.get('driver')}")
        if version_of("nvidia-ml-py") is None:
            text = "nvidia-ml-py is not installed: sessions do not measure the energy of GPUs"
            yield Finding(_COMPILERS, "note", "NVML", text, "tune --hw host_gpu", "pip install nvidia-ml-py")


def _count_names(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _text(path: Path) -> str:
    """Return the text of a small system file; "" if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


_FILES = {
    "bash": (".bashrc", 'add to ~/.bashrc: eval "$(anatune completion bash)"'),
    "zsh": (".zshrc", 'add to ~/.zshrc, after compinit: eval "$(anatune completion zsh)"'),
    "fish": (
        ".config/fish/completions/anatune.fish",
        "anatune completion fish > ~/.config/fish/completions/anatune.fish",
    ),
}
"""Shell -> its start-up file below the home folder, and how to add completion to it."""


def shell_findings() -> Iterator[Finding]:
    """Yield a finding about completion in the shell that SHELL names."""
    shell = PurePosixPath(os.environ.get("SHELL", "")).name
    if shell not in _FILES:
        return
    name, fix = _FILES[shell]
    try:
        path = Path.home() / name
        wanted = "anatune" if shell == "fish" else "anatune completion"
        is_set_up = wanted in path.read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        is_set_up = False
    if is_set_up:
        yield Finding("This machine", "ok", "completion", f"{shell} completes anatune commands (~/{name})")
    else:
        yield Finding("This machine", "note", "completion", f"{shell} does not complete anatune commands", "", fix)
