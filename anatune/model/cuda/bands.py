"""Every point of the GPU space that is not slower than a limit: what a ranking of very many points is made of.

`ranking` keeps the k best points and sorts them anew whenever one comes in, which is meant for k of hundreds. Here
the limit is given, points are collected as they come and sorted once: 30,000 points take a second instead of minutes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from anatune.core.space.cuda import GpuSpace
from anatune.model.base import Progress
from anatune.model.cuda.model import GpuModel
from anatune.model.cuda.pipelined import PipelinedModel
from anatune.model.cuda.ranking import EXHAUSTIVE_POINTS, SLAB_POINTS, _Best, _BranchAndBound, _tie_keys
from anatune.model.watch import Watch

__all__ = ["points_within"]

_BOUNDING = 0.5
"""Share of the work that bounding the tile choices counts as, before points are collected."""

Points = NDArray[np.int64]
Times = NDArray[np.float64]


class _Within(_Best):
    """All points of a time up to a fixed limit, in the place of the k best."""

    def __init__(self, space: GpuSpace, limit_s: float) -> None:
        super().__init__(space, 1, False)
        self._limit_s = limit_s
        self._found: list[tuple[Points, Times]] = []

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def add(self, points: Points, times: Times) -> None:
        inside = times <= self._limit_s
        if inside.any():
            self._found.append((points[inside], times[inside]))

    def sorted(self) -> tuple[Points, Times]:
        """Return the points and their times in ranking order, each point once."""
        if not self._found:
            return self.points, self.times
        points, first = np.unique(np.concatenate([p for p, _ in self._found]), axis=0, return_index=True)
        times = np.concatenate([t for _, t in self._found])[first]
        order = np.lexsort((*_tie_keys(points, self._space), times))
        return points[order], times[order]


def points_within(model: GpuModel, limit_s: float, progress: Progress | None = None) -> tuple[Points, Times]:
    """Return every legal point of a predicted time up to `limit_s`, and the times, in the order of ``model.rank``."""
    watch = Watch(progress=progress)
    if isinstance(model, PipelinedModel):
        share = 1.0 / len(model._variants)
        found = [
            (key, *points_within(variant, limit_s, watch.part(share * number, share * (number + 1)).report))
            for number, (key, variant) in enumerate(model._variants.items())
        ]
        points = np.concatenate([np.column_stack([p, np.tile(key, (len(p), 1))]) for key, p, _ in found])
        times = np.concatenate([t for _, _, t in found])
        order = np.argsort(times, kind="stable")
        return points[order].astype(np.int64), times[order]
    space, within = model.space, _Within(model.space, limit_s)
    if space.size > EXHAUSTIVE_POINTS:
        search = _BranchAndBound(model, within, math.inf, watch.part(0.0, _BOUNDING).report)
        bounds, numbers, _ = search._bound_all(np.zeros(len(model.rules) + 1))
        chosen = numbers[bounds <= limit_s]
        for done, number in enumerate(chosen.tolist()):
            search._refine(number)
            watch.report(_BOUNDING + (1.0 - _BOUNDING) * (done + 1) / len(chosen))
        return within.sorted()
    for start in range(0, space.size, SLAB_POINTS):
        rows = np.arange(start, min(start + SLAB_POINTS, space.size))
        slab = space.decode(np.column_stack(np.unravel_index(rows, space.radices)).astype(np.int64))
        times, rules = model.times(slab)
        within.add(slab[rules == 0], times[rules == 0])
        watch.report((int(rows[-1]) + 1) / space.size)
    return within.sorted()
