"""Every point of the GPU space that is not slower than a limit: what a ranking of very many points is made of.

`ranking` keeps the k best points and sorts them anew whenever one comes in, which is meant for k of hundreds. Here
the limit is given, points are collected as they come and sorted once: 30,000 points take a second instead of minutes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from anatune.templates.base.model import Floats, Points
from anatune.templates.base.ranking import Best, Slabs
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.ranking import EXHAUSTIVE_POINTS, BranchAndBound, tie_keys
from anatune.templates.cuda.model.scoring import GpuScoring

__all__ = ["points_within"]

_BOUNDING = 0.5
"""Share of the work that bounding the tile choices counts as, before points are collected."""


class _Within(Best):
    """All points of a time up to a fixed limit, in the place of the k best."""

    def __init__(self, model: GpuScoring, limit_s: float) -> None:
        super().__init__(len(model.space.columns), 1, partial(tie_keys, model.space), distinct=False)
        self._limit_s = limit_s
        self._found: list[tuple[Points, Floats]] = []

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def add(self, points: Points, times: Floats) -> None:
        inside = times <= self._limit_s
        if inside.any():
            self._found.append((points[inside], times[inside]))

    def all(self) -> tuple[Points, Floats]:
        """Return the points and their times in ranking order, each point once."""
        if not self._found:
            return self.points, self.times
        points, times = zip(*self._found, strict=True)
        return self._sorted(np.concatenate(points), np.concatenate(times))


def points_within(model: GpuScoring, limit_s: float, watch: Watch) -> tuple[Points, Floats]:
    """Return every legal point of a predicted time up to `limit_s`, and the times, in the order of ``model.rank``."""
    within = _Within(model, limit_s)
    if model.space.size > EXHAUSTIVE_POINTS:
        search = BranchAndBound(model, within, watch.part(0.0, _BOUNDING))
        bounds, numbers, _ = search.bound_all(np.zeros(len(model.rules) + 1))
        chosen = numbers[bounds <= limit_s]
        for done, number in enumerate(chosen.tolist()):
            search.refine(number)
            watch.report(_BOUNDING + (1.0 - _BOUNDING) * (done + 1) / len(chosen))
        return within.all()
    for _, points, times in Slabs(model, watch):
        within.add(points, times)
    return within.all()
