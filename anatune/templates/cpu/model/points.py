"""Writes out the first points of a CPU space from the nodes that `cpu.model.search` found."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.watch import Watch
from anatune.templates.cpu.model.order import STEP, FirstPoints
from anatune.templates.cpu.model.search import Search
from anatune.templates.cpu.times.classes import KEY_TIE, KEY_TILES
from anatune.templates.cpu.times.complete import complete

__all__ = ["PointWriter"]

_BATCH, _BATCH_SHARE = 256, 4
"""Points of a tie step that are put in order at once: so many, and so many for each one wanted."""
_LEAST = 64
"""Points that are written although the time is up, if so many are wanted."""

Integers = NDArray[np.int64]


class PointWriter:
    """Gives points to `first`, tie step by tie step, until it is full.

    Parameters
    ----------
    search
        Where the nodes come from.
    first
        What takes the points; it may have those of earlier steps already.
    step : float
        Tie step to begin with.

    Attributes
    ----------
    step : float
        Tie step where the nodes ended, if they did not suffice: one to go on with when there are more of them.
    """

    def __init__(self, search: Search, first: FirstPoints, watch: Watch, step: float = -math.inf) -> None:
        self.step = step
        self._search, self._first, self._watch = search, first, watch
        self._limit = _BATCH + _BATCH_SHARE * first.count
        self._found: Integers = np.empty((self._limit, 5), dtype=np.int64)
        nodes = search.heap[: search.count]
        self._nodes = nodes[np.lexsort(nodes[:, 1:].T[::-1])]  # the order of points within a tie step
        alike = (self._nodes[1:, 1:-1] == self._nodes[:-1, 1:-1]).all(axis=1)
        self._group = np.concatenate([[False], ~alike]).cumsum()  # nodes of one group: their points mix
        self._following = np.maximum(self._nodes[:, KEY_TIE], step)  # tie step of a node's next points
        self._pending: list[Integers] = []

    def run(self) -> bool:
        """Write; return whether the nodes and the time sufficed."""
        nodes, search = self._nodes, self._search
        if not len(nodes):
            return True
        last = int(np.lexsort(nodes.T[::-1])[-1])
        end = float(nodes[last, KEY_TIE]) if search.count == len(search.heap) else math.inf  # later nodes were left out
        while not self._first.is_full:
            self.step = min(float(self._following.min()), end)
            if math.isinf(self.step):
                return True
            ready = np.flatnonzero(self._following <= self.step)
            self._write_step(ready[ready <= last] if self.step == end else ready)
            if self._first.is_full:
                return True
            if self.step == end or self._is_over():
                return False
            self._watch.report(self._first.share)
        return True

    def _is_over(self) -> bool:
        """Whether the time is up, and enough points are there or wait to be taken."""
        if not self._watch.is_over:
            return False
        return self._first.size + sum(map(len, self._pending)) >= min(_LEAST, self._first.count)

    def _write_step(self, ready: Integers) -> None:
        """Give the points of some nodes in one tie step."""
        for members in np.split(ready, np.flatnonzero(np.diff(self._group[ready])) + 1):
            limit = self._limit
            ends = self._complete(members, limit)
            while ends:  # behind the end of a node that was cut there may be more before the points of others
                self._take(np.array(ends))
                if self._first.is_full or self._is_over():
                    return
                limit *= 4
                ends = self._complete(members, limit)
            if sum(map(len, self._pending)) >= self._limit or self._is_over():
                self._take()
                if self._first.is_full or self._is_over():
                    return
        self._take()

    def _complete(self, members: Integers, limit: int) -> list[Integers]:
        """Add the completions of a group's nodes in the present step; return the last ones of nodes cut at `limit`."""
        if len(self._found) < limit:
            self._found = np.empty((limit, 5), dtype=np.int64)
        search, ends = self._search, []
        for at in members.tolist():
            node = self._nodes[at]
            own = search.classes[int(node[-1])]
            count, later_s = complete(
                search.model.nest, search.model.machine, own, node, self.step, self._found[:limit]
            )
            rows = np.column_stack([np.full(count, at), self._found[:count]])
            self._pending.append(rows)
            if count == limit:
                ends.append(rows[-1])
            elif later_s < math.inf:
                self._following[at] = max(self.step + 1.0, math.floor(math.log(later_s) / STEP - 1e-9))
            else:
                self._following[at] = math.inf
        return ends

    def _take(self, ends: Integers | None = None) -> None:
        """Give what is pending, up to the first of the `ends`."""
        if any(map(len, self._pending)):
            points = self._points(np.concatenate(self._pending))
            self._first.take(points, self.step, None if ends is None else self._points(ends))
        self._pending.clear()

    def _points(self, rows: Integers) -> Integers:
        """Return the points of completions: node, L2 tile, chunk, orders of l2, l3 and outer."""
        model, tiles = self._search.model, self._search.lattice.tiles
        space, nest = model.space, model.nest
        num_axes = len(space.axes)
        nodes = self._nodes[rows[:, 0]].astype(np.int64)
        middle, chunk = tiles[rows[:, 1]], tiles[rows[:, 2]]
        points = np.zeros((len(rows), len(space.columns)), dtype=np.int64)
        for a in range(num_axes):
            inner, calls, kernel = (nodes[:, KEY_TILES + part * num_axes + a] for part in range(3))
            is_pair = kernel == 0
            columns = nest.columns[a].tolist()
            if columns[0] >= 0:
                points[:, columns[0]] = nest.extents[a] // chunk[:, a]
            if columns[1] >= 0:
                points[:, columns[1]] = chunk[:, a] // middle[:, a]
            points[:, columns[2]] = middle[:, a] // inner
            points[:, columns[3]] = np.where(is_pair, 1, calls)
            points[:, columns[4]] = np.where(is_pair, inner, kernel)
            if columns[5] >= 0:
                points[:, columns[5]] = np.where(is_pair, calls, 0)
        orders = nest.order_columns.tolist()
        points[:, orders[3]] = nodes[:, KEY_TILES + 3 * num_axes]
        for level, place in ((2, 3), (1, 4), (0, 5)):
            points[:, orders[level]] = rows[:, place]
        classes = self._search.classes
        packed = np.array([own.tiles.caches.packed for own in classes])[nodes[:, -1]]
        for x, column in enumerate(nest.pack_columns.tolist()):
            if column >= 0:
                points[:, column] = packed[:, x]
        points[:, nest.simd[2]] = np.array([own.parallel for own in classes])[nodes[:, -1]]
        return points
