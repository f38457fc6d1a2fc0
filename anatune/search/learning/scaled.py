"""Scaled features and their covariance, for corrections that learn from features (`search.learning.kriging`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from anatune.search.points import Booleans, Floats, Integers


class ScaledFeatures(NamedTuple):
    """Scaled features: a distance of 1 reduces the correlation of points to exp(-1/2)."""

    values: Floats
    squares: Floats
    """Half of the squared norm of each row."""


class SquaredExponential(NamedTuple):
    """Squared-exponential covariance of residuals."""

    variance: float
    noise_std: float

    def covariance(self, point: ScaledFeatures, many: ScaledFeatures) -> Floats:
        """Return the covariance of one point with each of many."""
        result: Floats = np.exp(many.values @ point.values[0] - (many.squares + point.squares[0]))
        result *= self.variance
        return result


class LeafFeatures(NamedTuple):
    """Scaled features, and the leaves of a correction's trees that the points fall into."""

    values: Floats
    squares: Floats
    leaves: Integers


class LeafCovariance(NamedTuple):
    """Covariance of residuals: a squared exponential, plus the share of trees in which two points fall into one leaf.

    Source: proximity of points [Breiman01]. If the trees were grown on other workloads, their leaves tell which points
    have similar residuals on this device; kriging over them refits the leaf values (ridge) after every trial.
    """

    variance: float
    noise_std: float
    leaf_share: float
    """Share of the variance that depends on the leaves; without trees the other part has all of it."""

    def covariance(self, point: LeafFeatures, many: LeafFeatures) -> Floats:
        """Return the covariance of one point with each of many."""
        scaled = SquaredExponential(self.variance, self.noise_std)
        result = scaled.covariance(
            ScaledFeatures(point.values, point.squares), ScaledFeatures(many.values, many.squares)
        )
        if many.leaves.shape[1]:
            result *= 1.0 - self.leaf_share
            result += self.variance * self.leaf_share * (many.leaves == point.leaves).mean(axis=1)
        return result


class FeatureScale(NamedTuple):
    """A normalisation of the varying features: less their mean, over the standard deviation of the first candidates."""

    varies: Booleans
    mean: Floats
    factor: Floats

    def apply(self, values: Floats) -> ScaledFeatures:
        """Return features, (num_points, num_features), scaled."""
        scaled = (values[:, self.varies] - self.mean) * self.factor
        return ScaledFeatures(scaled, 0.5 * np.square(scaled).sum(axis=1))


def fit_scale(values: Floats, weight: Floats, length: float) -> FeatureScale:
    """Return the scale at which two typical points have the distance 1 / `length`.

    Parameters
    ----------
    values : (num_points, num_features) float64
        Features of the points.
    weight : (num_features,) float64
        Weight of each feature.
    length : float
        Length of the covariance, as a share of the typical distance of two points.
    """
    std = values.std(axis=0)
    varies = std > 1e-9
    factor = weight[varies] / (std[varies] * math.sqrt(max(1, int(varies.sum()))) * length)
    return FeatureScale(varies, values[:, varies].mean(axis=0), factor)
