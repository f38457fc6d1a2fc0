"""Dimensionless numbers about points, by which a learned correction carries over to other workloads and devices.

Parts of the prediction are shares of its time, counts are ratios to the device's limits or logarithms (base 2), axes
are counted from the innermost one. Nothing names a workload or a device, so that what is learned on one holds, as far
as it can, on another.

A change of the features, of their order, or of the analytical quantities behind them is a new `feature_version` of the
templates that have them (`base.template`): saved models of another version are refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["FeatureTable", "evenness", "log2", "table_of"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class FeatureTable(NamedTuple):
    """What a correction needs of a batch of points.

    Attributes
    ----------
    time_s : (num_points,) float64
        Predicted seconds.
    rule : (num_points,) int64
        0 where legal, else the code of the first broken rule.
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
    """Return features by name, (num_points,) each, as a table."""
    return FeatureTable(time_s, rule, tuple(columns), np.column_stack(list(columns.values())))


def log2(values: ArrayLike) -> Floats:
    """Return base-2 logarithms; what is not positive counts as 2^-30."""
    return np.log2(np.maximum(np.asarray(values, dtype=np.float64), 2.0**-30))


def evenness(counts: Floats) -> Floats:
    """Return log2 of the largest power of two that divides each count: what alignment and fast division depend on."""
    whole = counts.astype(np.int64)
    return np.log2((whole & -whole).astype(np.float64))
