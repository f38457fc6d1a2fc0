"""Permission to use AMX's tile registers, which Linux gives a process that asks for it.

Their state is 8 KiB a thread, which the kernel keeps only for processes that said they need it; an instruction on
tiles ends others by SIGILL. Threads that are started later inherit the permission.
Source: Linux, Documentation/arch/x86/xstate.rst.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Iterable

from anatune.errors import RunError
from anatune.measure.cpu.features import lacking_features

__all__ = ["allow_tiles"]

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
