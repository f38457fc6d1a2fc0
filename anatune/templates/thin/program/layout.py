"""The sizes of a thin schedule: who reads what, and where sums meet."""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.core.generation import generation_limit
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES
from anatune.errors import BuildError, SpaceError
from anatune.templates.thin.nest import ThinNest, thin_nest

__all__ = ["ThinLayout", "layout_of"]

_WORD_BYTES = 4


class ThinLayout(NamedTuple):
    """All sizes of one schedule; mappings have the fused indices "n" and "k"."""

    schedule: Schedule
    nest: ThinNest
    grid: dict[str, int]
    """Blocks along n, steps along k."""
    thread: dict[str, int]
    each: dict[str, int]
    vector: dict[str, int]
    warp: int
    """Threads that shuffle with each other."""

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element."""
        return DTYPE_BYTES[self.schedule.workload.dtype]

    @property
    def accumulator(self) -> str:
        """Dtype of the sums."""
        return ACCUMULATOR_DTYPE[self.schedule.workload.dtype]

    @property
    def rows(self) -> int:
        """Results for each column."""
        return self.nest.extents["m"]

    def tile(self, index: str) -> int:
        """Return the elements of a block along n, or of a step along k."""
        return self.thread[index] * self.each[index] * self.vector[index]

    def is_loose(self, index: str) -> bool:
        """Whether the last tile reaches beyond the extent."""
        return self.grid[index] * self.tile(index) > self.nest.extents[index]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.thread["n"] * self.thread["k"]

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return self.nest.extents["batch"] * self.grid["n"]

    @property
    def load(self) -> int:
        """Elements of the big operand that are loaded at once."""
        return self.vector["n"] * self.vector["k"]

    @property
    def load_words(self) -> int:
        """Registers that they fill."""
        return words(self.load * self.element_bytes)

    @property
    def few(self) -> int:
        """Elements of the small operand along k that a thread needs together."""
        return self.vector["k"] if self.nest.along_k else self.each["k"]

    @property
    def few_load(self) -> int:
        """Those of them that are loaded at once."""
        return math.gcd(self.nest.small_width, self.few)

    @property
    def accumulators(self) -> int:
        """Sums of a thread."""
        return self.rows * self.each["n"] * self.vector["n"]

    @property
    def results(self) -> int:
        """Results of a block."""
        return self.rows * self.tile("n")

    @property
    def is_apart(self) -> bool:
        """Whether each thread stores what it has summed itself, so that none waits for another."""
        own = self.results == self.thread["n"] or (self.thread["k"] == 1 and self.keepers == self.thread["n"])
        in_order = self.rows == 1 or not self.nest.rows_inside
        first = self.stride > 1 or self.thread["k"] == 1 or self.thread["n"] == 1
        return own and in_order and first and self.slots == self.vector["n"] == 1

    @property
    def keepers(self) -> int:
        """Threads of a block that store results: whole warps."""
        return min(self.num_threads, -(-self.results // self.warp) * self.warp)

    @property
    def turns(self) -> int:
        """Results that each of them stores."""
        return -(-self.results // self.keepers)

    @property
    def stride(self) -> int:
        """Threads between neighbours along k."""
        return 1 if self.nest.along_k else self.thread["n"]

    @property
    def lanes(self) -> int:
        """Threads of a warp along k, which add up by shuffles."""
        return max(1, min(self.thread["k"], self.warp // self.stride))

    @property
    def slots(self) -> int:
        """Sums of each result that meet in shared memory."""
        return self.thread["k"] // self.lanes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.slots * self.results * _WORD_BYTES


def words(num_bytes: int) -> int:
    """Return the registers that so many bytes fill."""
    return -(-num_bytes // _WORD_BYTES)


def layout_of(schedule: Schedule) -> ThinLayout:
    """Return the sizes of a checked schedule of the template thin.

    Raises
    ------
    SpaceError
        Another template.
    BuildError
        A tensor is too large for 32-bit addresses.
    """
    workload, hardware = schedule.workload, schedule.hardware
    if not isinstance(hardware, GpuSpec) or schedule.template != "thin":
        raise SpaceError(f"schedule is for {hardware.name} ({schedule.template}), expected a GPU and thin")
    if limit := generation_limit(workload, hardware):
        raise BuildError(limit)
    grid, thread, each, vector = ({axis: factors[at] for axis, factors in schedule.tiles.items()} for at in range(4))
    return ThinLayout(schedule, thin_nest(workload), grid, thread, each, vector, hardware.compute.warp_size)
