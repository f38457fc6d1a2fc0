"""The order of CPU points in a ranking, and its first points that are different loop nests."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.space import CpuSpace
from anatune.templates.cpu.times.classes import UNROLLED
from anatune.templates.cpu.times.columns import CpuCol
from anatune.templates.cpu.times.loops import list_loops

__all__ = ["STEP", "FirstPoints", "loop_nest", "loop_nests"]

TIE_SHARE = 1e-3
"""Relative width of a tie step: predicted times in one step of 0.1 % (of their logarithm) are ties."""
STEP = math.log1p(TIE_SHARE)
"""Width of a tie step, as a difference of natural logarithms of times."""
MOST_TIED, TIED_SHARE = 4096, 64
"""Most loop nests in which a distinct ranking looks for different times: MOST_TIED, or TIED_SHARE for each point
wanted.
"""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def tie_keys(model: CpuScoring, points: Integers, raw: Floats) -> Floats:
    """Return the sort keys of points, (num_points, num_keys): rows compare lexicographically.

    `raw` are the quantities from ``model.raw`` for these points.
    """
    space, nest = model.space, model.nest
    steps = np.floor(np.log(raw[:, CpuCol.TIME_S.row]) / STEP)
    size = len(points)
    ones = np.ones(size, dtype=np.int64)

    def column(index: int) -> Integers:
        return points[:, index] if index >= 0 else ones

    kernel = np.column_stack([points[:, c] for c in nest.columns[:, 4]])
    calls = np.column_stack([points[:, c] for c in nest.columns[:, 3]])
    inner = calls * kernel
    for a, pair in enumerate(nest.columns[:, 5].tolist()):
        if pair >= 0:
            is_pair = points[:, pair] > 0
            calls[:, a] = np.where(is_pair, points[:, pair], calls[:, a])
            kernel[:, a] = np.where(is_pair, 0, kernel[:, a])
    middle = inner * np.column_stack([column(c) for c in nest.columns[:, 2].tolist()])
    chunk = middle * np.column_stack([column(c) for c in nest.columns[:, 1].tolist()])
    unroll = np.ones(size)
    for a, axis in enumerate(space.axes):
        if nest.is_reduction[a] and axis != space.simd_axis:
            unroll *= np.ceil(kernel[:, a] / nest.group[1]) if a == nest.group[0] else kernel[:, a]
    packs = np.zeros(size, dtype=np.int64)
    for c, tie in zip(nest.pack_columns.tolist(), nest.pack_ties.tolist(), strict=True):
        if c >= 0:
            packs += tie * points[:, c]
    order = nest.order_columns.tolist()
    parts = [
        steps, packs, points[:, nest.simd[2]], -raw[:, CpuCol.ACCUMULATORS.row],
        np.maximum(unroll, UNROLLED) / np.minimum(unroll, UNROLLED), -inner.astype(float).prod(axis=1),
        inner, calls, kernel, points[:, order[3]],
        -middle.astype(float).prod(axis=1), middle, -chunk.astype(float).prod(axis=1), chunk,
        points[:, order[2]], points[:, order[1]], points[:, order[0]],
    ]  # fmt: skip
    return np.column_stack(parts).astype(np.float64)


def loop_nests(space: CpuSpace, points: Integers) -> list[bytes]:
    """Return a key for the loop nest of each point: it is equal for equal nests with other level names."""
    tables = space.loop_tables
    num_axes = len(tables.columns)
    rows = np.zeros((len(points), 5 * num_axes + 1 + len(tables.flags)), dtype=np.int64)
    list_loops(np.ascontiguousarray(points, dtype=np.int64), *tables, rows)
    return [row.tobytes() for row in rows]


def loop_nest(space: CpuSpace, point: Integers) -> bytes:
    """Return the key of the loop nest of one point."""
    return loop_nests(space, point[None, :])[0]


class FirstPoints:
    """The first points of a ranking, collected in batches. All points of a batch follow those of the batch before.

    Of points with the same loop nest only the first one counts. In a distinct ranking, only the first one of each time
    counts.

    Parameters
    ----------
    count : int
        Number of points wanted.
    distinct : bool
        Collect one point of each predicted time.
    """

    def __init__(self, model: CpuScoring, count: int, *, distinct: bool = False) -> None:
        self._model, self.count, self._distinct = model, count, distinct
        self._most = max(MOST_TIED, TIED_SHARE * count) if distinct else math.inf
        self._nests: set[bytes] = set()
        self._num_of: dict[float, int] = {}
        self._taken: list[Integers] = []
        self.size = 0

    @property
    def is_full(self) -> bool:
        """True if there are enough points, or too many loop nests of the same few times."""
        return self.size >= self.count or len(self._nests) >= self._most

    @property
    def share(self) -> float:
        """Number of points so far, relative to the number wanted."""
        return self.size / self.count

    @property
    def points(self) -> Integers:
        """The points so far, in order: (size, num_columns) int64."""
        columns = len(self._model.space.columns)
        return np.concatenate([np.empty((0, columns), dtype=np.int64), *self._taken])

    @property
    def num_alike(self) -> Integers | None:
        """Number of other loop nests with the time of each point, (size,), for a distinct ranking; a lower bound."""
        return np.array(list(self._num_of.values()), dtype=np.int64) - 1 if self._distinct else None

    def take(self, points: Integers, step: float | None = None, ends: Integers | None = None) -> None:
        """Add the points of a batch that belong to the first ones.

        Parameters
        ----------
        points : (num_points, num_columns) int64
            Legal points, in any order.
        step : float, optional
            Take points of this tie step only.
        ends : (num_ends, num_columns) int64, optional
            Take points only up to the first of these in the order of the tie step.
        """
        raw = self._model.raw(points)
        keys = tie_keys(self._model, points, raw)
        is_candidate = np.ones(len(points), dtype=bool) if step is None else keys[:, 0] == step
        if ends is not None:
            end = min(tuple(key[1:]) for key in tie_keys(self._model, ends, self._model.raw(ends)).tolist())
            is_candidate &= [tuple(key[1:]) <= end for key in keys.tolist()]
        order = np.flatnonzero(is_candidate)
        order = order[np.lexsort(keys[order].T[::-1])]
        points, times = points[order], raw[order, CpuCol.TIME_S.row].tolist()
        chosen = []
        for index, nest in enumerate(loop_nests(self._model.space, points)):
            if nest in self._nests:
                continue
            self._nests.add(nest)
            if not self._distinct or times[index] not in self._num_of:
                chosen.append(index)
                self.size += 1
            if self._distinct:
                self._num_of[times[index]] = self._num_of.get(times[index], 0) + 1
            if self.is_full:
                break
        self._taken.append(points[chosen])
