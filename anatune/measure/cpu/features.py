"""Which of LLVM's features a processor offers, by the flags that its system shows.

A hypervisor may hide instructions from its guests, and code for LLVM's -mcpu would use them. What is offered is what
the system's flags name. They come from CPUID and from what Linux knows, so that a feature newer than the kernel counts
as missing, too: code is then slower, never wrong.

The state of AMX's tile registers is 8 KiB a thread, which Linux keeps only for processes that said they need it; an
instruction on tiles ends others by SIGILL. Threads that are started later inherit the permission.
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
"""LLVM's name -> Linux' flag, where more than punctuation differs. Source: Linux, arch/x86/.../cpufeatures.h."""
_UNTOLD = {"amx-fp16": ("173", "174")}
"""LLVM's names of features that Linux names no flag for -> models of Intel's family 6 that have them."""
_MODEL = re.compile(r"^model\s*: *(\d+)$", re.MULTILINE)


def missing_features(features: Iterable[str], flags: Collection[str]) -> tuple[str, ...]:
    """Return those of `features` (LLVM's names) that flags of /proc/cpuinfo (``amx_tile``) do not show, sorted.

    Those that no flag tells of are not missing.
    """
    offered = {_letters(flag) for flag in (*flags, *_UNTOLD)}
    return tuple(sorted(name for name in features if _letters(_FLAGS.get(name, name)) not in offered))


def lacking_features(features: Iterable[str], cpuinfo: str | Path = "/proc/cpuinfo") -> tuple[str, ...]:
    """Return those of `features` (LLVM's names) that the present processor does not offer; (): none, or unknown."""
    words, wanted = processor_flags(cpuinfo), tuple(features)
    if not words:
        return ()
    models = _MODEL.findall(Path(cpuinfo).read_text(encoding="utf-8", errors="replace"))
    untold = [name for name in wanted if name in _UNTOLD and not set(models[:1]) & set(_UNTOLD[name])]
    return tuple(sorted({*missing_features(wanted, words), *untold}))


def processor_flags(cpuinfo: str | Path = "/proc/cpuinfo") -> list[str]:
    """Return what the system says that the present processor offers; []: it says nothing."""
    try:
        lines = Path(cpuinfo).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return next(
        (line.partition(":")[2].split() for line in lines if line.lower().startswith(("flags", "features"))), []
    )


def _letters(name: str) -> str:
    """Return a name without punctuation: LLVM's avx512bf16, sse4.1 and amx-tile are Linux' avx512_bf16 and so on."""
    return re.sub(r"[-_.]", "", name)


_ARCH_PRCTL = 158
"""Number of the system call on x86-64."""
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18


def allow_tiles(features: Iterable[str]) -> None:
    """Make sure that this process may run instructions on tiles.

    Parameters
    ----------
    features : iterable of str
        LLVM's names of what the instructions need ("amx-bf16").

    Raises
    ------
    RunError
        The processor lacks a feature, or the system gives no permission; it says why.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise RunError(f"AMX's tiles: this is {sys.platform} on {platform.machine()}, expected Linux on x86_64")
    if lacking := lacking_features(["amx-tile", *features]):
        raise RunError(
            f"AMX's tiles: this processor lacks {', '.join(lacking)}; anatune.inspect() compiles without running"
        )
    if error := _refusal():
        raise RunError(
            f"AMX's tiles: Linux refuses this process their registers ({os.strerror(error)}); kernels from 5.16 on "
            "give them where no sandbox forbids arch_prctl"
        )


@functools.cache
def _refusal() -> int:
    """Ask for the registers, once a process; return the error's number, 0: they may be used."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    refused = call(ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XFEATURE_XTILEDATA))
    return ctypes.get_errno() if refused else 0
