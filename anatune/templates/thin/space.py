"""The space of thin schedules: threads along both fused indices, loads in flight of a thread, elements of a load.

A block of ``n.thread x k.thread`` threads computes ``n.thread x n.each x n.vector`` columns of the result, with all
their rows. In each step it reads ``k.thread x k.each x k.vector`` elements along k of every column. Threads along k add
their sums by shuffles and in shared memory. Tiles need not divide the extents, because every load is guarded. Sums can
be split among blocks; a second kernel then adds their parts.

A point is a vector of integers in the order of `ThinSpace.columns`. The space is small enough to be evaluated
exhaustively.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import check_integer
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.workload.access import MAX_INTEGER
from anatune.core.workload.nest import Workload
from anatune.templates.base.space import LegalityCheck, Space, SpacePart
from anatune.templates.gpu.split import split_of
from anatune.templates.thin.nest import thin_nest
from anatune.templates.thin.rules import LEVELS, check_supported, check_thin, vectors_of

__all__ = ["ThinSpace"]

MOST_THREADS = 1024
"""Most threads of a block along one index."""
LOADS = {"n": (1, 2, 3, 4, 6, 8), "k": (1, 2, 3, 4, 6, 8, 12, 16)}
"""Numbers of loads of a thread along each index that are in flight at the same time."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of parts into which a sum is split; each block computes one part."""


class ThinSpace(Space):
    """All thin schedules of one workload on one GPU.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        The computation and the spec of the GPU.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the limits of the device, which the model knows.

    Raises
    ------
    SpaceError
        The template does not apply, see `check_supported`.
    """

    template = "thin"
    hardware: GpuSpec

    def __init__(self, workload: Workload, hardware: GpuSpec, is_legal: LegalityCheck) -> None:
        check_supported(workload, hardware)
        super().__init__(workload, hardware, is_legal)
        self.nest = thin_nest(workload)
        self.axes = ("n", "k")
        self.extents = {axis: self.nest.extents[axis] for axis in self.axes}
        self.levels = {axis: names[1:] for axis, names in LEVELS.items()}
        self.choices = {"split": SPLITS}

    def _axis(self, axis: str) -> SpacePart:
        """Return the tiles of an index; none is as large as twice the extent."""
        extent = self.extents[axis]
        widths = vectors_of(self.nest) if (axis == "k") == self.nest.along_k else (1,)
        rows = [
            (threads, each, width)
            for threads in (2**e for e in range(MOST_THREADS.bit_length()))
            for each in LOADS[axis]
            for width in widths
            if threads == each == 1 or threads * each * width < 2 * extent
        ]
        return self._tiles_of(axis, rows)

    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""
        values = self._values(point)
        return self.schedule(self._tiles(values), values[-1])

    def point_of(self, schedule: Schedule) -> NDArray[np.int64]:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template.
        """
        self._check_membership(schedule)
        values = [factor for axis in self.axes for factor in schedule.tiles[axis][1:]]
        return np.array([*values, split_of(schedule.options).split], dtype=np.int64)

    def schedule(self, tiles: Mapping[str, Sequence[int]], split: int = 1) -> Schedule:
        """Build the schedule with these tiles, legal on the device or not.

        Parameters
        ----------
        tiles : mapping of str to sequence of int
            "n" and "k" -> (thread, each, vector): threads of a block, loads of a thread, elements of a load. Elements
            of a load are 1 along the index that neighbours of the large operand do not follow. Factors left out are 1.
        split : int
            Number of parts into which the steps along k are split; each block computes one part.

        Raises
        ------
        SpaceError
            An index is unknown, the number of factors is wrong, threads are not a power of two, or vectors are not
            aligned.
        """
        complete = self._covering(tiles, "tiles={'n': (1, 4, 1), 'k': (128, 2, 4)}", self.extents)
        options: dict[str, OptionValue] = {} if split == 1 else {"split": check_integer("split", split, 1, MAX_INTEGER)}
        schedule = Schedule(self.workload, self.hardware, self.template, complete, options=options)
        check_thin(schedule)
        return schedule
