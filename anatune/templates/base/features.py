"""Dimensionless features of points, by which a learned correction carries over to other workloads and devices.

Parts of the prediction are shares of its time. Counts are ratios to limits of the device, or base-2 logarithms. Axes
are counted from the innermost one. No feature names a workload or a device, so that a correction learned on one applies
to another if possible.

A change of the features, of their order, or of the analytical quantities behind them needs a new `feature_version` of
the templates that have them (`base.template`). Saved corrections of another version are refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["FeatureTable", "evenness", "log2", "table_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class FeatureTable(NamedTuple):
    """The input of a correction for a batch of points.

    Attributes
    ----------
    time_s : (num_points,) float64
        Predicted seconds.
    rule : (num_points,) int64
        0 if legal, else the code of the first broken rule.
    names : tuple of str
        Names of the features.
    values : (num_points, num_features) float64
        The features.
    """

    time_s: Floats
    rule: Integers
    names: tuple[str, ...]
    values: Floats


def table_of(time_s: Floats, rule: Integers, columns: dict[str, Floats]) -> FeatureTable:
    """Build a table from the named features, (num_points,) each."""
    return FeatureTable(time_s, rule, tuple(columns), np.column_stack(list(columns.values())))


def log2(values: ArrayLike) -> Floats:
    """Return base-2 logarithms; a number that is not positive counts as 2^-30."""
    return np.log2(np.maximum(np.asarray(values, dtype=np.float64), 2.0**-30))


def evenness(counts: Floats) -> Floats:
    """Return log2 of the largest power of two that divides each count.

    Alignment and fast division depend on it.
    """
    integers = counts.astype(np.int64)
    return np.log2((integers & -integers).astype(np.float64))
