"""Gradient-boosted trees (LightGBM) that learn times during a search.

They are small: tens of trees that are fitted in milliseconds, again whenever there are new trials (trees for the
model's errors: when the trials have grown by a share). They are independent of the corrections that are fitted to
records.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from anatune.model.learned.residual import import_lightgbm
from anatune.search.knobs import Knobs
from anatune.search.points import Floats, Integers
from anatune.search.stepwise import TrialAnswer
from anatune.templates.gpu.model import FEATURES

TreeFeatures = Literal["analytical", "program", "all"]
"""Features that the trees see, see `Surrogate`."""

_NUM_TREES = 30
_REFIT_SHARE = 0.08
"""Share of new trials after which trees for the model's errors are fitted again; others are fitted after each batch, as
published. Source: [ICS24] Fig. 9a."""
_FEWEST = 8
"""Smallest number of trials that trees are fitted to."""
_PUBLISHED = {"max_depth": 10, "learning_rate": 0.2, "min_gain_to_split": 0.001, "min_sum_hessian_in_leaf": 0.0}
"""Parameters as published. Source: [ICS24], its code: XGBoost with depth 10, eta 0.2, gamma 0.001, min_child_weight 0
(as [Ansor]'s)."""
_CAUTIOUS = {"max_depth": 4, "learning_rate": 0.15, "min_data_in_leaf": 5, "lambda_l2": 2.0}
"""Parameters for errors of the analytical model, which are small and hardly known after the first trials."""


class Surrogate:
    """Trees that predict the logarithm of times; deterministic.

    Parameters
    ----------
    knobs
        Knobs of the space.
    features : {"analytical", "program", "all"}
        "analytical": on GPUs the seven features of [ICS24] and the product of WLP and ILP, as in its code; on CPUs all
        columns of the model. "program": only the factors and choices. "all": both, and the predicted time.
    on_model : bool
        Whether to learn log(measured / predicted) instead of log(measured); the first prediction is then the model's.
    """

    def __init__(self, knobs: Knobs, features: TreeFeatures, *, on_model: bool) -> None:
        self._knobs, self._kind, self._on_model = knobs, features, on_model
        self._rows: list[Floats] = []
        self._targets: list[float] = []
        self._trees: Any = None
        self._num_fitted = 0
        self._middle = 0.0

    def add(self, points: Integers, answers: list[TrialAnswer]) -> None:
        """Add trials; failed ones are ignored, because they have no time."""
        good = [at for at, answer in enumerate(answers) if answer.cost is not None and answer.cost > 0]
        if good:
            points = points[good]
            self._rows.append(self._features(points))
            costs = np.log([answers[at].cost or 0.0 for at in good])
            self._targets += (costs - self._base(points)).tolist()

    def predict(self, points: Integers) -> Floats:
        """Return the predicted logarithm of the times of points, (num_points,), up to a constant until fitted."""
        if not len(points):
            return np.empty(0)
        self._fit()
        result: Floats = self._base(points) + self._middle
        if self._trees is not None:
            result += np.asarray(self._trees.predict(self._features(points), num_threads=1))
        return result

    def _fit(self) -> None:
        size = len(self._targets)
        share = _REFIT_SHARE if self._on_model else 0.0
        if size < _FEWEST or size < max(self._num_fitted + 1, self._num_fitted * (1.0 + share)):
            return
        lightgbm = import_lightgbm()
        targets = np.array(self._targets)
        self._middle = float(np.median(targets))
        parameters = {
            "objective": "regression", "verbosity": -1, "num_threads": 1, "deterministic": True, "seed": 0,
            "force_row_wise": True, "min_data_in_leaf": 1, "max_bin": 63, "num_leaves": 31, "feature_pre_filter": False,
            **(_CAUTIOUS if self._on_model else _PUBLISHED),
        }  # fmt: skip
        data = lightgbm.Dataset(
            np.concatenate(self._rows),
            targets - self._middle,
            params={"max_bin": 63, "min_data_in_bin": 1, "num_threads": 1},
        )
        self._trees = lightgbm.train(parameters, data, num_boost_round=_NUM_TREES)
        self._num_fitted = size

    def _base(self, points: Integers) -> Floats:
        if not self._on_model:
            return np.zeros(len(points))
        times: Floats = np.log(np.minimum(self._knobs.model.times(points)[0], 1e6))
        return times

    def _features(self, points: Integers) -> Floats:
        parts = []
        if self._kind != "program":
            evaluation = self._knobs.model.evaluate(points)
            is_published = self._kind == "analytical" and FEATURES[0] in evaluation.columns
            parts += [evaluation.columns[name] for name in (FEATURES if is_published else sorted(evaluation.columns))]
            if is_published:
                parts.append(evaluation.columns["WLP"] * evaluation.columns["ILP"])
            if self._kind == "all":
                parts.append(np.log(np.minimum(evaluation.time_s, 1e6)))
        if self._kind != "analytical":
            parts += list(np.log2(self._knobs.values(points) + 1.0).T)
        rows: Floats = np.clip(np.column_stack(parts), -1e15, 1e15)
        return rows
