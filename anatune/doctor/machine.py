"""What of the present machine matters to plans and measurements: cores, clocks, counters, compilers, GPUs, the shell.

A shell completes anatune's words where its start-up file has what `anatune completion` prints.
"""

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
    """Yield what is known of the CPU, its cores, clocks and counters.

    Parameters
    ----------
    told : mapping
        Answers of the trial ``*planning``, which detects the CPU.
    root : str or path
        Where ``/proc`` and ``/sys`` are; another folder in tests.
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
    """Return how many logical processors this process may use, of how many, and what limits it besides."""
    there = os.cpu_count() or 1
    usable, quota = allowed_cores(), cpu_quota(base)
    told = f"{usable} of {there} logical processors may be used, {platform.system()} {platform.machine()}"
    if quota is not None and quota < usable:
        text = f"{told}, with a quota of {quota:g} of them: measured times jump where it is used up"
        return Finding(_MACHINE, "warning", "cores", text, _TUNE, "raise the container's CPU quota")
    if usable == 1 and there > 1:
        text = f"{told}: builds and measurements take turns on one core"
        return Finding(_MACHINE, "warning", "cores", text, _TUNE, "widen the affinity (taskset)")
    return Finding(_MACHINE, "ok", "cores", told)


def _clocks(folder: Path) -> Iterator[Finding]:
    """Yield the frequency governor and whether the clock may rise above its nominal one, where the system tells."""
    governors = sorted({_text(path) for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")} - {""})
    if governors and set(governors) != {"performance"}:
        text = f"frequency governor {', '.join(governors)}: the first samples of a kernel run at a lower clock"
        yield Finding(_MACHINE, "warning", "clock", text, _TUNE, "sudo cpupower frequency-set -g performance")
    elif governors:
        yield Finding(_MACHINE, "ok", "clock", "frequency governor performance")
    else:
        yield Finding(_MACHINE, "note", "clock", "the system does not tell its frequency governor")
    turbo = {"0": "on", "1": "off"}.get(_text(folder / "intel_pstate/no_turbo"), "")
    turbo = turbo or {"0": "off", "1": "on"}.get(_text(folder / "cpufreq/boost"), "")
    if turbo:
        judged = "times are taken relative to a reference kernel beside them" if turbo == "on" else "clocks stay put"
        yield Finding(_MACHINE, "note", "turbo", f"{turbo}: {judged}")


def _counters(base: Path) -> Iterator[Finding]:
    """Yield whether counters of hardware events and of energy can be read; anatune needs neither."""
    if not sys.platform.startswith("linux"):
        return
    level = _text(base / "proc/sys/kernel/perf_event_paranoid")
    if not any((base / "sys/bus/event_source/devices").glob("cpu*")):
        text = "none (usual on virtual machines); anatune needs none, perf stat would"
    else:
        text = f"there, perf_event_paranoid {level or 'unknown'}; anatune needs none"
    yield Finding(_MACHINE, "note", "performance counters", text)
    from anatune.measure.energy import cpu_counter

    folder = base / "sys/class/powercap"
    counters = sorted(folder.glob("intel-rapl:?/energy_uj"))
    if not counters:
        yield Finding(_MACHINE, "note", "energy counter", "none that the CPU shows: records are without joules")
    elif cpu_counter(folder) is not None:
        yield Finding(_MACHINE, "ok", "energy counter", "RAPL can be read")
    else:
        text, fix = (
            "RAPL is there and may not be read: records are without joules",
            f"sudo chmod a+r {' '.join(map(str, counters))}",
        )
        yield Finding(_MACHINE, "note", "energy counter", text, "tune", fix)


def compiler_findings() -> Iterator[Finding]:
    """Yield the C and C++ compilers, binutils, and compilers for other machines, by asking for their versions."""
    yield _program(
        "C compiler", ("cc", "gcc", "clang"), "tune, compile, export", "apt install gcc, or your system's package"
    )
    asked = (os.environ.get("CXX", ""), "g++", "clang++", "c++")
    yield _program(
        "C++ compiler", asked, "anatune.verify of GPUs' kernels", "apt install g++, or your system's package"
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
    """Yield what the trials of the compiler of CUDA C and of the drivers told.

    Parameters
    ----------
    told, compiler : mapping
        Answers of the trials ``*gpu`` and ``*compiler``; None: that one was not made, because the extra is missing.
    """
    if compiler is not None:
        reason = compiler.get("died") or compiler.get("*compiler")
        if reason:
            serves, fix = "plan --compile, kernels of GPUs", pip_line("cuda")
            yield Finding(_COMPILERS, "broken", "NVRTC", str(reason).partition("; install")[0], serves, fix)
        else:
            text = f"{compiler.get('version')} compiles for {compiler.get('archs')}"
            yield Finding(_COMPILERS, "ok", "NVRTC", text)
    if amd := told.get("amd"):
        yield Finding(_COMPILERS, "ok", "GPU of AMD's", f"{_counted(amd)}, through HIP")
    reason, devices = told.get("died") or told.get("*gpu"), told.get("devices") or []
    if reason:
        text = f"none: {reason}; plans, CUDA C and cubins need none"
        yield Finding(_COMPILERS, "note", "GPU", text, "tune --hw host_gpu")
    elif not devices:
        yield Finding(
            _COMPILERS, "note", "GPU", f"the driver (CUDA {told.get('driver')}) shows none", "tune --hw host_gpu"
        )
    else:
        yield Finding(_COMPILERS, "ok", "GPU", f"{_counted(devices)}, driver for CUDA {told.get('driver')}")
        if version_of("nvidia-ml-py") is None:
            text = "nvidia-ml-py is not installed: sessions do not tell the joules of GPUs"
            yield Finding(_COMPILERS, "note", "NVML", text, "tune --hw host_gpu", "pip install nvidia-ml-py")


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _text(path: Path) -> str:
    """Return what a small file of the system holds, "" where it cannot be read."""
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
"""Shell -> the file below the home folder that has it, and how it gets there."""


def shell_findings() -> Iterator[Finding]:
    """Yield one line on the shell that SHELL names, if it is one that can complete, and there is a home folder."""
    shell = PurePosixPath(os.environ.get("SHELL", "")).name
    if shell not in _FILES:
        return
    name, fix = _FILES[shell]
    try:
        path = Path.home() / name
        wanted = "anatune" if shell == "fish" else "anatune completion"
        found = wanted in path.read_text(encoding="utf-8", errors="replace")
    except (OSError, RuntimeError):
        found = False
    if found:
        yield Finding("This machine", "ok", "completion", f"{shell} completes anatune's words (~/{name})")
    else:
        yield Finding("This machine", "note", "completion", f"{shell} does not complete anatune's words", "", fix)
