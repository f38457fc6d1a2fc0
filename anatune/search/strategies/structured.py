"""Structured random search: uniform draws from good microkernels, then uniform tilings around them.

Source: [TACO22] Sec. 4 and Sec. 6.1: microkernels that reach 80 % of the peak, chosen uniformly; a loop of the
reduction around them; factors for the other levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from anatune.search.points import Seen
from anatune.search.sequence import SequenceStrategy
from anatune.search.table import TableSpace

__all__ = ["StructuredOptions", "StructuredStrategy"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_CHUNK = 2048
_BARREN = 12
"""Draws of a chunk without a new program after which the space counts as used up."""
_ARITHMETIC = ("fma_s", "mma_s")
_ISSUING = (*_ARITHMETIC, "issue_s", "latency_s", "load_s", "shared_s", "spill_s")
"""Parts of a prediction that depend on the microkernel: their maximum is what it takes at best."""


class StructuredOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the strategy "structured".

    Attributes
    ----------
    efficiency : float
        Microkernels count that reach this share of the best one's speed. Source: [TACO22] Sec. 4.1: 0.8.
    choices : int
        Tilings that are drawn for each question, of which the best predicted is asked; as published: one.
    """

    efficiency: Annotated[float, Meta(gt=0, le=1)] = 0.8
    choices: Annotated[int, Meta(ge=1)] = 16


class StructuredStrategy(SequenceStrategy):
    """Random draws from the structured space; learns nothing from trials.

    As published: a microkernel uniformly, then a tiling uniformly. From the model's ranking: its first point; then a
    turn of all microkernels that were drawn, each with the best predicted of several tilings, best predicted first.

    Deviates: the model says which microkernels are good, not a run of each of them ([TACO22] measures them offline);
    on a GPU the microkernel is a thread's register tile. Tilings are drawn from the space's levels, whose loop orders
    stand for the paper's permutations.
    """

    options_type: ClassVar[type[msgspec.Struct]] = StructuredOptions

    def sequence(self) -> Iterator[NDArray[np.int64]]:
        """Yield the points."""
        met = Seen(self._model)
        if not self._as_published:
            ranked = self._ranked if self._ranked is not None else self._model.rank(16).points
            for point in np.asarray(ranked)[:1]:
                if met.add(point):
                    yield point
        chunk = barren = 0
        best = 0.0
        while barren < _BARREN:
            points = self._draw(chunk)
            efficiency = self._efficiency(points)
            best = max(best, float(efficiency.max(initial=0.0)))
            points = points[efficiency >= self._options.efficiency * best]
            barren, chunk = barren + 1, chunk + 1
            for point in self._one_of_each(points, chunk):
                if met.add(point):
                    barren = 0
                    yield point
        rng = np.random.default_rng([self._seed, chunk])  # a space this small may hold nothing else that is good
        for point in self._space.sample_points(_CHUNK, int(rng.integers(1 << 31))):
            if met.add(point):
                yield point

    def _draw(self, chunk: int) -> Integers:
        """Return legal points: along each axis a uniform innermost tile, then a uniform tiling with it."""
        rng = np.random.default_rng([self._seed, chunk])
        space = self._space
        if isinstance(space, TableSpace):
            return space.points[rng.permutation(space.size)]
        kernels_of = [kernels for axis in space.axes if (kernels := space.microkernels(axis)) is not None]
        if len(kernels_of) < len(space.axes):
            return space.sample_points(_CHUNK, int(rng.integers(1 << 31)))
        genes = np.column_stack([rng.integers(0, radix, _CHUNK) for radix in space.radices])
        for number, listed in enumerate(kernels_of):
            kernels, of_row = np.unique(listed, axis=0, return_inverse=True)
            order = np.argsort(of_row.reshape(-1), kind="stable")
            counts = np.bincount(of_row.reshape(-1), minlength=len(kernels))
            chosen = rng.integers(0, len(kernels), _CHUNK)
            first = (np.cumsum(counts) - counts)[chosen]
            genes[:, number] = order[first + (rng.random(_CHUNK) * counts[chosen]).astype(np.int64)]
        points = space.decode(genes)
        legal: Integers = points[self._model.check(points) == 0]
        return legal

    def _efficiency(self, points: Integers) -> Floats:
        """Return the share of the peak that a point's microkernel reaches when nothing else limits it."""
        if not len(points):
            return np.empty(0)
        columns = self._model.evaluate(points).columns
        issuing = [columns[name] for name in _ISSUING if name in columns]
        if not issuing:  # a template whose model does not say so
            return np.ones(len(points))
        parts = np.max(issuing, axis=0)
        result: Floats = sum(columns[name] for name in _ARITHMETIC if name in columns) / np.maximum(parts, 1e-30)
        return result

    def _kernel_ids(self, points: Integers) -> Integers:
        """Return a number for each point that is equal where the microkernels are."""
        space = self._space
        column = {name: at for at, name in enumerate(space.columns)}
        parts = []
        for axis in space.axes:
            levels = space.levels[axis]
            if len(levels) == 5 and levels[0] == "block":
                parts.append(points[:, [column[f"{axis}.{level}"] for level in (levels[1], *levels[3:])]].prod(axis=1))
            elif levels[0] != "k0":
                parts.append(points[:, column[f"{axis}.{levels[-1]}"]])
                if f"pair.{axis}" in column:
                    parts.append(points[:, column[f"pair.{axis}"]])
        if not parts:
            return np.zeros(len(points), dtype=np.int64)
        return np.unique(np.column_stack(parts), axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)

    def _one_of_each(self, points: Integers, chunk: int) -> Integers:
        """Return points in turns, one of each microkernel a turn; the best predicted of several unless as published."""
        if not len(points):
            return points
        rng = np.random.default_rng([self._seed, chunk, 1])
        points = points[rng.permutation(len(points))]
        ids = self._kernel_ids(points)
        ids = rng.permutation(int(ids.max()) + 1)[ids]
        turns = _occurrence(ids)
        if not self._as_published:
            times = self._model.times(points)[0]
            order = np.lexsort((times, turns // self._options.choices, ids))
            points, ids = points[order], ids[order]
            turns = _occurrence(ids)
            kept = turns % self._options.choices == 0
            points, turns = points[kept], turns[kept]
            return points[np.lexsort((self._model.times(points)[0], turns))]
        return points[np.lexsort((ids, turns))]


def _occurrence(ids: Integers) -> Integers:
    """Return for each entry how many equal ones stand before it."""
    order = np.argsort(ids, kind="stable")
    counts = np.bincount(ids)
    result = np.empty(len(ids), dtype=np.int64)
    result[order] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return result
