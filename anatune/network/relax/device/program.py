"""The program of a model for a GPU: kernels, launches in order, and the memory of all tensors.

Loading and running it needs neither TVM nor the compiler of the kernels.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from anatune.core.compiler_facts import CompilerFacts
from anatune.emit.buffer import Buffer
from anatune.templates.triton.program.kernel import TritonProgram

__all__ = ["ALIGNMENT", "DeviceKernel", "DeviceLaunch", "DeviceProgram", "Region", "Role"]

ALIGNMENT = 256
"""Tensors begin at multiples of this number of bytes."""
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Role = Literal["input", "weight", "output", "arena", "state"]


class Region(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory of a tensor.

    Attributes
    ----------
    role : {"input", "weight", "output", "arena", "state"}
        Memory of the caller, of the weights, of the results, of intermediate tensors, or of the state between runs.
    place : int
        Index of the input, output or part of the state; otherwise 0.
    offset : int
        Offset in that memory in bytes.
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
        Index of its program.
    function : str
        Its name in the program and in the machine code.
    first, num_bytes : int
        Offset and size of its machine code in `DeviceProgram.image`.
    grid, block : int
        Number of program instances, and threads of each.
    dynamic_shared_bytes, scratch_bytes : int
        See `templates.gpu.kernel.Launch`.
    facts : CompilerFacts
        The report of the compiler.
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
        Index of the kernel.
    regions : tuple of Region
        Memory of its parameters, in order.
    scratch : Region, optional
        Scratch memory that the compiler requires.
    name : str
        Name of the planned kernel or nests; a report has one line for all launches of a name.
    """

    kernel: _Count
    regions: tuple[Region, ...]
    scratch: Region | None
    name: str


class DeviceProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model without the values of its weights.

    Attributes
    ----------
    programs : tuple of TritonProgram
        Source text that the kernels were compiled from.
    kernels : tuple of DeviceKernel
    launches : tuple of DeviceLaunch
        Launches in order; each begins after the end of the one before.
    arena_bytes : int
        Memory of intermediate tensors, one allocation.
    image : bytes
        Machine code of all kernels.
    state : tuple of Buffer
        State that stays from run to run, as memory holds it.
    """

    programs: tuple[TritonProgram, ...]
    kernels: tuple[DeviceKernel, ...]
    launches: tuple[DeviceLaunch, ...]
    arena_bytes: _Count
    image: bytes
    state: tuple[Buffer, ...] = ()
