"""The sizes of a schedule's kernel: tiles, blocks, threads, shared memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from anatune.core.generation import generation_limit
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Access
from anatune.errors import BuildError, SpaceError
from anatune.templates.gpu.ranged import Count, Growth, Ranged
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.gpu.split import split_of

__all__ = ["KernelLayout"]


class KernelLayout(ABC):
    """The tiles, blocks, threads and memory of one checked schedule's kernel. Immutable.

    Parameters
    ----------
    schedule : Schedule
    ranged : Ranged, optional
        The axis whose extent is known at run time only. The schedule is that of its largest extent. Numbers of blocks
        and steps are those of that extent, unless said otherwise.

    Attributes
    ----------
    templates : tuple of str
        Names of the templates whose schedules it takes.
    has_ranges : bool
        Whether it takes `ranged`.

    Raises
    ------
    SpaceError
        The schedule is of another template.
    BuildError
        The template has no kernels for ranges; a tensor is too large for 32-bit addresses; or the device has fewer
        threads per block or less shared memory (`check_limits`).
    """

    templates: ClassVar[tuple[str, ...]]
    has_ranges: ClassVar[bool] = False

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        hardware, template = schedule.hardware, schedule.template
        if ranged is not None and not self.has_ranges:
            raise BuildError(
                f"template {template} has no kernels for a range of extents (of {ranged.axis}), expected cuda or "
                "pipelined"
            )
        if hardware.kind != "gpu" or template not in self.templates:
            raise SpaceError(
                f"schedule is for {hardware.name} ({template}), expected a GPU and {' or '.join(self.templates)}"
            )
        self.schedule, self.workload, self.ranged = schedule, schedule.workload, ranged
        self.hardware = gpu_of(schedule)
        if limit := generation_limit(self.workload, hardware):
            raise BuildError(limit)
        self.split = split_of(schedule.options)

    @property
    @abstractmethod
    def num_tiles(self) -> int:
        """Tiles of the result. Without a split this is the number of blocks."""

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Staging steps of a tile."""

    @property
    @abstractmethod
    def num_threads(self) -> int:
        """Threads of a block."""

    @property
    @abstractmethod
    def num_accumulators(self) -> int:
        """Results of a thread when a block ends."""

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return self.split.num_blocks(self.num_tiles)

    @property
    def num_keepers(self) -> int:
        """Threads that hold results when a block ends. They are the first ones."""
        return self.num_threads

    @property
    def result_bytes(self) -> int:
        """Shared memory through which a block's results pass before they are stored, bytes."""
        return 0

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element."""
        return DTYPE_BYTES[self.workload.dtype]

    @property
    def accumulator(self) -> str:
        """Dtype of the accumulators."""
        return ACCUMULATOR_DTYPE[self.workload.dtype]

    @property
    def num_terms(self) -> int | str:
        """Terms of the sum of a result: a number, or an expression if it varies."""
        return self.workload.num_reduced

    # -- at any extent of a range ---------------------------------------------------------------------------------

    @property
    def steps(self) -> Count:
        """Staging steps of a tile, at any extent."""
        return Count.of(self.num_steps)

    @property
    def growth(self) -> Growth | None:
        """Dependence of the number of tiles on the extent. None: it does not vary."""
        return None

    def shape(self, access: Access) -> tuple[int | str, ...]:
        """Return the shape of a tensor, with expressions for the dimensions that vary."""
        return access.shape

    def check_limits(self) -> None:
        """Raise BuildError if the schedule exceeds a limit that no compiler and no launch would accept."""
        hardware, most_threads = self.hardware, self.hardware.compute.max_threads_per_block
        if self.num_threads > most_threads:
            raise BuildError(
                f"schedule has {self.num_threads} threads a block, but {hardware.name} has at most {most_threads}; "
                "choose smaller thread tiles"
            )
        most_bytes = hardware.shared_memory.per_block_bytes
        if self.shared_bytes > most_bytes:
            raise BuildError(
                f"schedule needs {self.shared_bytes} bytes of shared memory a block, but {hardware.name} has at most "
                f"{most_bytes} (opt-in); choose smaller tiles or fewer stages"
            )
