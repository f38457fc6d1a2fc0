"""What a GPU does in a run of a model: kernels, launches in order, and where everything lies in its memory.

Nothing here needs TVM, or the library that compiled the kernels: it is what is loaded and run.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from anatune.core.compiler_facts import CompilerFacts
from anatune.emit.buffer import Buffer
from anatune.templates.triton.program.kernel import TritonProgram

__all__ = ["ALIGNMENT", "DeviceKernel", "DeviceLaunch", "DeviceProgram", "Region", "Role"]

ALIGNMENT = 256
"""Bytes that tensors begin at multiples of."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Role = Literal["input", "weight", "output", "arena", "state"]


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory of a tensor.

    Attributes
    ----------
    role : {"input", "weight", "output", "arena", "state"}
        The caller's; the weights' memory; what a run returns; what lies between launches; what lies between runs.
    place : int
        Which input, output or part of the state; 0 elsewhere.
    offset : int
        Bytes from the beginning of that.
    num_bytes : int
    """

    role: Role
    place: _Count
    offset: _Count
    num_bytes: _Count


class DeviceKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function in machine code.

    Attributes
    ----------
    program : int
        Which of the programs it is of.
    function : str
        Its name there, and in the machine code.
    first, num_bytes : int
        Its machine code in that of all.
    grid, block : int
        Programs, threads of each.
    dynamic_shared_bytes, scratch_bytes : int
        As `templates.gpu.kernel.Launch`.
    facts : CompilerFacts
        What the compiler said.
    """

    program: _Count
    function: str
    first: _Count
    num_bytes: _Count
    grid: _Count
    block: _Count
    dynamic_shared_bytes: _Count
    scratch_bytes: _Count
    facts: CompilerFacts


class DeviceLaunch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel on its tensors.

    Attributes
    ----------
    kernel : int
        Its place among the kernels.
    regions : tuple of Region
        In the order of its parameters.
    scratch : Region, optional
        Memory for what the compiler keeps there.
    name : str
        Of the planned kernel, or of the nests, that it belongs to: launches of one name are one line of a report.
    """

    kernel: _Count
    regions: tuple[Region, ...]
    scratch: Region | None
    name: str


class DeviceProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of a model but the values of its weights.

    Attributes
    ----------
    programs : tuple of TritonProgram
        The texts that the kernels were compiled from.
    kernels : tuple of DeviceKernel
    launches : tuple of DeviceLaunch
        Each when the one before has ended.
    arena_bytes : int
        Memory between launches: one allocation.
    image : bytes
        Machine code of all kernels.
    state : tuple of Buffer
        What stays from run to run, as memory holds it.
    """

    programs: tuple[TritonProgram, ...]
    kernels: tuple[DeviceKernel, ...]
    launches: tuple[DeviceLaunch, ...]
    arena_bytes: _Count
    image: bytes
    state: tuple[Buffer, ...] = ()
