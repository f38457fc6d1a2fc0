"""Scaled features and their covariance, for corrections that learn from features (`search.learning.kriging`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.search.points import Booleans, Floats, Integers


class Scaled(NamedTuple):
    """Scaled features: distances of 1 reduce what points have in common to exp(-1/2)."""

    values: Floats
    squares: Floats
    """Half of the squared length of each row."""


class SquaredExponential(NamedTuple):
    """Squared-exponential covariance of residuals."""

    variance: float
    noise_std: float

    def covariance(self, one: Scaled, many: Scaled) -> Floats:
        """Return the covariance of one point with each of many."""
        result: Floats = np.exp(many.values @ one.values[0] - (many.squares + one.squares[0]))
        result *= self.variance
        return result


class Leaved(NamedTuple):
    """Scaled features, and the leaves of a correction's trees that points fall into."""

    values: Floats
    squares: Floats
    leaves: Integers


class LeafCovariance(NamedTuple):
    """Covariance of residuals: the squared exponential one, and the share of trees that have points in one leaf.

    Source: proximity of points [Breiman01]. Where the trees were grown on other workloads, their leaves say what
    residuals go with on this device; kriging over them is to fit their values anew (ridge) after every trial.
    """

    variance: float
    noise_std: float
    leaf_share: float
    """Of the variance that goes with the leaves; without trees the other part is all of it."""

    def covariance(self, one: Leaved, many: Leaved) -> Floats:
        """Return the covariance of one point with each of many."""
        scaled = SquaredExponential(self.variance, self.noise_std)
        result = scaled.covariance(Scaled(one.values, one.squares), Scaled(many.values, many.squares))
        if many.leaves.shape[1]:
            result *= 1.0 - self.leaf_share
            result += self.variance * self.leaf_share * (many.leaves == one.leaves).mean(axis=1)
        return result


class Scale(NamedTuple):
    """Makes the features that vary comparable: less the mean, over the standard deviation of the first candidates."""

    varies: Booleans
    mean: Floats
    factor: Floats

    def apply(self, values: Floats) -> Scaled:
        """Return features, (num_points, num_features), scaled."""
        scaled = (values[:, self.varies] - self.mean) * self.factor
        return Scaled(scaled, 0.5 * np.square(scaled).sum(axis=1))


def scale_of(values: Floats, weight: Floats, length: float) -> Scale:
    """Return the scale at which two typical points are 1 / `length` apart.

    Parameters
    ----------
    values : (num_points, num_features) float64
    weight : (num_features,) float64
        How much more than others a feature counts.
    length : float
        As a share of the typical distance of two points.
    """
    std = values.std(axis=0)
    varies = std > 1e-9
    factor = weight[varies] / (std[varies] * math.sqrt(max(1, int(varies.sum()))) * length)
    return Scale(varies, values[:, varies].mean(axis=0), factor)
