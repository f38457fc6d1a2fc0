"""A schedule as TVMScript and as CUDA C: its kernel, and how it is compiled and launched.

Most schedules are one launch. Some need small kernels in addition: one before that zeroes a result to which parts are
added atomically, or one after that sums parts from a workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from anatune.emit.buffer import Buffer
from anatune.errors import RunError
from anatune.templates.gpu.ranged import Growth, Ranged

if TYPE_CHECKING:
    from typing import Self

__all__ = [
    "SCRATCH_ALIGNMENT",
    "STATIC_SHARED_BYTES",
    "CudaKernel",
    "KernelProgram",
    "Launch",
    "LaunchSize",
    "Launches",
    "tensors_of",
]

STATIC_SHARED_BYTES = 49152
"""The most shared memory that a kernel may declare. More is asked for at the launch. Source: [CUDA-guide], ptxas."""
SCRATCH_ALIGNMENT = 128
"""Alignment of the global memory in which Triton's kernels keep tensor descriptors, bytes. Source: Triton 3.9, its
metadata."""


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function of a kernel's CUDA C, with its launch configuration. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        The ``extern "C"`` function.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes, dynamic_shared_bytes : int
        Shared memory of a block, and the part of it that the launch must ask for, which is all or nothing.
    growth : Growth or None
        How `grid`, which is for the largest extent, follows from the extent of a kernel for a range. None: it does not.
    scratch_bytes : int or None
        Global memory that a block of a kernel compiled by Triton needs, 0 for none. The function then takes two more
        pointers after its parameters: that memory for all blocks of the grid, which begins at a multiple of
        `SCRATCH_ALIGNMENT` bytes, and a null pointer. None: the function takes neither. Source: Triton 3.9, launchers
        of ``backends/nvidia/driver.py`` and ``backends/amd/driver.py``.
    image, image_sha256 : str
        File of its machine code, and the hash of that file. "": the file of the principal function holds it.
    """

    name: str
    parameters: tuple[Buffer, ...]
    grid: int
    block: int
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    growth: Growth | None = None
    scratch_bytes: int | None = None
    image: str = ""
    image_sha256: str = ""

    def at(self, extent: int) -> Launch:
        """Return the launch for one extent."""
        parameters = tuple(parameter.at(extent) for parameter in self.parameters)
        grid = self.grid if self.growth is None else self.growth.grid(extent)
        return msgspec.structs.replace(self, parameters=parameters, grid=grid)


class HasParameters(Protocol):
    """A launch of any kind."""

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """Pointers in the order in which the function takes them."""


def tensors_of(launches: Iterable[HasParameters], workspace: Buffer | None) -> dict[str, Buffer]:
    """Return the user's tensors by name: all parameters of the launches except the workspace."""
    workspace_name = "" if workspace is None else workspace.tensor
    parameters = (parameter for launch in launches for parameter in launch.parameters)
    return {parameter.tensor: parameter for parameter in parameters if parameter.tensor != workspace_name}


class Launches:
    """The launches that compute one result: the principal kernel, and small ones of the same source around it."""

    __slots__ = ()

    name: str
    parameters: tuple[Buffer, ...]
    grid: int
    block: int
    shared_bytes: int
    dynamic_shared_bytes: int
    before: tuple[Launch, ...]
    after: tuple[Launch, ...]
    workspace: Buffer | None
    ranged: Ranged | None
    growth: Growth | None
    extent: int | None
    scratch_bytes: int | None = None

    @property
    def principal(self) -> Launch:
        """The kernel that does the work."""
        return Launch(
            self.name,
            self.parameters,
            self.grid,
            self.block,
            self.shared_bytes,
            self.dynamic_shared_bytes,
            self.growth,
            self.scratch_bytes,
        )

    @property
    def scalars(self) -> tuple[int, ...]:
        """Arguments of each launch after its pointers, as ``int``: the extent of a kernel for a range.

        Raises
        ------
        RunError
            The extent is not known. `at` sets it.
        """
        if self.ranged is None:
            return ()
        if self.extent is None:
            raise RunError(f"{self.name} takes the extent of {self.ranged.axis}, expected one; call at(extent)")
        return (self.extent,)

    def at(self, extent: int) -> Self:
        """Return the kernel for one extent of its range: the same code with that extent's grids, shapes and argument.

        Raises
        ------
        RunError
            The kernel is not for a range, or the extent is not in it.
        """
        Ranged.check(self.name, self.ranged, extent)
        principal = self.principal.at(extent)
        return msgspec.structs.replace(  # type: ignore[type-var]
            self,
            parameters=principal.parameters,
            grid=principal.grid,
            before=tuple(launch.at(extent) for launch in self.before),
            after=tuple(launch.at(extent) for launch in self.after),
            extent=extent,
        )

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches in order. Each begins when the one before it has ended."""
        return (*self.before, self.principal, *self.after)

    @property
    def scratch_bytes_in_all(self) -> int:
        """Global memory that the compiled kernels need, which one launch uses at a time; 0: none."""
        return max(launch.grid * (launch.scratch_bytes or 0) for launch in self.launches)

    @property
    def tensors(self) -> dict[str, Buffer]:
        """The user's tensors by name: all parameters of the launches except the workspace."""
        return tensors_of(self.launches, self.workspace)


class CudaKernel(Launches, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The CUDA C of one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule ("" for probes).
    name : str
        The principal ``extern "C"`` function.
    source : str
        Complete CUDA C that NVRTC compiles without further files.
    arch : str
        Architecture that the source is for, such as "sm_86".
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them. This is not the workload's order: bind them by name.
    result : str
        Tensor that is written.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes : int
        Shared memory of a block.
    dynamic_shared_bytes : int
        The part of it that the launch must ask for, which is all or nothing.
    before, after : tuple of Launch
        Other functions of the source, which are launched in this order before and after the principal one.
    workspace : Buffer or None
        Memory that the principal function writes and those after it read. They take it as a parameter. It holds
        nothing between runs.
    ranged : Ranged or None
        The axis whose extent every function takes as its last argument, an ``int``. Grids, shapes and the workspace are
        those of the largest extent; `at` returns those of another extent.
    growth : Growth or None
        How `grid` follows from the extent. None: it does not.
    extent : int or None
        The extent that `at` set: the value of the argument.
    """

    schedule_key: str
    name: str
    source: str
    arch: str
    parameters: tuple[Buffer, ...]
    result: str
    grid: int
    block: int
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    before: tuple[Launch, ...] = ()
    after: tuple[Launch, ...] = ()
    workspace: Buffer | None = None
    ranged: Ranged | None = None
    growth: Growth | None = None
    extent: int | None = None


class LaunchSize(NamedTuple):
    """The launch configuration of one kernel of a program: blocks, threads of a block, bytes of its shared memory.

    In kernels for a range, `grid` is for the largest extent, and `growth` says how it follows from the extent.
    """

    grid: int
    block: int
    shared_bytes: int = 0
    growth: Growth | None = None

    @property
    def dynamic_shared_bytes(self) -> int:
        """Shared memory that the launch asks for, which is all or nothing."""
        return self.shared_bytes if self.shared_bytes > STATIC_SHARED_BYTES else 0


class KernelProgram(NamedTuple):
    """The TVMScript of one schedule, with its launch configuration.

    Attributes
    ----------
    script : str
        TVMScript of ``main`` with a loop nest for each launch. Its parameters are the operands, the operands of the
        epilogue and the result, in the workload's layouts.
    num_blocks, num_threads, shared_bytes : int
        Launch configuration. Shared memory is dynamic if it is more than `STATIC_SHARED_BYTES`.
    resident_blocks : int
        Blocks of an SM that the compiler is told to aim at. 0: it is told nothing.
    finish : callable
        Function that edits the body of TVM's CUDA C.
    before, after : tuple of LaunchSize
        The launches before and after the principal one.
    workspace : Buffer or None
        The array of global memory that ``main`` allocates.
    ranged : Ranged or None
        The axis whose extent is the last argument of the kernels.
    growth : Growth or None
        How `num_blocks`, which is for the largest extent, follows from the extent. None: it does not.
    """

    script: str
    num_blocks: int
    num_threads: int
    shared_bytes: int
    resident_blocks: int = 0
    finish: Callable[[str], str] = str
    before: tuple[LaunchSize, ...] = ()
    after: tuple[LaunchSize, ...] = ()
    workspace: Buffer | None = None
    ranged: Ranged | None = None
    growth: Growth | None = None

    @property
    def sizes(self) -> tuple[LaunchSize, ...]:
        """The launch configurations of all kernels, in order."""
        principal = LaunchSize(self.num_blocks, self.num_threads, self.shared_bytes, self.growth)
        return (*self.before, principal, *self.after)
