"""Programs for CUDA cores that serve a range of extents: their tilings, times and bounds.

A block may have any size along the ranged axis.

Notation
--------
macro : the sizes of blocks, threads and staging steps along every axis; other levels are open. It is stored as a row of
    option numbers, one for each axis.
point : the columns of `GpuSpace`, then split, leftovers, atomic (`gpu.split_space`). The first factor of the ranged
    axis follows from the extent: `RangedTiles.fit_to_extent` sets it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.ranges import RangedWorkload
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.scoring import least_time_s
from anatune.templates.cuda.times.batch import ANY_BOUND, BOUND, MACRO_BOUND, PREDICT, run_points
from anatune.templates.gpu.pack import pack_chunk, pack_nest
from anatune.templates.gpu.split_space import SPLIT_COLUMNS, split_part
from anatune.templates.gpu.times.columns import NestArrays

__all__ = ["ANY_BOUND", "BOUND", "MACRO_BOUND", "MOST_DEPTH", "MOST_TILE", "PREDICT", "RangedTiles"]

MOST_TILE = 512
"""Largest block along a ranged spatial axis: twice the largest guarded tile of a single extent."""
MOST_DEPTH = 256
"""Largest staging step along a ranged reduction axis: twice the largest guarded tile of a single extent."""
ROW = 32
"""Elements of which a multiple is aligned to a sector and to every vector, for all dtypes."""
MARGIN = 0.01
"""Share by which bounds are lowered if rows of a tensor lie along the ranged axis. There the time may fall by up to
0.3 % as rows get longer (tests/unit/templates/cuda/model/test_ranges.py), because of partly used sectors."""
SLAB = 131_072
"""Number of macro choices that are built and bounded together."""

MOST_ROWS, MOST_CLASSES = 100, 200
"""The most macro choices with a split, and the most classes, whose points are listed together. An interval with more
of them is halved."""

Points = NDArray[np.int64]
Floats = NDArray[np.float64]
Macros = NDArray[np.int32]


class RangedTiles:
    """All tilings of a ranged workload, and their times and bounds at any extent.

    Parameters
    ----------
    workload, hardware
        Ranged workload and device.
    """

    def __init__(self, workload: RangedWorkload, hardware: GpuSpec) -> None:
        self.workload, self.hardware = workload, hardware
        self.model = CudaModel(workload.largest, hardware)
        space = self.space = self.model.space
        axes = [*workload.largest.spatial_axes, *workload.largest.reduction_axes]
        self.spatial = [axis.name for axis in workload.largest.spatial_axes]
        self.axes = [axis.name for axis in axes]
        self.first = {name: space.columns.index(f"{name}.{space.levels[name][0]}") for name in self.axes}
        self.num_columns = space.columns.index("unroll") + 1 + len(space.staged)
        self._unroll = space.columns.index("unroll")
        ranged = self.first[workload.axis]
        self._inner = list(range(ranged + 1, ranged + len(space.levels[workload.axis])))
        self._first = ranged
        self.options = [self._options(name) for name in self.axes]
        self.num_macros = int(np.prod([len(table) for table in self.options], dtype=np.float64))
        self._chunk = pack_chunk(self._nest(int(workload.numbers[-1])))
        self._nests: dict[int, NestArrays] = {}

    def _options(self, name: str) -> Points:
        """Return the options of an axis: (grid, threads, results of a thread) or (steps, 1, depth). 0: it varies."""
        is_spatial = name in self.spatial
        if name == self.workload.axis:
            most = min(MOST_TILE if is_spatial else MOST_DEPTH, 1 << (int(self.workload.numbers[-1]) - 1).bit_length())
            threads = range(1, min(most, self.hardware.compute.max_threads_per_block) + 1) if is_spatial else [1]
            rows = [(0, thread, each) for thread in threads for each in range(1, most // thread + 1)]
            return np.array(rows, dtype=np.int64)
        factors: Points = self.space.table(name)
        inner = factors[:, [1, 3, 4]].prod(axis=1) if is_spatial else factors[:, 1:].prod(axis=1)
        thread = factors[:, 2] if is_spatial else np.ones_like(inner)
        options = np.unique(np.column_stack([factors[:, 0], thread, inner]), axis=0)
        return np.asarray(options[options[:, 1] <= self.hardware.compute.max_threads_per_block])

    @cached_property
    def splits(self) -> Points:
        """Rows (split, leftovers, atomic) that occur at any extent; the first row splits nothing."""
        rows = {(1, 0, 0)}
        for extent in {*self.workload.numbers[[0, -1]].tolist(), *_octaves(self.workload.numbers)}:
            part = split_part(self.workload.at(extent), self.hardware, "standard")
            rows |= set(map(tuple, part.table.tolist())) if part is not None else set()
        return np.array(sorted(rows), dtype=np.int64)

    # ---- times and bounds ----------------------------------------------------------------------------------

    def _nest(self, extent: int) -> NestArrays:
        return pack_nest(self.workload.at(extent), staged=bool(self.space.staged), splits=True)

    def run(self, extent: int, points: Points, task: int, *, ignores_edges: bool = False) -> Floats:
        """Return seconds of points at an extent, (num_points,). inf: a rule is broken.

        Parameters
        ----------
        task : int
            `PREDICT`, or a bound.
        ignores_edges : bool
            Leave out the cost of tests at the edges of the ranged axis, so that times do not fall as the extent grows.
        """
        nest = self._nests.get(extent)
        if nest is None:
            nest = self._nests[extent] = self._nest(extent)
        rows = self.fit_to_extent(extent, points)
        if not ignores_edges:
            return self._run(nest, rows, task)
        nest = nest._replace(unguarded=self.axes.index(self.workload.axis))
        seconds = self._run(nest, rows, task)
        aligned = self._align_rows(nest)
        return seconds if aligned is None else np.minimum(seconds, self._run(aligned, rows, task)) * (1.0 - MARGIN)

    def _run(self, nest: NestArrays, rows: Points, task: int) -> Floats:
        rules, times = np.empty(len(rows), dtype=np.int64), np.empty(len(rows))
        none = np.empty((0, 0))
        run_points(rows, task, nest, self.model._gpu, self.model._table, self._chunk, rules, times, none, none)
        legal = (rules == 0) if self.model.refusal is None else np.zeros(len(rows), dtype=bool)
        return np.where(legal, times, np.inf)

    def _align_rows(self, nest: NestArrays) -> NestArrays | None:
        """Return a nest whose rows along the ranged axis are aligned for every vector. None: no rows lie there."""
        tensors = [*self.workload.largest.reads, self.workload.largest.write]
        ranged = [any(term.axis == self.workload.axis for term in a.indices[-1]) for a in tensors if a.indices]
        if not any(ranged):
            return None
        sizes, misaligned = nest.dim_size.copy(), nest.misaligned.copy()
        for tensor, is_ranged in enumerate(ranged):
            if is_ranged:
                last = nest.dim_start[tensor + 1] - 1
                sizes[last] = -(-sizes[last] // ROW) * ROW
                misaligned[tensor] = 0
        return nest._replace(dim_size=sizes, misaligned=misaligned)

    def fit_to_extent(self, extent: int, points: Points) -> Points:
        """Return points with the number of blocks, or of steps, that covers an extent."""
        rows = np.array(points, dtype=np.int64, order="C")
        tile = rows[:, self._inner].prod(axis=1)
        rows[:, self._first] = -(-extent // tile)
        return rows

    # ---- macro choices -------------------------------------------------------------------------------------

    @property
    def num_slabs(self) -> int:
        """Number of slabs of about `SLAB` macro choices that hold all macro choices."""
        return -(-self.num_macros // SLAB)

    def slab(self, number: int) -> Macros:
        """Return one slab of the macro choices, (count, num_axes) int32, without those that have too many threads.

        A slab takes every `num_slabs`-th macro choice, so that the first slab is a fair sample.
        """
        sizes = [len(table) for table in self.options]
        numbers = np.arange(number, self.num_macros, self.num_slabs)
        rows = np.column_stack(np.unravel_index(numbers, sizes)).astype(np.int32)
        threads = np.ones(len(rows), dtype=np.int64)
        for axis in range(len(self.spatial)):
            threads *= self.options[axis][rows[:, axis], 1]
        return np.asarray(rows[threads <= self.hardware.compute.max_threads_per_block])

    def least_time_s(self, extent: int) -> float:
        """Return a time that no program beats at this extent or at a larger one, in seconds."""
        return least_time_s(self.workload.at(extent), self._nest(extent), self.model._gpu)

    def points(self, macros: Macros) -> Points:
        """Return macro choices as points for bounds: all other levels are open."""
        points = np.ones((len(macros), self.num_columns + len(SPLIT_COLUMNS)), dtype=np.int64)
        for number, name in enumerate(self.axes):
            grid, thread, inner = self.options[number][macros[:, number]].T
            first = self.first[name]
            points[:, first] = grid
            if name in self.spatial:
                points[:, first + 2], points[:, first + 4] = thread, inner
            else:
                points[:, first + 2] = inner
        points[:, self._unroll] = self.space.unroll_depths[-1]
        points[:, self.num_columns :] = (1, 0, 0)
        return points

    def bounds(self, extent: int, macros: Macros) -> Floats:
        """Return for each macro choice a time that no program beats at this extent or at a larger one, in seconds."""
        parts = []
        for start in range(0, len(macros), SLAB):
            points = self.points(macros[start : start + SLAB])
            seconds = self.run(extent, points, MACRO_BOUND, ignores_edges=True)
            if len(self.splits) > 1:
                seconds = np.minimum(seconds, self.run(extent, points, ANY_BOUND, ignores_edges=True))
            parts.append(seconds)
        return np.concatenate(parts) if parts else np.empty(0)

    def lowest_times(self, extent: int, last: int, points: Points, task: int) -> Floats:
        """Return times that points do not beat at any extent from `extent` to `last`, in seconds.

        Between two extents the legality of a split may change. Leftovers are illegal at an extent whose blocks fill all
        rounds. A reduction part may have no step. Therefore points with such splits are evaluated at each extent that
        adds a block or a step.
        """
        seconds = self.run(extent, points, task, ignores_edges=True)
        split = -2 if self.workload.axis in self.spatial else -3
        varying = np.flatnonzero(points[:, split] > (0 if split == -2 else 1))
        if not len(varying) or last <= extent:
            return seconds
        tile = points[varying][:, self._inner].prod(axis=1)
        next_extents = -(-extent // tile) * tile + 1
        while len(varying):
            inside = next_extents <= last
            varying, tile, next_extents = varying[inside], tile[inside], next_extents[inside]
            for next_extent in np.unique(next_extents).tolist():
                reached = next_extents == next_extent
                times = self.run(int(next_extent), points[varying[reached]], task, ignores_edges=True)
                seconds[varying[reached]] = np.minimum(seconds[varying[reached]], times)
            next_extents = next_extents + tile
        return seconds

    def split(self, macros: Macros, splits: Points) -> Points:
        """Return the points of each macro choice with each of some splits."""
        rows = np.repeat(self.points(macros), len(splits), axis=0)
        rows[:, self.num_columns :] = np.tile(splits, (len(macros), 1))
        return rows

    def find_rows_below(self, extent: int, last: int, macros: Macros, limit_s: float) -> tuple[Points, Floats]:
        """Return macro choices with each split that may beat a limit between two extents, and their bounds there."""
        kept, bounds = [], []
        step = max(1, SLAB // len(self.splits))
        for start in range(0, len(macros), step):
            rows = self.split(macros[start : start + step], self.splits)
            seconds = self.lowest_times(extent, last, rows, MACRO_BOUND)
            kept.append(rows[seconds < limit_s])
            bounds.append(seconds[seconds < limit_s])
        return np.concatenate(kept), np.concatenate(bounds)

    def expand(self, extent: int, last: int, rows: Points, limit_s: float) -> Points | None:
        """Return all points of macro choices with splits that may beat a limit between two extents. None: too many."""
        rows = rows[self.lowest_times(extent, last, rows, MACRO_BOUND) < limit_s]
        if len(rows) > MOST_ROWS:
            return None
        classes = np.concatenate([rows[:0], *map(self.space.classes, rows)])
        classes = classes[self.lowest_times(extent, last, classes, BOUND) < limit_s]
        if len(classes) > MOST_CLASSES:
            return None
        points = np.concatenate([rows[:0], *map(self.space.members, classes)])
        return points[self.lowest_times(extent, last, points, PREDICT) < limit_s]

    def find_best(self, extent: int, row: Points, limit_s: float) -> tuple[Points | None, float]:
        """Return the fastest point of a macro choice with a split at an extent, and its time; None: above the limit."""
        classes = self.space.classes(row)
        bounds = self.run(extent, classes, BOUND)
        order = np.argsort(bounds, kind="stable")
        best, start = None, 0
        while start < len(order) and bounds[order[start]] < limit_s:
            batch = order[start : start + 8]
            points = np.concatenate([self.space.members(row) for row in classes[batch[bounds[batch] < limit_s]]])
            times = self.run(extent, points, PREDICT)
            if times.min() < limit_s:
                best, limit_s = points[times.argmin()], float(times.min())
            start += 8
        return best, limit_s


def _octaves(numbers: Points) -> list[int]:
    """Return the first extent of each octave of a range."""
    kept, last = [], 0
    for number in numbers.tolist():
        if number >= 2 * last:
            kept.append(number)
            last = number
    return kept
