"""A schedule as TVMScript and as CUDA C: one kernel and everything that is needed to compile and launch it.

Most schedules are one launch. Others need small kernels around the principal one, before it (a result that is summed
atomically is zeroed) or after it (parts of sums are added up), and memory of their own between them.
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
"""Most shared memory that a kernel may declare; more is asked for at the launch. Source: [CUDA-guide], ptxas."""
SCRATCH_ALIGNMENT = 128
"""Bytes; of what Triton's kernels keep in global memory: tensor descriptors. Source: Triton 3.9, its metadata."""


class Launch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One function of a kernel's CUDA C and how it is launched. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        The ``extern "C"`` function.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes, dynamic_shared_bytes : int
        Shared memory of a block; the part of it that the launch must ask for: all or nothing.
    growth : Growth or None
        How `grid`, that of the largest extent, follows from the extent of a kernel for a range; None: it does not.
    scratch_bytes : int or None
        Of a function that Triton compiled: global memory of a block for what the compiler keeps there, 0 for none. The
        function takes two more pointers behind its parameters: that memory, of all blocks of the grid, which begins at
        a multiple of `SCRATCH_ALIGNMENT` bytes, and a null pointer. None: it takes neither. Source: Triton 3.9,
        launchers of ``backends/nvidia/driver.py`` and ``backends/amd/driver.py``.
    image, image_sha256 : str
        File of its machine code, and the hash of that; "": it lies in that of the principal function.
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
    """Return the user's tensors by name: what any of some launches takes, without the workspace."""
    own = "" if workspace is None else workspace.tensor
    taken = (parameter for launch in launches for parameter in launch.parameters)
    return {parameter.tensor: parameter for parameter in taken if parameter.tensor != own}


class Launches:
    """What is launched for one result: the principal kernel, and others of the same code around it."""

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
        """What each launch takes behind its pointers, as ``int``: the extent of a kernel for a range.

        Raises
        ------
        RunError
            Nobody has said which extent (`at`).
        """
        if self.ranged is None:
            return ()
        if self.extent is None:
            raise RunError(f"{self.name} takes the extent of {self.ranged.axis}, expected one; call at(extent)")
        return (self.extent,)

    def at(self, extent: int) -> Self:
        """Return the kernel for one extent of its range: the same code with the grids, shapes and argument for it.

        Raises
        ------
        RunError
            It has no range, or one without this extent.
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
        """All kernels in order; each begins when the one before it has ended."""
        return (*self.before, self.principal, *self.after)

    @property
    def scratch_bytes_in_all(self) -> int:
        """Global memory that compilers keep something in: one launch uses it at a time. 0: none is needed."""
        return max(launch.grid * (launch.scratch_bytes or 0) for launch in self.launches)

    @property
    def tensors(self) -> dict[str, Buffer]:
        """The user's tensors by name: what any of the kernels takes, without the workspace."""
        return tensors_of(self.launches, self.workspace)


class CudaKernel(Launches, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA C of one schedule. Immutable; JSON both ways.

    Attributes
    ----------
    schedule_key : str
        Key of the schedule it was made from ("" for probes).
    name : str
        The principal ``extern "C"`` function.
    source : str
        Complete CUDA C that NVRTC compiles without further files.
    arch : str
        "sm_86"; what it was generated for.
    parameters : tuple of Buffer
        Pointers in the order in which the function takes them (never the workload's order: bind by name).
    result : str
        Tensor that is written.
    grid, block : int
        Blocks of the grid, threads of a block; both along x.
    shared_bytes : int
        Shared memory of a block.
    dynamic_shared_bytes : int
        The part of it that the launch must ask for: all or nothing.
    before, after : tuple of Launch
        Other functions of the source that are launched, in this order, before and after the principal one.
    workspace : Buffer or None
        Memory that the principal one writes and those after it read, a parameter of theirs; between runs it holds
        nothing.
    ranged : Ranged or None
        The axis whose extent every function takes as its last argument, an ``int``. Grids, shapes and the workspace
        are those of the largest extent; `at` returns those of another one.
    growth : Growth or None
        How `grid` follows from the extent; None: it does not.
    extent : int or None
        What `at` was asked for: the argument's value.
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
    """How one of a program's kernels is launched: blocks, threads of a block, bytes of its shared memory.

    Of kernels for a range, blocks of the largest extent, and how they follow from it if they do.
    """

    grid: int
    block: int
    shared_bytes: int = 0
    growth: Growth | None = None

    @property
    def dynamic_shared_bytes(self) -> int:
        """What the launch asks for: all or nothing."""
        return self.shared_bytes if self.shared_bytes > STATIC_SHARED_BYTES else 0


class KernelProgram(NamedTuple):
    """One kernel as a GPU template writes it.

    Attributes
    ----------
    script : str
        TVMScript of ``main``: operands, epilogue operands, result in the workload's layouts. A nest for each launch.
    num_blocks, num_threads, shared_bytes : int
        Launch configuration; more than `STATIC_SHARED_BYTES` of shared memory is dynamic.
    resident_blocks : int
        What the compiler is told about blocks of an SM; 0: nothing.
    finish : callable
        What becomes of the body of TVM's CUDA C.
    before, after : tuple of LaunchSize
        Of the nests around the principal one.
    workspace : Buffer or None
        The array of global memory that ``main`` allocates.
    ranged : Ranged or None
        The axis whose extent is the last argument.
    growth : Growth or None
        How `num_blocks`, those of its largest extent, follow from it, if they do.
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
        """Of all nests, in order."""
        principal = LaunchSize(self.num_blocks, self.num_threads, self.shared_bytes, self.growth)
        return (*self.before, principal, *self.after)
