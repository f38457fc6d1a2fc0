"""A Winograd schedule as TVMScript and LLVM IR."""

from __future__ import annotations

from anatune.codegen.cpu.program import CpuProgram
from anatune.core.schedule import Schedule
from anatune.errors import BuildError

__all__ = ["program_of"]


def program_of(schedule: Schedule, *, threads: int = 1, prepacked: bool = True) -> CpuProgram:
    """Write a schedule of the template "winograd" as TVMScript and LLVM IR.

    Raises
    ------
    BuildError
        Always, for now: its kernels are being written.
    """
    raise BuildError("the template winograd has no kernels yet; leave out the template")
