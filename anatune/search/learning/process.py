"""A Gaussian process that learns one value at a time and updates the posterior of a pool of candidates.

Notation
--------
n : number of observations; P : number of candidates; G : number of coordinates.
L : Cholesky factor of the covariance of the observations, (n, n).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.spatial.distance import cdist

from anatune.search.points import Floats

_JITTER = 1e-6
"""Variance of the noise over that of the values. Source: the library of [BO24]: 1e-6."""
_LENGTHS = (0.1, 0.3, 1.0)
"""Lengths of the covariance, as shares of a coordinate's range; the likelihood chooses one."""


class GaussianProcess:
    """A Gaussian process for normalised values with a Matern 5/2 covariance; an observation costs O(n P).

    Source: [RW] Alg. 2.1; covariance, jitter and normalisation are those of the library that [BO24] uses.

    Parameters
    ----------
    places : (n, G) float64
        Coordinates of the first observations, in [0, 1]; all different.
    values : (n,) float64
        Observed values.
    pool : (P, G) float64
        Candidates.
    length : float
        Length of the covariance.
    most : int
        Largest number of observations.
    """

    def __init__(self, places: Floats, values: Floats, pool: Floats, length: float, most: int) -> None:
        size = self._size = len(places)
        self.pool, self._length = pool, length
        self._places, self._values = np.empty((most, pool.shape[1])), np.empty(most)
        self._factor, self._rows, self._white = np.zeros((most, most)), np.empty((most, len(pool))), np.empty((most, 2))
        self._places[:size], self._values[:size] = places, values
        factor = cholesky(_matern(places, places, length) + _JITTER * np.eye(size), lower=True)
        self._factor[:size, :size] = factor
        self._rows[:size] = solve_triangular(factor, _matern(places, pool, length), lower=True, check_finite=False)
        both = np.column_stack([values, np.ones(size)])
        self._white[:size] = solve_triangular(factor, both, lower=True, check_finite=False)
        self._left: Floats = 1.0 - np.square(self._rows[:size]).sum(axis=0)

    def tell(self, coordinates: Floats, value: float) -> None:
        """Add an observation at a new place, (G,)."""
        size = self._size
        row = self._solve(_matern(self._places[:size], coordinates[None, :], self._length))[:, 0]
        pivot = math.sqrt(max(1.0 + _JITTER - float(row @ row), 1e-12))
        self._factor[size, :size], self._factor[size, size] = row, pivot
        weights = (_matern(coordinates[None, :], self.pool, self._length)[0] - row @ self._rows[:size]) / pivot
        self._rows[size] = weights
        self._left -= np.square(weights)
        self._white[size] = (np.array([value, 1.0]) - row @ self._white[:size]) / pivot
        self._places[size], self._values[size] = coordinates, value
        self._size = size + 1

    def posterior(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the candidates' values, (P,) each."""
        return self._moments(self._rows[: self._size], self._left)

    def predict(self, coordinates: Floats) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the values at other places, (num_places,) each."""
        rows = self._solve(_matern(self._places[: self._size], coordinates, self._length))
        return self._moments(rows, 1.0 - np.square(rows).sum(axis=0))

    @property
    def log_likelihood(self) -> float:
        """Logarithm of the likelihood of the normalised values, up to a constant."""
        middle, deviation = self._scale()
        white = (self._white[: self._size, 0] - middle * self._white[: self._size, 1]) / deviation
        return float(-0.5 * white @ white - np.log(np.diag(self._factor)[: self._size]).sum())

    def _scale(self) -> tuple[float, float]:
        values = self._values[: self._size]
        return float(values.mean()), float(values.std()) or 1.0

    def _solve(self, right: Floats) -> Floats:
        factor = self._factor[: self._size, : self._size]
        return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False))

    def _moments(self, rows: Floats, left: Floats) -> tuple[Floats, Floats]:
        middle, deviation = self._scale()
        white = self._white[: self._size, 0] - middle * self._white[: self._size, 1]
        mean: Floats = middle + white @ rows
        return mean, deviation * np.sqrt(np.maximum(left, 0.0))


def fit_process(places: Floats, values: Floats, pool: Floats, most: int) -> GaussianProcess:
    """Return the process with the most likely of three lengths; parameters as in `Process`."""
    lengths = {
        length: GaussianProcess(places, values, pool[:0], length, len(places)).log_likelihood for length in _LENGTHS
    }
    return GaussianProcess(places, values, pool, max(lengths, key=lengths.__getitem__), most)


def _matern(some: Floats, others: Floats, length: float) -> Floats:
    """Return the Matern 5/2 covariance of places, (some, others). Source: [RW] Eq. (4.17)."""
    distance = math.sqrt(5.0) / length * cdist(some, others)
    result: Floats = (1.0 + distance + np.square(distance) / 3.0) * np.exp(-distance)
    return result
