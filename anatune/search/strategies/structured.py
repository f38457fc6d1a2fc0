"""Structured random search: uniform draws from good microkernels, then uniform tilings around them.

Source: [TACO22] Sec. 4 and Sec. 6.1: microkernels that reach 80 % of the peak, chosen uniformly; a loop of the
reduction around them; factors for the other levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anatune.search.points import Floats, Integers, Seen, occurrence
from anatune.search.strategy import SequenceStrategy

_CHUNK = 2048
_BARREN = 12
"""Draws of a chunk without a new program after which the space counts as used up."""
_ARITHMETIC = ("fma_s", "mma_s")
_ISSUING = (*_ARITHMETIC, "issue_s", "latency_s", "load_s", "shared_s", "spill_s")
"""Parts of a prediction that depend on the microkernel: their maximum is what it takes at best."""


class StructuredStrategy(SequenceStrategy):
    """Random draws from the structured space; learns nothing from trials.

    As published: a microkernel uniformly, then a tiling uniformly. From the model's ranking: its first point; then a
    turn of all microkernels that were drawn, each with the best predicted of several tilings, best predicted first.

    Microkernels are good that were measured to be, where the CPU's spec has that (``anatune hw calibrate``).

    Deviates: elsewhere the model says which are good; on a GPU the microkernel is a thread's register tile. Pairs are
    the balanced ones (`cpu.microkernels` says what that leaves out). Tilings are drawn from the space's levels, whose
    loop orders stand for the paper's permutations.
    """

    efficiency = 0.8
    """Microkernels count that reach this share of the best one's speed. Source: [TACO22] Sec. 4.1: 0.8."""
    choices = 16
    """Tilings that are drawn for each question, of which the best predicted is asked; as published: one."""

    def sequence(self) -> Iterator[Integers]:
        """Yield the points."""
        met = Seen(self.model)
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
        rng = np.random.default_rng([self.seed, chunk])  # a space this small may hold nothing else that is good
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
        """Return the share of the peak that a point's microkernel reaches when nothing else limits it."""
        if not len(points):
            return np.empty(0)
        measured = self.space.microkernel_shares(points)
        if measured is not None and measured.any():  # else the model knows the best of those that are not good
            return measured
        columns = self.model.evaluate(points).columns
        issuing = [columns[name] for name in _ISSUING if name in columns]
        if "core_s" in columns:  # of a CPU: with what is spilled, which is no part of its own
            issuing.append(columns["core_s"] - columns["overhead_s"])
        if not issuing:  # a template whose model does not say so
            return np.ones(len(points))
        parts = np.max(issuing, axis=0)
        result: Floats = sum(columns[name] for name in _ARITHMETIC if name in columns) / np.maximum(parts, 1e-30)
        return result * self.space.lane_shares(points)

    def _kernel_ids(self, points: Integers) -> Integers:
        """Return a number for each point that is equal where the microkernels are."""
        space = self.space
        found = [space.microkernel(axis) for axis in space.axes]
        inner = [((f"{axis}.{space.levels[axis][-1]}",),) for axis in space.axes]
        groups = [group for one, other in zip(found, inner, strict=True) for group in (other if one is None else one)]
        tiles = _products(points, space.columns, groups)
        return np.unique(tiles, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _in_turns(self, points: Integers, chunk: int) -> Integers:
        """Return points in turns, one of each microkernel a turn; the best predicted of several unless as published."""
        if not len(points):
            return points
        rng = np.random.default_rng([self.seed, chunk, 1])
        points = points[rng.permutation(len(points))]
        ids = self._kernel_ids(points)
        ids = rng.permutation(int(ids.max()) + 1)[ids]
        turns = occurrence(ids)
        if not self.as_published:
            times = self.model.times(points)[0]
            order = np.lexsort((times, turns // self.choices, ids))
            points, ids = points[order], ids[order]
            turns = occurrence(ids)
            kept = turns % self.choices == 0
            points, turns = points[kept], turns[kept]
            return points[np.lexsort((self.model.times(points)[0], turns))]
        return points[np.lexsort((ids, turns))]


def _products(rows: Integers, columns: Sequence[str], groups: Sequence[Sequence[str]]) -> Integers:
    """Return the product of each group of columns, (num_rows, num_groups); zeros where there is no group."""
    if not groups:
        return np.zeros((len(rows), 1), dtype=np.int64)
    return np.column_stack([rows[:, [columns.index(name) for name in group]].prod(axis=1) for group in groups])
