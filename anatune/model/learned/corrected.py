"""The analytical model with a learned correction: the same points, with other times and another order."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.prediction import Prediction
from anatune.errors import ModelVersionError
from anatune.model.learned.residual import Correction, ResidualModel
from anatune.templates.base.features import FeatureTable
from anatune.templates.base.model import Evaluation, Model, Progress, Ranking

SHORTLIST = 64
"""Number of schedules of the analytical ranking, with different predicted times, that a correction reorders."""


class CorrectedModel(Model):
    """A model whose times are multiplied by exp(correction); illegal points stay illegal.

    Parameters
    ----------
    model
        The analytical model.
    residual
        A fitted `ResidualModel`.

    Raises
    ------
    ModelVersionError
        The correction was trained on other features than those of this model's points.
    """

    def __init__(self, model: Model, residual: ResidualModel) -> None:
        self.model, self.residual = model, residual
        self.workload, self.hardware = model.workload, model.hardware
        self.space, self.rules = model.space, model.rules
        names = self._names
        if names != tuple(residual.names_):
            differ = [name for name in (*names, *residual.names_) if (name in names) != (name in residual.names_)]
            raise ModelVersionError(
                f"the correction was trained on other features than {type(model).__name__} of {model.hardware.name} "
                f"has ({', '.join(differ[:3]) or 'in another order'}); train it again, or use one of this template"
            )

    @property
    def _names(self) -> tuple[str, ...]:
        point = self.space.point_of(self.space.schedule({}))
        return self.model.feature_table(point[None, :]).names

    def feature_table(self, points: NDArray[np.int64]) -> FeatureTable:
        """Return the features of the analytical model."""
        return self.model.feature_table(points)

    @property
    def plain(self) -> Model:
        """The analytical model."""
        return self.model

    def program_key(self, point: NDArray[np.int64]) -> Hashable:
        """Return a key that is equal for points with the same kernel."""
        return self.model.program_key(point)

    def correction(self, points: NDArray[np.int64]) -> Correction:
        """Return the correction of points: a term added to the logarithm of their times, and its uncertainty."""
        return self.residual.predict(self.model.feature_table(points).values)

    def leaves(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the leaf of each tree of the correction that points fall into, (num_points, num_trees)."""
        return self.residual.leaves(self.model.feature_table(points).values)

    def refit(self, points: NDArray[np.int64], time_s: NDArray[np.float64]) -> CorrectedModel:
        """Return a model that has also learned from new measurements; this model does not change.

        Parameters
        ----------
        points : (num_points, num_columns) int64
            All measured points of this workload, earlier ones included.
        time_s : (num_points,) float64
            Measured seconds, or any multiple of them; NaN for failed trials.
        """
        table = self.model.feature_table(points)
        groups = np.zeros(len(points), dtype=np.int64)
        updated = copy.copy(self.residual).update(table.values, np.log(time_s / table.time_s), groups)
        return CorrectedModel(self.model, updated)

    def check(self, points: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rule codes of points; 0 means legal."""
        return self.model.check(points)

    def times(self, points: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return (corrected seconds, rule codes) of points."""
        table = self.model.feature_table(points)
        return table.time_s * np.exp(self.residual.predict(table.values).log_ratio), table.rule

    def evaluate(self, points: NDArray[np.int64]) -> Evaluation:
        """Evaluate points; the analytical columns are followed by "plain_s" and "support"."""
        analytical = self.model.evaluate(points)
        correction = self.correction(points)
        columns = analytical.columns | {"plain_s": analytical.time_s, "support": correction.support}
        return Evaluation(analytical.time_s * np.exp(correction.log_ratio), analytical.rule, columns)

    def predictions(self, points: NDArray[np.int64]) -> list[Prediction]:
        """Predict points; times and rates are corrected, the rest is the analytical explanation."""
        ratios = np.exp(self.correction(points).log_ratio).tolist()
        return [
            msgspec.structs.replace(p, time_s=p.time_s * ratio, gflop_per_s=p.gflop_per_s / ratio)
            for p, ratio in zip(self.model.predictions(points), ratios, strict=True)
        ]

    def rank(
        self, top_k: int, time_limit_s: float | None = None, *, distinct: bool = False, progress: Progress | None = None
    ) -> Ranking:
        """Return the `top_k` points with the smallest corrected times among the first of the analytical ranking.

        The guarantee is that of the analytical ranking; it covers the shortlist, not its new order.
        """
        del distinct  # the shortlist always has distinct times
        ranking = self.model.rank(max(top_k, SHORTLIST), time_limit_s, distinct=True, progress=progress)
        if not len(ranking.points):
            return ranking
        order = np.argsort(self.times(ranking.points)[0], kind="stable")[:top_k]
        alike = None if ranking.num_alike is None else ranking.num_alike[order]
        return dataclasses.replace(ranking, points=ranking.points[order], num_alike=alike)
