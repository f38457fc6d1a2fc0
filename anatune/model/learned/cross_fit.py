"""Leave-one-out estimates of a correction: no model has seen the workload, or the device, of the rows it scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.errors import MissingDependencyError
from anatune.model.learned.residual import ResidualModel, ResidualOptions
from anatune.requirements import pip_line
from anatune.templates.base.features import FeatureTable

Floats = NDArray[np.float64]

_FEWEST = 3
"""Least number of workloads from which a mean gain is computed."""
_SHARES = np.linspace(0.0, 1.0, 11)
"""Fractions of a correction that `fit_shrunk_residual` compares."""


class MeasuredPoints(NamedTuple):
    """Measured points of one workload on one device.

    Attributes
    ----------
    workload, device : hashable
        Keys of the workload and the device; points with equal keys are left out together.
    table : FeatureTable
        Features and predictions of the points.
    time_s : (num_points,) float64
        Measured seconds, NaN for failed trials.
    """

    workload: Hashable
    device: Hashable
    table: FeatureTable
    time_s: Floats

    @property
    def log_ratio(self) -> Floats:
        """log(measured / predicted), (num_points,)."""
        return np.log(self.time_s / self.table.time_s)


def fit_residual(measured: Sequence[MeasuredPoints], options: ResidualOptions | None = None) -> ResidualModel:
    """Return a model trained on all of `measured`.

    Raises
    ------
    ValueError
        There are too few measurements, or the features differ.
    MissingDependencyError
        LightGBM is not installed.
    """
    if not measured or any(one.table.names != measured[0].table.names for one in measured):
        raise ValueError("there are no measured points, or their templates differ; expected points of one template")
    numbers = np.repeat(np.arange(len(measured)), [len(one.time_s) for one in measured])
    return ResidualModel(options).fit(
        np.concatenate([one.table.values for one in measured]),
        measured[0].table.names,
        np.concatenate([one.log_ratio for one in measured]),
        numbers,
    )


def cross_fit(
    measured: Sequence[MeasuredPoints],
    by: str,
    options: ResidualOptions | None = None,
    num_folds: int = 10,
    progress: Callable[[float], None] | None = None,
) -> list[Floats | None]:
    """Return the corrected seconds of all points, from models that did not see their workload (or device).

    Parameters
    ----------
    measured
        The measured points.
    by : {"workload", "device"}
        Which points are left out together.
    num_folds : int
        Largest number of models; with more workloads, several are left out together.
    progress : callable, optional
        Function to call with the share of the models that are trained.

    Returns
    -------
    list
        For each of `measured` an array (num_points,) float64, or None if nothing else was measured.

    Raises
    ------
    MissingDependencyError
        scikit-learn or LightGBM is not installed.
    """
    try:
        from sklearn.model_selection import GroupKFold
    except ImportError:
        raise MissingDependencyError(
            f"leave-one-out reports need the package scikit-learn, which is not installed; {pip_line('learn')}"
        ) from None
    keys = [one.workload if by == "workload" else one.device for one in measured]
    corrected_s: list[Floats | None] = [None] * len(measured)
    folds = min(num_folds, len(set(keys)))
    if folds < 2:
        return corrected_s
    numbers = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    groups = [numbers[key] for key in keys]
    for number, (train, test) in enumerate(GroupKFold(folds).split(np.zeros(len(measured)), groups=groups)):
        if progress is not None:
            progress(number / folds)
        try:
            model = fit_residual([measured[at] for at in train], options)
        except ValueError:  # too few points are left
            continue
        for index in test:
            table = measured[index].table
            corrected_s[index] = table.time_s * np.exp(model.predict(table.values).log_ratio)
    return corrected_s


def fit_shrunk_residual(
    measured: Sequence[MeasuredPoints], options: ResidualOptions | None = None, num_folds: int = 3
) -> ResidualModel | None:
    """Return a model scaled by the fraction that reduces the loss most, or None if it does not help.

    The fraction, in tenths, has the smallest loss (Huber's, as in training) on workloads that were left out. The
    correction helps if the mean loss over workloads falls by more than the standard error of this mean.

    Raises
    ------
    MissingDependencyError
        scikit-learn or LightGBM is not installed.
    """
    clip = (options or ResidualOptions()).clip
    losses: list[Floats] = []
    for points, time_s in zip(measured, cross_fit(measured, "workload", options, num_folds), strict=True):
        good = np.isfinite(points.time_s)
        if time_s is not None and good.any():
            correction = np.log(time_s / points.table.time_s)[good]
            residuals = points.log_ratio[good] - _SHARES[:, None] * correction
            residuals -= np.median(residuals, axis=1, keepdims=True)
            residuals = np.abs(residuals - np.clip(residuals, -clip, clip).mean(axis=1, keepdims=True))
            inner = np.minimum(residuals, clip)
            losses.append(np.mean(inner * (residuals - 0.5 * inner), axis=1))
    if len(losses) < _FEWEST:
        return None
    best = int(np.argmin(np.mean(losses, axis=0)))
    gain = np.array([loss[0] - loss[best] for loss in losses])
    if gain.mean() <= gain.std(ddof=1) / math.sqrt(len(gain)):
        return None
    shrunk = msgspec.structs.replace(options or ResidualOptions(), share=float(_SHARES[best]))
    return fit_residual(measured, shrunk)
