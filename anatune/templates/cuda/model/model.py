"""The analytical model of the template "cuda": ranks and explains the schedules of one workload on one device."""

from __future__ import annotations

from functools import partial

import numpy as np

from anatune.templates.base.features import FeatureTable
from anatune.templates.base.model import Columns, Floats, Guarantee, Points, Progress, Ranking
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model import ranking
from anatune.templates.cuda.model.features import cuda_features
from anatune.templates.cuda.model.registers import expected_registers
from anatune.templates.cuda.model.scoring import CudaScoring

__all__ = ["CudaModel"]


class CudaModel(CudaScoring):
    """Predicts the time of schedules of `workload` on `hardware`, and ranks them exactly.

    The parameters are those of `CudaScoring`.
    """

    def __reduce__(self) -> tuple[object, ...]:
        stages, pad = self._pipeline
        constructor = partial(type(self), stages=stages, pad=pad, plain=self.space.plain)
        return constructor, (self.workload, self.hardware, self.space.accuracy)  # unpickling builds the tables anew

    def feature_table(self, points: Points) -> FeatureTable:
        """Return the features of points, see `cuda.model.features`."""
        return cuda_features(self, np.atleast_2d(points))

    def points_within(self, limit_s: float, progress: Progress | None = None) -> tuple[Points, Floats] | None:
        """Return all legal points with a predicted time up to `limit_s`, and their times, in ranking order."""
        return ranking.points_within(self, limit_s, Watch(progress=progress))

    def _estimates(self, points: Points, quantities: Floats) -> Columns:
        registers = expected_registers(self, points, quantities)
        return {} if registers is None else {"registers_per_thread": registers}

    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        if self.refusal is not None:
            rejected = {rule.id: self.space.size if rule is self.refusal else 0 for rule in self.rules}
            none = np.empty((0, len(self.space.columns)), dtype=np.int64)
            return Ranking(none, Guarantee("exhaustive"), 0, rejected)
        if self.space.size <= ranking.EXHAUSTIVE_POINTS:
            return super()._rank(top_k, watch, distinct=distinct)
        return ranking.BranchAndBound(self, self.best_points(top_k, distinct=distinct), watch).run()
