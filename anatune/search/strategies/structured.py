"""Structured random search: uniform random choices of good microkernels, then of tilings around them.

Source: [TACO22] Sec. 4 and Sec. 6.1: microkernels that reach 80 % of the peak, chosen uniformly; a loop of the
reduction around them; factors for the other levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anatune.search.points import Floats, Integers, SeenPrograms, count_predecessors
from anatune.search.strategy import SequenceStrategy

_CHUNK = 2048
_BARREN = 12
"""Number of chunks without a new program after which the space counts as exhausted."""
_ARITHMETIC = ("fma_s", "mma_s")
_ISSUING = (*_ARITHMETIC, "issue_s", "latency_s", "load_s", "shared_s", "spill_s")
"""Parts of a prediction that depend on the microkernel; their maximum is its shortest possible time."""


class StructuredStrategy(SequenceStrategy):
    """Random points of the structured space; the strategy does not learn from trials.

    As published: a uniform microkernel, then a uniform tiling. From the model's ranking: its first point, then one
    point of each drawn microkernel in turn, the best predicted of several tilings, best predicted first.

    Microkernels are good if they were measured to be, where the CPU's spec has measurements (``anatune hw calibrate``).

    Deviations: otherwise the model tells which are good; on a GPU the microkernel is a thread's register tile. Pairs
    are the balanced ones (`cpu.microkernels` explains what is left out). Tilings are drawn from the levels of the
    space, whose loop orders replace the paper's permutations.
    """

    efficiency = 0.8
    """Smallest share of the best microkernel's speed that a microkernel must reach. Source: [TACO22] Sec. 4.1: 0.8."""
    choices = 16
    """Number of tilings that are drawn for each proposal, which is the best predicted of them; as published: one."""

    def sequence(self) -> Iterator[Integers]:
        """Yield the points."""
        met = SeenPrograms(self.model)
        if not self.as_published:
            for point in self.ranked[:1]:
                if met.add(point):
                    yield point
        chunk = barren = 0
        best = 0.0
        while barren < _BARREN:
            points = self._draw(chunk)
            efficiency = self._efficiency(points)
            best = max(best, float(efficiency.max(initial=0.0)))
            points = points[efficiency >= self.efficiency * best]
            barren, chunk = barren + 1, chunk + 1
            for point in self._in_turns(points, chunk):
                if met.add(point):
                    barren = 0
                    yield point
        rng = np.random.default_rng([self.seed, chunk])  # the space may contain no other good microkernel
        for point in self.space.sample_points(_CHUNK, int(rng.integers(1 << 31))):
            if met.add(point):
                yield point

    def _draw(self, chunk: int) -> Integers:
        """Return legal points: along each axis a uniform innermost tile, then a uniform tiling with it."""
        rng = np.random.default_rng([self.seed, chunk])
        space = self.space
        if space.listed is not None:
            return space.listed[rng.permutation(space.size)]
        microkernels = [space.microkernel(axis) for axis in space.axes]
        if None in microkernels:
            return space.sample_points(_CHUNK, int(rng.integers(1 << 31)))
        genes = np.column_stack([rng.integers(0, radix, _CHUNK) for radix in space.radices])
        for number, (microkernel, part) in enumerate(zip(microkernels, space.parts, strict=False)):
            tiles = _products(part.table, part.columns, microkernel or ())
            kernels, of_row = np.unique(tiles, axis=0, return_inverse=True)
            order = np.argsort(of_row.reshape(-1), kind="stable")
            counts = np.bincount(of_row.reshape(-1), minlength=len(kernels))
            chosen = rng.integers(0, len(kernels), _CHUNK)
            first = (np.cumsum(counts) - counts)[chosen]
            genes[:, number] = order[first + (rng.random(_CHUNK) * counts[chosen]).astype(np.int64)]
        points = space.decode(genes)
        legal: Integers = points[self.model.check(points) == 0]
        return legal

    def _efficiency(self, points: Integers) -> Floats:
        """Return the share of the peak that a point's microkernel reaches if nothing else limits it."""
        if not len(points):
            return np.empty(0)
        measured = self.space.microkernel_shares(points)
        if measured is not None and measured.any():  # otherwise use the model
            return measured
        columns = self.model.evaluate(points).columns
        issuing = [columns[name] for name in _ISSUING if name in columns]
        if "core_s" in columns:  # on a CPU, spills are part of this time only
            issuing.append(columns["core_s"] - columns["overhead_s"])
        if not issuing:  # the template's model has no such parts
            return np.ones(len(points))
        parts = np.max(issuing, axis=0)
        result: Floats = sum(columns[name] for name in _ARITHMETIC if name in columns) / np.maximum(parts, 1e-30)
        return result * self.space.lane_shares(points)

    def _kernel_ids(self, points: Integers) -> Integers:
        """Return a number for each point; points with equal microkernels have equal numbers."""
        space = self.space
        kernels = [space.microkernel(axis) for axis in space.axes]
        inner = [((f"{axis}.{space.levels[axis][-1]}",),) for axis in space.axes]
        groups = [group for one, other in zip(kernels, inner, strict=True) for group in (other if one is None else one)]
        tiles = _products(points, space.columns, groups)
        return np.unique(tiles, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _in_turns(self, points: Integers, chunk: int) -> Integers:
        """Return points in rounds with one of each microkernel; unless as published, the best predicted of several."""
        if not len(points):
            return points
        rng = np.random.default_rng([self.seed, chunk, 1])
        points = points[rng.permutation(len(points))]
        ids = self._kernel_ids(points)
        ids = rng.permutation(int(ids.max()) + 1)[ids]
        turns = count_predecessors(ids)
        if not self.as_published:
            times = self.model.times(points)[0]
            order = np.lexsort((times, turns // self.choices, ids))
            points, ids = points[order], ids[order]
            turns = count_predecessors(ids)
            kept = turns % self.choices == 0
            points, turns = points[kept], turns[kept]
            return points[np.lexsort((self.model.times(points)[0], turns))]
        return points[np.lexsort((ids, turns))]


def _products(rows: Integers, columns: Sequence[str], groups: Sequence[Sequence[str]]) -> Integers:
    """Return the product of each group of columns, (num_rows, num_groups); zeros if there is no group."""
    if not groups:
        return np.zeros((len(rows), 1), dtype=np.int64)
    return np.column_stack([rows[:, [columns.index(name) for name in group]].prod(axis=1) for group in groups])
