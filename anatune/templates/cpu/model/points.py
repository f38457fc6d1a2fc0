"""Expansion of the nodes that `cpu.model.search` found into the first points of a CPU space."""

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
"""Points of a tie step that are sorted together: _BATCH, and _BATCH_SHARE for each point wanted."""
_LEAST = 64
"""Points that are written even if the time is up, if so many are wanted."""

Integers = NDArray[np.int64]


class PointWriter:
    """Passes points to `first`, one tie step after another, until it is full.

    Parameters
    ----------
    search
        The search with the nodes.
    first
        The collector of the points. It can already have those of earlier steps.
    step : float
        First tie step to write.

    Attributes
    ----------
    step : float
        If the nodes did not suffice, the tie step at which they ended: start here again with more nodes.
    """

    def __init__(self, search: Search, first: FirstPoints, watch: Watch, step: float = -math.inf) -> None:
        self.step = step
        self._search, self._first, self._watch = search, first, watch
        self._limit = _BATCH + _BATCH_SHARE * first.count
        self._completions: Integers = np.empty((self._limit, 5), dtype=np.int64)
        nodes = search.heap[: search.count]
        self._nodes = nodes[np.lexsort(nodes[:, 1:].T[::-1])]  # in the order of points within a tie step
        alike = (self._nodes[1:, 1:-1] == self._nodes[:-1, 1:-1]).all(axis=1)
        self._group = np.concatenate([[False], ~alike]).cumsum()  # points of nodes of one group interleave
        self._following = np.maximum(self._nodes[:, KEY_TIE], step)  # tie step of the next points of each node
        self._pending: list[Integers] = []

    def run(self) -> bool:
        """Write points; return whether the nodes and the time sufficed."""
        nodes, search = self._nodes, self._search
        if not len(nodes):
            return True
        last = int(np.lexsort(nodes.T[::-1])[-1])
        # a full heap has dropped the nodes after the last one
        end = float(nodes[last, KEY_TIE]) if search.count == len(search.heap) else math.inf
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
        """Return whether the time is up and there are enough points, including pending ones."""
        if not self._watch.is_over:
            return False
        return self._first.size + sum(map(len, self._pending)) >= min(_LEAST, self._first.count)

    def _write_step(self, ready: Integers) -> None:
        """Write the points of some nodes in one tie step."""
        for members in np.split(ready, np.flatnonzero(np.diff(self._group[ready])) + 1):
            limit = self._limit
            ends = self._complete(members, limit)
            while ends:  # a node was cut: its next points can precede those of other nodes
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
        """Add the completions of the nodes of a group in this step; return the last one of each node cut at `limit`."""
        if len(self._completions) < limit:
            self._completions = np.empty((limit, 5), dtype=np.int64)
        search, ends = self._search, []
        for node_number in members.tolist():
            node = self._nodes[node_number]
            search_class = search.classes[int(node[-1])]
            count, later_s = complete(
                search.model.nest, search.model.machine, search_class, node, self.step, self._completions[:limit]
            )
            rows = np.column_stack([np.full(count, node_number), self._completions[:count]])
            self._pending.append(rows)
            if count == limit:
                ends.append(rows[-1])
            elif later_s < math.inf:
                self._following[node_number] = max(self.step + 1.0, math.floor(math.log(later_s) / STEP - 1e-9))
            else:
                self._following[node_number] = math.inf
        return ends

    def _take(self, ends: Integers | None = None) -> None:
        """Pass the pending points on, up to the first of the `ends`."""
        if any(map(len, self._pending)):
            points = self._points(np.concatenate(self._pending))
            self._first.take(points, self.step, None if ends is None else self._points(ends))
        self._pending.clear()

    def _points(self, rows: Integers) -> Integers:
        """Return the points of completions, whose rows are node, L2 tile, chunk, and the orders of l2, l3 and outer."""
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
        for level, entry in ((2, 3), (1, 4), (0, 5)):
            points[:, orders[level]] = rows[:, entry]
        classes = self._search.classes
        packed = np.array([member.tiles.caches.packed for member in classes])[nodes[:, -1]]
        for x, column in enumerate(nest.pack_columns.tolist()):
            if column >= 0:
                points[:, column] = packed[:, x]
        points[:, nest.simd[2]] = np.array([member.parallel for member in classes])[nodes[:, -1]]
        return points
