"""Sizes of a thin kernel: threads, loads, shared memory and results."""

from __future__ import annotations

import math

from anatune.core.schedule import Schedule
from anatune.templates.gpu.layout import KernelLayout
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.thin.nest import thin_nest

__all__ = ["ThinLayout", "words"]

_WORD_BYTES = 4


class ThinLayout(KernelLayout):
    """All sizes of the kernel of one schedule; parameters and errors as `KernelLayout`.

    Attributes
    ----------
    nest : ThinNest
    grid : dict of str to int
        Blocks along the fused index "n", steps along "k".
    thread, each, vector : dict of str to int
        The other factors of the two indices: threads of a block, loads of a thread, elements of a load.
    warp : int
        Threads that shuffle with each other.
    """

    templates = ("thin",)

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(schedule, ranged)
        self.nest = thin_nest(self.workload)
        self.grid, self.thread, self.each, self.vector = (
            {index: factors[level] for index, factors in schedule.tiles.items()} for level in range(4)
        )
        self.warp = self.hardware.compute.warp_size

    @property
    def rows(self) -> int:
        """Results for each column."""
        return self.nest.extents["m"]

    def tile(self, index: str) -> int:
        """Return the elements of a block along n, or of a step along k."""
        return self.thread[index] * self.each[index] * self.vector[index]

    def is_loose(self, index: str) -> bool:
        """Return whether the last tile exceeds the extent."""
        return self.grid[index] * self.tile(index) > self.nest.extents[index]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return self.thread["n"] * self.thread["k"]

    @property
    def num_tiles(self) -> int:
        """Blocks of the grid if no sum is split."""
        return self.nest.extents["batch"] * self.grid["n"]

    @property
    def num_steps(self) -> int:
        """Steps of a tile."""
        return self.grid["k"]

    @property
    def load(self) -> int:
        """Elements of the big operand in one load."""
        return self.vector["n"] * self.vector["k"]

    @property
    def load_words(self) -> int:
        """Registers of one load of the big operand."""
        return words(self.load * self.element_bytes)

    @property
    def small_depth(self) -> int:
        """Elements of the small operand along k that a thread needs at the same time."""
        return self.vector["k"] if self.nest.along_k else self.each["k"]

    @property
    def small_load(self) -> int:
        """Elements of the small operand in one load."""
        return math.gcd(self.nest.small_width, self.small_depth)

    @property
    def num_sums(self) -> int:
        """Sums of a thread, which other threads share."""
        return self.rows * self.each["n"] * self.vector["n"]

    @property
    def results(self) -> int:
        """Results of a block."""
        return self.rows * self.tile("n")

    @property
    def is_apart(self) -> bool:
        """True if each thread stores only what it has summed itself, so that no thread waits for another."""
        keeps_own = self.results == self.thread["n"] or (self.thread["k"] == 1 and self.num_keepers == self.thread["n"])
        in_order = self.rows == 1 or not self.nest.rows_inside
        first = self.stride > 1 or self.thread["k"] == 1 or self.thread["n"] == 1
        return keeps_own and in_order and first and self.slots == self.vector["n"] == 1

    @property
    def num_keepers(self) -> int:
        """Threads of a block that store results, in whole warps."""
        return min(self.num_threads, -(-self.results // self.warp) * self.warp)

    @property
    def num_accumulators(self) -> int:
        """Results that each of these threads stores."""
        return -(-self.results // self.num_keepers)

    @property
    def stride(self) -> int:
        """Threads between neighbours along k."""
        return 1 if self.nest.along_k else self.thread["n"]

    @property
    def lanes(self) -> int:
        """Threads of a warp along k, which add their sums by shuffles."""
        return max(1, min(self.thread["k"], self.warp // self.stride))

    @property
    def slots(self) -> int:
        """Sums of each result in shared memory."""
        return self.thread["k"] // self.lanes

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.slots * self.results * _WORD_BYTES


def words(num_bytes: int) -> int:
    """Return the number of registers for `num_bytes`."""
    return -(-num_bytes // _WORD_BYTES)
