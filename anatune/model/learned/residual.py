"""The correction: LightGBM on log(measured / predicted), which learns the errors of the analytical model.

Only the order of the schedules of one workload on one device matters. Each such group therefore has an offset that
training removes (fixed effects): after every tree the mean error of the group is subtracted. The rest is clipped
(Huber's loss), because the slowdown of a kernel that spills gives no information about the others.

The correction fades to zero where a point's features are outside the range seen in training; there the analytical
prediction remains. Failed trials have no time and do not enter the regression; a separate classifier predicts failures.

Source: LightGBM [Ke17]; Huber's loss [Huber64]. Training is deterministic: one thread, fixed seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.errors import MissingDependencyError
from anatune.requirements import pip_line

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MIN_GROUP = 10
"""Fewest measured points of a group that is used for training."""
_MARGIN = 0.05
"""Share of a feature's range by which a point may be outside and still count as inside."""
_OUTSIDE_SHARE = 0.1
"""Share of features outside their ranges at which the correction is zero."""
_MIN_FAILED = 20
"""Fewest failed trials from which their classifier is trained."""


class Booster(Protocol):
    """The part of LightGBM's class of this name that this module uses."""

    def predict(self, data: Floats, *, raw_score: bool = False, pred_leaf: bool = False, num_threads: int) -> object:
        """Return a number for each row; with `pred_leaf`, the number of a leaf for each row and tree."""

    def model_to_string(self) -> str:
        """Return the model as text."""


class ResidualOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of `ResidualModel`; defaults were chosen by leave-one-workload-out on the Ansor and AutoTVM tables.

    Attributes
    ----------
    num_trees, num_leaves, learning_rate, min_leaf_rows, feature_share, row_share, ridge, num_bins
        LightGBM's num_iterations, num_leaves, learning_rate, min_data_in_leaf, feature_fraction, bagging_fraction,
        lambda_l2 and max_bin. With few measurements leaves are smaller: 3 rows and a twentieth of all.
    num_members : int
        Number of models in the ensemble, with different seeds; their spread is part of the uncertainty.
    clip : float
        Largest error of log time that counts.
    group_rows : int
        Largest number of rows that are drawn from a group, so that no workload dominates.
    update_trees, update_leaves : int
        Size of the trees that `ResidualModel.update` adds.
    share : float
        Share of the ensemble's prediction that is used, in [0, 1]; see `cross_fit.fit_shrunk_residual`.
    """

    num_trees: int = 200
    num_leaves: int = 31
    learning_rate: float = 0.08
    min_leaf_rows: int = 60
    feature_share: float = 0.4
    row_share: float = 0.7
    ridge: float = 5.0
    num_bins: int = 63
    num_members: int = 2
    clip: float = 0.3
    group_rows: int = 500
    update_trees: int = 30
    update_leaves: int = 7
    share: float = 1.0


class Correction(NamedTuple):
    """The output of a `ResidualModel` for points.

    Attributes
    ----------
    log_ratio : (num_points,) float64
        Number to add to the logarithm of the analytical time; the same offset for all points with support 0.
    std : (num_points,) float64
        Standard deviation of the corrected logarithm.
    support : (num_points,) float64
        Share of the correction that is used, in [0, 1].
    failure : (num_points,) float64
        Probability that the trial fails, in [0, 1]; 0 if too few failures were seen.
    """

    log_ratio: Floats
    std: Floats
    support: Floats
    failure: Floats


def import_lightgbm() -> ModuleType:
    """Import and return the package lightgbm.

    Raises
    ------
    MissingDependencyError
        LightGBM is not installed.
    """
    try:
        import lightgbm
    except ImportError:
        raise MissingDependencyError(
            f"learned corrections need the package lightgbm, which is not installed; {pip_line('learn')}"
        ) from None
    module: ModuleType = lightgbm
    return module


class ResidualModel:
    """A model of log(measured / predicted) as a function of a point's features; like an estimator of scikit-learn.

    Fitted attributes: ``names_`` (features), ``members_`` (boosters), ``failures_`` (a booster or None), ``low_`` and
    ``high_`` (range of each feature), ``offset_`` (of the median workload), ``noise_`` (unexplained deviation),
    ``delta_`` (the part that `update` adds). Training on the same rows in another order gives the same model, except
    for the order of equal rows. There is no global state.
    """

    def __init__(self, options: ResidualOptions | None = None) -> None:
        self.options = options or ResidualOptions()

    def fit(self, features: Floats, names: tuple[str, ...], log_ratio: Floats, groups: Integers) -> ResidualModel:
        """Train the model on measurements.

        Parameters
        ----------
        features : (num_rows, num_features) float64
        names : tuple of str
            Names of the features.
        log_ratio : (num_rows,) float64
            log(measured / predicted); NaN for failed trials.
        groups : (num_rows,) int64
            Number of each row's group; a group has the rows of one workload on one device.

        Raises
        ------
        ValueError
            No group has 10 measured rows.
        """
        import_lightgbm()  # raises before any work if it is missing
        rows = _draw_rows(log_ratio, groups, self.options.group_rows)
        if not len(rows):
            raise ValueError(f"no workload has {_MIN_GROUP} measured points, expected at least one")
        x, y, group = features[rows], log_ratio[rows], np.unique(groups[rows], return_inverse=True)[1]
        self.names_ = tuple(names)
        self.low_, self.high_ = x.min(axis=0), x.max(axis=0)
        self.members_ = [
            self._train(x, y, group, self.options.num_trees, {"num_leaves": self.options.num_leaves, "seed": seed})
            for seed in range(self.options.num_members)
        ]
        error = y - self._mean(x)
        self.offset_ = float(np.median([np.median(error[group == one]) for one in range(int(group.max()) + 1)]))
        centred = _subtract_medians(error, group)
        self.noise_ = float(np.sqrt(np.mean(np.square(np.clip(centred, -1.0, 1.0)))))
        self.failures_ = self._train_failures(features, np.isnan(log_ratio))
        self.delta_: Booster | None = None
        return self

    def update(self, features: Floats, log_ratio: Floats, groups: Integers) -> ResidualModel:
        """Refit the part that follows new measurements, a few trees on the residuals; takes milliseconds.

        Each call replaces the trees of the last one, so that `features` must hold all rows of the session, in any
        order.
        """
        import_lightgbm()
        good = np.isfinite(log_ratio)
        self.delta_ = None
        if int(good.sum()) >= _MIN_GROUP:
            x, group = features[good], np.unique(groups[good], return_inverse=True)[1]
            residuals = log_ratio[good] - self.offset_ - self.options.share * self._mean(x)
            settings = {"num_leaves": self.options.update_leaves, "seed": 0, "min_data_in_leaf": 5, "lambda_l2": 1.0}
            self.delta_ = self._train(x, residuals, group, self.options.update_trees, settings)
        return self

    def predict(self, features: Floats) -> Correction:
        """Return the correction of points with these features, (num_points, num_features)."""
        features = np.atleast_2d(features)
        outputs = np.array([_score(member, features) for member in self.members_])
        support = self._support(features)
        log_ratio = self.offset_ + self.options.share * outputs.mean(axis=0) * support
        if self.delta_ is not None:
            log_ratio = log_ratio + _score(self.delta_, features)
        spread = outputs.std(axis=0) if len(outputs) > 1 else np.zeros(len(features))
        std = np.sqrt(np.square(self.noise_) + np.square(spread) + np.square((1.0 - support) * 2.0 * self.noise_))
        failure = (
            np.zeros(len(features))
            if self.failures_ is None
            else 1.0 / (1.0 + np.exp(-_score(self.failures_, features)))
        )
        return Correction(log_ratio, std, support, failure)

    def leaves(self, features: Floats) -> Integers:
        """Return the leaf of each tree that points fall into, (num_points, num_trees)."""
        parts = [member.predict(features, pred_leaf=True, num_threads=1) for member in self.members_]
        return np.concatenate([np.asarray(part, dtype=np.int64).reshape(len(features), -1) for part in parts], axis=1)

    def _mean(self, features: Floats) -> Floats:
        mean: Floats = np.mean([_score(member, features) for member in self.members_], axis=0)
        return mean

    def _support(self, features: Floats) -> Floats:
        """Return 1 inside the ranges of training, falling to 0 where a tenth of the features are outside."""
        margin = _MARGIN * (self.high_ - self.low_) + 1e-9
        outside = ((features < self.low_ - margin) | (features > self.high_ + margin)).mean(axis=1)
        support: Floats = np.clip(1.0 - outside / _OUTSIDE_SHARE, 0.0, 1.0)
        return support

    def _train(self, x: Floats, y: Floats, group: Integers, num_trees: int, settings: Mapping[str, float]) -> Booster:
        """Return a booster of `y` without the groups' offsets; `settings` for LightGBM override the options."""
        options, sizes = self.options, np.bincount(group)
        weight = 1.0 / np.sqrt(sizes[group])  # workloads with many rows count more, but less than in proportion
        weight /= weight.mean()
        total = np.bincount(group, weight)
        y = _subtract_medians(y, group)

        def gradient(raw: Floats, _: object) -> tuple[Floats, Floats]:
            error = raw - y
            error -= (np.bincount(group, weight * error) / total)[group]
            return np.clip(error, -options.clip, options.clip) * weight, weight

        parameters = {
            "objective": gradient, "learning_rate": options.learning_rate,
            "min_data_in_leaf": min(options.min_leaf_rows, 3 + len(x) // 20), "lambda_l2": options.ridge,
            "feature_fraction": options.feature_share, "bagging_fraction": options.row_share, "bagging_freq": 1,
            "num_threads": 1, "verbose": -1, "deterministic": True, "force_row_wise": True,
            "max_bin": options.num_bins, "feature_pre_filter": False, **settings,
        }  # fmt: skip
        lgb = import_lightgbm()
        data = lgb.Dataset(x, y, params={"max_bin": options.num_bins, "verbose": -1, "feature_pre_filter": False})
        booster: Booster = lgb.train(parameters, data, num_trees)
        return booster

    def _train_failures(self, features: Floats, failed: NDArray[np.bool_]) -> Booster | None:
        """Return a classifier of failed trials, or None if there are too few failed or too few successful ones."""
        if min(int(failed.sum()), int((~failed).sum())) < _MIN_FAILED:
            return None
        settings = {
            "objective": "binary", "learning_rate": 0.1, "num_leaves": 15, "min_data_in_leaf": 20, "lambda_l2": 5.0,
            "feature_fraction": 0.5, "num_threads": 1, "verbose": -1, "seed": 0, "deterministic": True,
            "force_row_wise": True, "max_bin": self.options.num_bins,
        }  # fmt: skip
        lgb = import_lightgbm()
        data = lgb.Dataset(features, failed.astype(np.float64), params={"verbose": -1})
        booster: Booster = lgb.train(settings, data, 60)
        return booster


def _score(booster: Booster, features: Floats) -> Floats:
    result: Floats = np.asarray(booster.predict(features, raw_score=True, num_threads=1), dtype=np.float64)
    return result


def _subtract_medians(values: Floats, group: Integers) -> Floats:
    """Return `values` less the median of their group."""
    medians = np.array([np.median(values[group == number]) for number in range(int(group.max()) + 1)])
    centred: Floats = values - medians[group]
    return centred


def _draw_rows(log_ratio: Floats, groups: Integers, most: int) -> Integers:
    """Return the rows used in training: measured rows of large enough groups, of very large ones a fixed sample."""
    rng = np.random.default_rng(0)
    rows: list[Integers] = []
    for group in np.unique(groups):
        group_rows = np.flatnonzero((groups == group) & np.isfinite(log_ratio))
        if len(group_rows) > most:
            group_rows = np.sort(rng.choice(group_rows, most, replace=False))
        if len(group_rows) >= _MIN_GROUP:
            rows.append(group_rows)
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
