"""Measures of how well predicted times rank measured ones. Arrays in, numbers out; no model, no files.

Notation
--------
predicted_s : (num_points,) float64
    Predicted seconds; may be inf.
measured_s : (num_points,) float64
    Measured seconds, NaN where the trial failed.
legal : (num_points,) bool
    Whether the model calls the point legal.

A measure that is not defined for its arguments (too few points, nothing measured) is NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "MIN_POINTS",
    "average_ranks",
    "fraction_faster",
    "legality_shares",
    "mean_absolute_percentage_error",
    "median_absolute_percentage_error",
    "model_order",
    "quantile",
    "share",
    "spearman",
    "spearman_measured",
    "top_k_regret",
]

MIN_POINTS = 10
"""Fewest measured points of a workload whose ranking is judged."""


def average_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Return the ranks of `values` from 1, (num_values,) float64; ties share their mean rank."""
    array = np.asarray(values, dtype=np.float64)
    _, group, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2.0)[group.reshape(-1)]


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Return Spearman's rank correlation, in [-1, 1].

    Parameters
    ----------
    x, y : (num_values,) float64
        Paired values, without NaN; ties share their mean rank.

    Returns
    -------
    float
        NaN for fewer than two values or where one side is constant.
    """
    rank_x, rank_y = average_ranks(x), average_ranks(y)
    if len(rank_x) < 2:
        return float("nan")
    rank_x, rank_y = rank_x - rank_x.mean(), rank_y - rank_y.mean()
    norm = float(np.sqrt((rank_x @ rank_x) * (rank_y @ rank_y)))
    return float(np.clip(rank_x @ rank_y / norm, -1.0, 1.0)) if norm > 0 else float("nan")


def spearman_measured(
    predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64], sample: NDArray[np.bool_]
) -> float:
    """Return the rank correlation over the successful points of `sample`; NaN below `MIN_POINTS` of them."""
    use = sample & np.isfinite(measured_s)
    if int(use.sum()) < MIN_POINTS:
        return float("nan")
    return spearman(predicted_s[use], measured_s[use])


def model_order(predicted_s: NDArray[np.float64], legal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the points in the model's order: legal ones first, by predicted time, ties by row."""
    return np.lexsort((predicted_s, ~legal)).astype(np.int64)


def top_k_regret(
    predicted_s: NDArray[np.float64], measured_s: NDArray[np.float64], legal: NDArray[np.bool_], tops: Sequence[int]
) -> dict[int, float]:
    """Return how much slower the best of the model's first k points is than the best recorded one.

    Failed trials take their place among the k, as they would for a user; they measure nothing.

    Returns
    -------
    dict of int to float
        k -> ratio >= 1; inf if all k failed; NaN below `MIN_POINTS` successful points.
    """
    good = np.isfinite(measured_s)
    if int(good.sum()) < MIN_POINTS:
        return dict.fromkeys(tops, float("nan"))
    ordered = np.where(good, measured_s, np.inf)[model_order(predicted_s, legal)]
    best = ordered.min()
    return {k: float(ordered[:k].min() / best) for k in tops}


def fraction_faster(sample_s: NDArray[np.float64], time_s: float) -> float:
    """Return the fraction of a sample of the space that is predicted faster than `time_s`, in [0, 1].

    A point survives pruning the space to its best share q if this is at most q.
    """
    return float(np.mean(sample_s < time_s)) if len(sample_s) else float("nan")


def legality_shares(measured_s: NDArray[np.float64], legal: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the share of successful points called legal and of failed points called illegal."""
    good = np.isfinite(measured_s)
    return share(legal[good]), share(~legal[~good])


def share(flags: ArrayLike) -> float:
    """Return the share of true values, in [0, 1]; NaN of nothing."""
    array = np.asarray(flags, dtype=np.float64)
    return float(array.mean()) if len(array) else float("nan")


def _absolute_percentage_errors(predicted_s: ArrayLike, measured_s: ArrayLike) -> NDArray[np.float64]:
    predicted, measured = np.asarray(predicted_s, np.float64), np.asarray(measured_s, np.float64)
    return 100.0 * np.abs(predicted - measured) / measured


def median_absolute_percentage_error(predicted_s: ArrayLike, measured_s: ArrayLike) -> float:
    """Return the median of ``|predicted - measured| / measured``, per cent; NaN of nothing."""
    return quantile(_absolute_percentage_errors(predicted_s, measured_s), 0.5)


def mean_absolute_percentage_error(predicted_s: ArrayLike, measured_s: ArrayLike) -> float:
    """Return the mean of ``|predicted - measured| / measured``, per cent; NaN of nothing."""
    errors = _absolute_percentage_errors(predicted_s, measured_s)
    return float(errors.mean()) if len(errors) else float("nan")


def quantile(values: Iterable[float], q: float) -> float:
    """Return the q-quantile of the values that are not NaN, interpolated; inf counts, NaN of nothing."""
    ordered = np.sort([value for value in values if not np.isnan(value)])
    if not len(ordered):
        return float("nan")
    position = q * (len(ordered) - 1)
    low, weight = int(position), position - int(position)
    if weight == 0.0 or ordered[low] == ordered[low + 1]:
        return float(ordered[low])
    return float(ordered[low] + weight * (ordered[low + 1] - ordered[low]))
