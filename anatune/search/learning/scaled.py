"""Scaled features and their covariance, for corrections that learn from features (`search.learning.kriging`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scale", "Scaled", "SquaredExponential", "scale_of"]

Floats = NDArray[np.float64]


class Scaled(NamedTuple):
    """Scaled features: distances of 1 reduce what points have in common to exp(-1/2)."""

    values: Floats
    squares: Floats
    """Half of the squared length of each row."""

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.values)

    def row(self, at: int) -> Scaled:
        """Return one point as a batch."""
        return Scaled(self.values[at : at + 1], self.squares[at : at + 1])

    def joined(self, others: Sequence[Scaled]) -> Scaled:
        """Return the points of this batch and then those of the others."""
        return Scaled(
            np.concatenate([self.values, *(other.values for other in others)]),
            np.concatenate([self.squares, *(other.squares for other in others)]),
        )


class SquaredExponential(NamedTuple):
    """Squared-exponential covariance of residuals."""

    variance: float
    noise_std: float

    def covariance(self, one: Scaled, many: Scaled) -> Floats:
        """Return the covariance of one point with each of many."""
        result: Floats = np.exp(many.values @ one.values[0] - (many.squares + one.squares[0]))
        result *= self.variance
        return result


class Scale(NamedTuple):
    """Makes the features that vary comparable: less the mean, over the standard deviation of the first candidates."""

    varies: NDArray[np.bool_]
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
