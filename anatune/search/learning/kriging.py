"""A light correction of predicted times: kriging of log(measured / predicted) over the features of points.

Gaussian process with a fixed covariance (`features.Similarity`) and an unknown mean. Points that are being measured
count without a value: they lower the uncertainty around them, so that no batch asks the same question twice. Everything
is incremental: a new observation costs one column of covariances and one row of a Cholesky factor for each batch.
Source: [RW] (Rasmussen, Williams: Gaussian Processes for Machine Learning) Alg. 2.1; believed values of pending points:
[GINSBOURGER] (kriging believer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular

if TYPE_CHECKING:
    from typing import Self

__all__ = ["Batch", "Batched", "Covariance", "Kriging"]

Floats = NDArray[np.float64]


class Batched(Protocol):
    """Features of a batch of points."""

    @property
    def size(self) -> int:
        """Number of points."""

    def joined(self, others: Sequence[Self]) -> Self:
        """Return the points of this batch and then those of the others as one batch."""


_F = TypeVar("_F", bound=Batched)
_Given = TypeVar("_Given", bound=Batched, contravariant=True)


class Covariance(Protocol[_Given]):
    """Prior covariance of the residuals of points, with the attributes `variance` and `noise_std`."""

    @property
    def variance(self) -> float:
        """Prior variance of one residual, without noise."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of what two measurements of one point differ by."""

    def covariance(self, one: _Given, many: _Given) -> Floats:
        """Return the covariance of one point (a batch of one row) with each of many."""


_CLIP = 0.25
"""Residuals count at most this much beyond the median one: a kernel that spills is slow by a factor, not by a trend."""


class Batch(Generic[_F]):
    """Candidates whose posterior is kept up to date.

    Parameters
    ----------
    features
        Of the candidates.
    similarity
        Their covariance.
    """

    def __init__(self, features: _F, similarity: Covariance[_F]) -> None:
        self.features = features
        size = features.size
        self._similarity = similarity
        self._weights: Floats = np.empty((16, size))
        self._known = 0
        self._left: Floats = np.full(size, similarity.variance)

    @property
    def rows(self) -> Floats:
        """L^-1 K, (observations, candidates)."""
        return self._weights[: self._known]

    @property
    def variance(self) -> Floats:
        """Posterior variance of the residuals, (candidates,)."""
        return np.maximum(self._left, 0.0)

    def extend(self, factor: Floats, observed: list[_F]) -> None:
        """Take in the observations it does not know yet; `factor` is the Cholesky factor of all of them."""
        for number in range(self._known, len(observed)):
            if number == len(self._weights):
                self._weights = np.concatenate([self._weights, np.empty_like(self._weights)])
            row = self._similarity.covariance(observed[number], self.features)
            row -= factor[number, :number] @ self._weights[:number]
            row /= factor[number, number]
            self._weights[number] = row
            self._left -= row * row
            self._known = number + 1


class Kriging(Generic[_F]):
    """Residuals of observed points, and what they say of others.

    Parameters
    ----------
    similarity
        Covariance of residuals.
    clip : float
        Residuals count at most this much beyond the median one.
    """

    def __init__(self, similarity: Covariance[_F], clip: float = _CLIP) -> None:
        self.similarity = similarity
        self._clip = clip
        self.observed: list[_F] = []
        self._factor: Floats = np.zeros((16, 16))
        self._covariance: Floats = np.zeros((16, 16))

    @property
    def factor(self) -> Floats:
        """Cholesky factor of the covariance of the observations."""
        return self._factor[: len(self.observed), : len(self.observed)]

    def observe(self, features: _F) -> int:
        """Add an observation (a batch of one row), with or without a value later; return its number."""
        number = len(self.observed)
        if number == len(self._factor):
            grow = ((0, number), (0, number))
            self._factor, self._covariance = np.pad(self._factor, grow), np.pad(self._covariance, grow)
        together = self.observed[0].joined([*self.observed[1:], features]) if self.observed else features
        row = self.similarity.covariance(features, together)
        row[-1] += self.similarity.noise_std**2
        self._covariance[number, : number + 1] = self._covariance[: number + 1, number] = row
        solved = _solve_lower(self._factor[:number, :number], row[:number])
        self._factor[number, :number] = solved
        self._factor[number, number] = math.sqrt(max(row[-1] - float(solved @ solved), 1e-12))
        self.observed.append(features)
        return number

    def solve(self, values: Mapping[int, float]) -> tuple[float, Floats]:
        """Return the mean residual and the vector z whose product with `Batch.rows` is what to add to it.

        Parameters
        ----------
        values : mapping of int to float
            Number of an observation -> its residual. Those without one are believed to be what the others say.
        """
        size = len(self.observed)
        if not values:
            return 0.0, np.zeros(size)
        known = np.array(sorted(values), dtype=np.int64)
        residuals = np.array([values[number] for number in known.tolist()])
        middle = float(np.median(residuals))
        residuals = np.clip(residuals - middle, -self._clip, self._clip)
        right = np.column_stack([residuals, np.ones(len(known))])
        if len(known) == size:
            both = cho_solve((self.factor, True), right, check_finite=False)
        else:
            both = np.linalg.solve(self._covariance[np.ix_(known, known)], right)
        mean = float(both[:, 0].sum() / both[:, 1].sum())  # generalised least squares
        weights = both[:, 0] - mean * both[:, 1]
        full = self._covariance[:size, known] @ weights
        full[known] = residuals - mean
        return middle + mean, _solve_lower(self.factor, full)


def _solve_lower(factor: Floats, right: Floats) -> Floats:
    """Solve L x = b for a lower triangular L."""
    if not len(right):
        return right.copy()
    return np.asarray(solve_triangular(factor, right, lower=True, check_finite=False), dtype=np.float64)
