"""The analytical GPU model with a choice of staging pipeline and padded rows: one `GpuModel` for each choice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.space.pipelined import PipelinedSpace
from anatune.core.workload.nest import Workload
from anatune.model.base import Guarantee, Progress, Ranking
from anatune.model.cuda.model import GpuModel
from anatune.model.watch import Watch
from anatune.numerics.cuda.columns import Col

__all__ = ["PipelinedModel"]

_EXTRA = 2
"""Columns of a point behind those of the template "cuda": stages, pad."""


class PipelinedModel(GpuModel):
    """Predicts and ranks schedules of the template "pipelined"; otherwise as `GpuModel`.

    Raises
    ------
    SpaceError
        As `PipelinedSpace`.
    """

    def __init__(self, workload: Workload, hardware: GpuSpec) -> None:
        super().__init__(workload, hardware)
        space = PipelinedSpace(workload, hardware, self._is_legal)
        self.space = space
        self._variants = {
            (stages, pad): GpuModel(workload, hardware, stages=stages, pad=pad)
            for stages, pad in itertools.product(space.stage_counts, space.pads)
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelinedModel, (self.workload, self.hardware)  # its tables are made again

    def _run(
        self,
        points: NDArray[np.int64],
        task: int,
        *,
        full: bool = False,
        compiled: NDArray[np.float64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return (rule codes, seconds, columns of Col if `full`) of `points`, each by the model of its pipeline."""
        points = np.atleast_2d(points)
        rules, times = np.empty(len(points), dtype=np.int64), np.empty(len(points))
        columns = np.empty((int(Col.COUNT), len(points)) if full else (0, 0))
        for (stages, pad), variant in self._variants.items():
            at = np.flatnonzero((points[:, -2] == stages) & (points[:, -1] == pad))
            if len(at) == 0:
                continue
            known = None if compiled is None else compiled[:, at]
            rules[at], times[at], found = variant._run(points[at, :-_EXTRA], task, full=full, compiled=known)
            if full:
                columns[:, at] = found
        return rules, times, columns

    def rank(
        self,
        top_k: int,
        time_limit_s: float | None = None,
        *,
        distinct: bool = False,
        progress: Progress | None = None,
    ) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time: the best of all pipelines' own rankings.

        At equal times fewer buffers come first, then no gaps. Each ranking has its share of `time_limit_s`.
        """
        watch, count = Watch(time_limit_s, progress), len(self._variants)
        rankings = []
        for number, variant in enumerate(self._variants.values()):
            left_s = None if watch.left_s is None else watch.left_s / (count - number)
            part = watch.part(number / count, (number + 1) / count)
            rankings.append(variant.rank(top_k, left_s, distinct=distinct, progress=part.report))
            part.report(1.0)
        points = np.concatenate(
            [
                np.column_stack([ranking.points, np.tile(key, (len(ranking.points), 1))])
                for key, ranking in zip(self._variants, rankings, strict=True)
            ]
        ).astype(np.int64)
        times, _ = self.times(points)
        order = np.argsort(times, kind="stable")
        if distinct and len(order):
            apart = np.diff(times[order], prepend=-1.0) > 0.0
            order = order[apart]
        counts = [ranking.num_legal for ranking in rankings]
        rejected = [ranking.rejected for ranking in rankings]
        legal = None if None in counts else sum(count for count in counts if count is not None)
        return Ranking(points[order[:top_k]], _worst([r.guarantee for r in rankings]), legal, _summed(rejected))


def _worst(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return what holds for all rankings together."""
    strength = ("best_found", "certified", "exhaustive")
    kind = min((guarantee.kind for guarantee in guarantees), key=strength.index)
    return Guarantee(
        kind,
        max(guarantee.gap for guarantee in guarantees),
        sum(guarantee.num_evaluated for guarantee in guarantees),
        sum(guarantee.num_bounded for guarantee in guarantees),
    )


def _summed(counts: Sequence[dict[str, int] | None]) -> dict[str, int] | None:
    """Return the counts of all rankings by rule; None if one of them was ended."""
    total: dict[str, int] = {}
    for one in counts:
        if one is None:
            return None
        for rule, count in one.items():
            total[rule] = total.get(rule, 0) + count
    return total
