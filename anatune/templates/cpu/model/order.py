"""Order of points of the CPU space in a ranking, and the first ones of it that are different loop nests."""

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
"""Predicted times within the same step of 0.1 % (of their logarithm) are ties."""
STEP = math.log1p(TIE_SHARE)
"""Logarithm of the ratio of neighbouring tie steps."""
MOST_TIED, TIED_SHARE = 4096, 64
"""Loop nests that a distinct ranking looks at to find points of different times: so many, or so many for each one."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def tie_keys(model: CpuScoring, points: Integers, raw: Floats) -> Floats:
    """Return the sort keys of `points`, (num_points, num_columns) int64: rows compare lexicographically.

    `raw` is what ``model.raw`` says of them.
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
    """Return what each point's program looks like, whatever its levels are called: equal where the loop nests are."""
    tables = space.loop_tables
    num_axes = len(tables.columns)
    rows = np.zeros((len(points), 5 * num_axes + 1 + len(tables.flags)), dtype=np.int64)
    list_loops(np.ascontiguousarray(points, dtype=np.int64), *tables, rows)
    return [row.tobytes() for row in rows]


def loop_nest(space: CpuSpace, point: Integers) -> bytes:
    """Return the same for one point."""
    return loop_nests(space, point[None, :])[0]


class FirstPoints:
    """The first points of a ranking, taken in batches: a batch has nothing that comes before the last one's.

    Of points that describe the same loop nest the first one counts; of a distinct ranking, those of another time, too.

    Parameters
    ----------
    count : int
        Points wanted.
    distinct : bool
        One of each predicted time.
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
        """Whether nothing more is wanted: enough points, or too many of the same few times."""
        return self.size >= self.count or len(self._nests) >= self._most

    @property
    def share(self) -> float:
        """Share of the points wanted that are there."""
        return self.size / self.count

    @property
    def points(self) -> Integers:
        """The points so far, in order: (size, num_columns) int64."""
        columns = len(self._model.space.columns)
        return np.concatenate([np.empty((0, columns), dtype=np.int64), *self._taken])

    @property
    def num_alike(self) -> Integers | None:
        """Other loop nests met of each point's time, (size,), of a distinct ranking: there may be more."""
        return np.array(list(self._num_of.values()), dtype=np.int64) - 1 if self._distinct else None

    def take(self, points: Integers, step: float | None = None, ends: Integers | None = None) -> None:
        """Take the points of a batch that are wanted.

        Parameters
        ----------
        points : (num_points, num_columns) int64
            Legal ones, in any order.
        step : float, optional
            Take only those of this tie step.
        ends : (num_ends, num_columns) int64, optional
            Take only those that do not come behind one of these within their step.
        """
        raw = self._model.raw(points)
        keys = tie_keys(self._model, points, raw)
        inside = np.ones(len(points), dtype=bool) if step is None else keys[:, 0] == step
        if ends is not None:
            end = min(tuple(key[1:]) for key in tie_keys(self._model, ends, self._model.raw(ends)).tolist())
            inside &= [tuple(key[1:]) <= end for key in keys.tolist()]
        order = np.flatnonzero(inside)
        order = order[np.lexsort(keys[order].T[::-1])]
        points, times = points[order], raw[order, CpuCol.TIME_S.row].tolist()
        chosen = []
        for at, nest in enumerate(loop_nests(self._model.space, points)):
            if nest in self._nests:
                continue
            self._nests.add(nest)
            if not self._distinct or times[at] not in self._num_of:
                chosen.append(at)
                self.size += 1
            if self._distinct:
                self._num_of[times[at]] = self._num_of.get(times[at], 0) + 1
            if self.is_full:
                break
        self._taken.append(points[chosen])
