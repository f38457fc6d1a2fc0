"""The LLVM features that a processor offers, by the flags that the system reports.

A hypervisor may hide instructions from its guests, but code for LLVM's -mcpu would use them. The flags of the system
show what is offered. They come from CPUID and from Linux, so that a feature newer than the kernel also counts as
missing; code is then slower, but never wrong.

The state of the AMX tile registers takes 8 KiB for each thread. Linux keeps it only for processes that asked for it,
and ends other processes with SIGILL at an AMX instruction. Threads that are started later inherit the permission.
Source: Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from anatune.errors import RunError

_FLAGS = {"sse3": "pni", "bmi": "bmi1", "lzcnt": "abm", "neon": "asimd"}
"""LLVM's name -> flag in Linux, if more than punctuation differs. Source: Linux, arch/x86/.../cpufeatures.h."""
_UNTOLD = {"amx-fp16": ("173", "174")}
"""LLVM's names of features without a flag in Linux -> models of Intel's family 6 that have them."""
_MODEL = re.compile(r"^model\s*: *(\d+)$", re.MULTILINE)


def missing_features(features: Iterable[str], flags: Collection[str]) -> tuple[str, ...]:
    """Return those of `features` (LLVM's names) that are not in the flags of /proc/cpuinfo (``amx_tile``), sorted.

    Features without a flag are not missing.
    """
    offered = {_letters(flag) for flag in (*flags, *_UNTOLD)}
    return tuple(sorted(name for name in features if _letters(_FLAGS.get(name, name)) not in offered))


def lacking_features(features: Iterable[str], cpuinfo: str | Path = "/proc/cpuinfo") -> tuple[str, ...]:
    """Return those of `features` (LLVM's names) that this processor does not offer; () also if that is unknown."""
    words, wanted = processor_flags(cpuinfo), tuple(features)
    if not words:
        return ()
    models = _MODEL.findall(Path(cpuinfo).read_text(encoding="utf-8", errors="replace"))
    untold = [name for name in wanted if name in _UNTOLD and not set(models[:1]) & set(_UNTOLD[name])]
    return tuple(sorted({*missing_features(wanted, words), *untold}))


def processor_flags(cpuinfo: str | Path = "/proc/cpuinfo") -> list[str]:
    """Return the flags of this processor that the system reports; [] if it reports none."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next(
        (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))), []
    )


def _letters(name: str) -> str:
    """Return a name without punctuation, because LLVM's amx-tile is amx_tile in Linux."""
    return re.sub(r"[-_.]", "", name)


_ARCH_PRCTL = 158
"""Number of the system call on x86-64."""
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def allow_tiles(features: Iterable[str]) -> None:
    """Ask for permission to use AMX tiles in this process.

    Parameters
    ----------
    features : iterable of str
        LLVM's names of the needed features ("amx-bf16").

    Raises
    ------
    RunError
        The processor lacks a feature, or the system refuses permission.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise RunError(f"AMX tiles need Linux on x86_64, but this is {sys.platform} on {platform.machine()}")
    if lacking := lacking_features(["amx-tile", *features]):
        raise RunError(
            f"AMX tiles cannot be used: this processor lacks {', '.join(lacking)}; anatune.inspect() compiles without "
            "running"
        )
    if error := _refusal():
        raise RunError(
            f"AMX tiles cannot be used: Linux refuses permission ({os.strerror(error)}); it needs kernel 5.16 or later "
            "and no sandbox that forbids arch_prctl"
        )


@functools.cache
def _refusal() -> int:
    """Ask for the registers once in a process; return the error number, or 0 if they may be used."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    refused = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XFEATURE_XTILEDATA))
    return ctypes.get_errno() if refused else 0
