"""The analytical model of the template "pipelined": one `CudaModel` for each staging pipeline and padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.features import FeatureTable, log2
from anatune.templates.base.model import PREDICT, Floats, Guarantee, Points, Progress, Ranking, Scores
from anatune.templates.base.ranking import mark_distinct_times
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.ranking import points_within
from anatune.templates.cuda.pipelined_space import PipelinedSpace
from anatune.templates.gpu.times.columns import Col

__all__ = ["PipelinedModel"]

_EXTRA = 2
"""Number of columns that a point has in addition to those of the template "cuda": stages, pad."""


class PipelinedModel(CudaModel):
    """Predicts and ranks schedules of the template "pipelined"; otherwise like `CudaModel`.

    Raises
    ------
    SpaceError
        The errors of `PipelinedSpace`.
    """

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        super().__init__(workload, hardware, accuracy)
        space = PipelinedSpace(workload, hardware, self._is_legal, accuracy)
        self.space = space
        self._variants = {
            (stages, pad): CudaModel(workload, hardware, accuracy, stages=stages, pad=pad)
            for stages, pad in itertools.product(space.stage_counts, space.pads)
        }

    def __reduce__(self) -> tuple[object, ...]:
        return PipelinedModel, (self.workload, self.hardware, self.space.accuracy)  # unpickling builds the tables anew

    def _run(
        self, points: Points, task: int = PREDICT, *, full: bool = False, compiled: Floats | None = None
    ) -> Scores:
        """Return (rule codes, seconds, rows of Col if `full`) of `points`, each from the model of its pipeline."""
        points = np.atleast_2d(points)
        rules, times = np.empty(len(points), dtype=np.int64), np.empty(len(points))
        columns = np.empty((int(Col.COUNT), len(points)) if full else (0, 0))
        for (stages, pad), variant in self._variants.items():
            chosen = np.flatnonzero((points[:, -2] == stages) & (points[:, -1] == pad))
            if len(chosen) == 0:
                continue
            numbers = None if compiled is None else compiled[:, chosen]
            rules[chosen], times[chosen], quantities = variant._run(
                points[chosen, :-_EXTRA], task, full=full, compiled=numbers
            )
            if full:
                columns[:, chosen] = quantities
        return rules, times, columns

    def feature_table(self, points: Points) -> FeatureTable:
        """Return the features of the template "cuda", and those of the pipeline."""
        points = np.atleast_2d(points)
        table = super().feature_table(points)
        pipeline = np.column_stack([log2(points[:, -2]), log2(1.0 + points[:, -1])])
        return table._replace(names=(*table.names, "pipeline", "padding"), values=np.hstack([table.values, pipeline]))

    def _merge(self, parts: Sequence[Points]) -> tuple[Points, Floats, NDArray[np.int64]]:
        """Return the points of all variants as points of this space, their times ascending, and their former positions.

        At equal times fewer buffers come first, then less padding.
        """
        widened = [
            np.column_stack([part, np.tile(key, (len(part), 1))])
            for key, part in zip(self._variants, parts, strict=True)
        ]
        points = np.concatenate(widened).astype(np.int64)
        times, _ = self.times(points)
        order = np.argsort(times, kind="stable")
        return points[order], times[order], order

    def points_within(self, limit_s: float, progress: Progress | None = None) -> tuple[Points, Floats] | None:
        """Return all legal points with a predicted time up to `limit_s`, and their times, in ranking order."""
        watch, share = Watch(progress=progress), 1.0 / len(self._variants)
        points = [
            points_within(variant, limit_s, watch.part(share * number, share * (number + 1)))[0]
            for number, variant in enumerate(self._variants.values())
        ]
        return self._merge(points)[:2]

    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        """Return the best points of the rankings of all variants. Each variant gets its share of the time limit."""
        count, rankings = len(self._variants), []
        for number, variant in enumerate(self._variants.values()):
            left_s = None if watch.left_s is None else watch.left_s / (count - number)
            part = watch.part(number / count, (number + 1) / count, left_s)
            rankings.append(variant._rank(top_k, part, distinct=distinct))
            part.report(1.0)
        points, times, order = self._merge([ranking.points for ranking in rankings])
        num_alike = None
        if distinct:
            first = mark_distinct_times(times)
            num_alike = _count_alike([ranking.num_alike for ranking in rankings], order, first)[:top_k]
            points = points[first]
        counts = [ranking.num_legal for ranking in rankings]
        rejected = [ranking.rejected for ranking in rankings]
        legal = None if None in counts else sum(count for count in counts if count is not None)
        guarantee = _weakest_guarantee([ranking.guarantee for ranking in rankings])
        exact = all(ranking.alike_is_exact for ranking in rankings)
        return Ranking(points[:top_k], guarantee, legal, _add_counts(rejected), num_alike, exact)


def _count_alike(
    counts: Sequence[NDArray[np.int64] | None], order: NDArray[np.int64], first: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return how many other points have the time of each first point. Several variants may have points of one time."""
    sizes = 1 + np.concatenate([count for count in counts if count is not None])[order]
    return np.asarray(np.add.reduceat(sizes, np.flatnonzero(first)) - 1 if len(sizes) else sizes)


def _weakest_guarantee(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the guarantee that holds for all rankings together."""
    strength = ("best_found", "certified", "exhaustive")
    kind = min((guarantee.kind for guarantee in guarantees), key=strength.index)
    return Guarantee(
        kind,
        max(guarantee.gap for guarantee in guarantees),
        sum(guarantee.num_evaluated for guarantee in guarantees),
        sum(guarantee.num_bounded for guarantee in guarantees),
    )


def _add_counts(counts: Sequence[dict[str, int] | None]) -> dict[str, int] | None:
    """Return the number of points that each rule rejects in all rankings, or None if one ranking was ended early."""
    total: dict[str, int] = {}
    for rejected in counts:
        if rejected is None:
            return None
        for rule, count in rejected.items():
            total[rule] = total.get(rule, 0) + count
    return total
