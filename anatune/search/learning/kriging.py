"""Kriging of log(measured / predicted) over features of points: a light correction of predicted times.

It is a Gaussian process with a fixed covariance (`features.Similarity`) and an unknown mean. Points that are being
measured count without a value: they lower the uncertainty around them, so that a batch does not contain similar points.
Everything is incremental: an observation costs one column of covariances and one row of a Cholesky factor for each
batch. Source: [RW] (Rasmussen, Williams: Gaussian Processes for Machine Learning) Alg. 2.1; believed values of pending
points: [GINSBOURGER] (kriging believer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from scipy.linalg import solve_triangular

from anatune.decoding import convert
from anatune.search.learning.scaled import FeatureScale, ScaledFeatures, SquaredExponential, fit_scale
from anatune.search.points import Floats

_F = TypeVar("_F", bound=NamedTuple)
"""Type of the features of a batch: arrays with one row for each point."""
_FeaturesT = TypeVar("_FeaturesT", bound=NamedTuple, contravariant=True)


def take_row(batch: _F, number: int) -> _F:
    """Return one point of a batch as a batch."""
    return batch._make(part[number : number + 1] for part in batch)


class Covariance(Protocol[_FeaturesT]):
    """Prior covariance of the residuals of points."""

    @property
    def variance(self) -> float:
        """Prior variance of one residual, without noise."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of the difference between measurements of one point."""

    def covariance(self, point: _FeaturesT, many: _FeaturesT) -> Floats:
        """Return the covariance of one point (a batch of one row) with each of many."""


_CLIP = 0.25
"""Largest deviation of a residual from the median that counts: a kernel that spills is far slower than any trend."""


class Batch(Generic[_F]):
    """Candidates whose posterior is updated with each observation.

    Parameters
    ----------
    features
        Features of the candidates.
    similarity
        Covariance of the candidates.
    """

    def __init__(self, features: _F, similarity: Covariance[_F]) -> None:
        self.features = features
        size = len(features[0])
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
        """Include the observations that are new to the batch; `factor` is the Cholesky factor of all observations."""
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
    """Residuals of observed points, and their prediction for others.

    Parameters
    ----------
    similarity
        Covariance of residuals.
    clip : float
        Largest deviation of a residual from the median that counts.
    """

    def __init__(self, similarity: Covariance[_F], clip: float = _CLIP) -> None:
        self.similarity = similarity
        self._clip = clip
        self.observed: list[_F] = []
        self._factor: Floats = np.eye(16)
        self._covariance: Floats = np.zeros((16, 16))
        self._together: _F | None = None
        """All observations as one batch."""
        self._known: list[int] = []
        self._known_factor: Floats = np.eye(16)
        """Observations with values, in the order in which the values arrived, and the Cholesky factor of their
        covariance: a new value costs one row of it, however many other values are missing."""

    @property
    def factor(self) -> Floats:
        """Cholesky factor of the covariance of the observations."""
        return self._factor[: len(self.observed), : len(self.observed)]

    def observe(self, features: _F) -> int:
        """Add an observation (a batch of one row), whose value may follow later; return its number."""
        number = len(self.observed)
        if number == len(self._factor):
            self._factor = _double(self._factor)
            self._covariance = np.pad(self._covariance, ((0, number), (0, number)))
        batches = (features,) if self._together is None else (self._together, features)
        self._together = features._make(map(np.concatenate, zip(*batches, strict=True)))
        row = self.similarity.covariance(features, self._together)
        row[-1] += self.similarity.noise_std**2
        self._covariance[number, : number + 1] = self._covariance[: number + 1, number] = row
        _append_row(self._factor, number, row)
        self.observed.append(features)
        return number

    def solve(self, values: Mapping[int, float]) -> tuple[float, Floats]:
        """Return the mean residual, and the vector z whose product with `Batch.rows` gives the deviations from it.

        Parameters
        ----------
        values : mapping of int to float
            Number of an observation -> its residual. Missing residuals are replaced by their predictions.
        """
        size = len(self.observed)
        if not values:
            return 0.0, np.zeros(size)
        numbers = np.array(self._in_order(values), dtype=np.int64)
        residuals = np.array([values[number] for number in numbers.tolist()])
        median = float(np.median(residuals))
        residuals = np.clip(residuals - median, -self._clip, self._clip)
        right = np.column_stack([residuals, np.ones(len(numbers))])
        solutions = _solve_lower(self._known_factor, _solve_lower(self._known_factor, right), transposed=True)
        mean = float(solutions[:, 0].sum() / solutions[:, 1].sum())  # generalised least squares
        weights = solutions[:, 0] - mean * solutions[:, 1]
        spread = np.zeros(size)
        spread[numbers] = weights
        full = self._covariance[:size, :size] @ spread
        full[numbers] = residuals - mean
        return median + mean, _solve_lower(self.factor, full)

    def _in_order(self, values: Mapping[int, float]) -> list[int]:
        """Return the observations with values in the order in which the values arrived, and update their factor."""
        if any(number not in values for number in self._known):
            self._known = []
        if len(self._known) < len(values):
            for number in sorted(set(values).difference(self._known)):
                if len(self._known) == len(self._known_factor):
                    self._known_factor = _double(self._known_factor)
                row = self._covariance[number, [*self._known, number]]
                _append_row(self._known_factor, len(self._known), row)
                self._known.append(number)
        return self._known


def _double(factor: Floats) -> Floats:
    """Return a factor of twice the size, with rows of the identity where there are no observations yet."""
    size = len(factor)
    result = np.eye(2 * size)
    result[:size, :size] = factor
    return result


def _append_row(factor: Floats, number: int, row: Floats) -> None:
    """Add a row of a covariance, (number + 1,), to its Cholesky factor."""
    solved = _solve_lower(factor, row[:number])
    factor[number, :number] = solved
    factor[number, number] = math.sqrt(max(row[-1] - float(solved @ solved), 1e-12))


def _solve_lower(factor: Floats, right: Floats, *, transposed: bool = False) -> Floats:
    """Solve L x = b (or L^T x = b) for the first rows of a lower triangular L.

    The remaining rows must be those of the identity: the whole array is used, because LAPACK would copy a part.
    """
    size = len(right)
    if not size:
        return right.copy()
    padded = np.zeros((len(factor), *right.shape[1:]))
    padded[:size] = right
    solved = solve_triangular(factor, padded, lower=True, trans=int(transposed), check_finite=False)
    return np.asarray(solved[:size], dtype=np.float64)


_STD, _NOISE_STD, _LENGTH, _CLIP = 0.5, 0.3, 0.5, 1.5
"""Prior of log(measured / predicted): standard deviation, noise, length (see `scale_of`), and the largest deviation
from the median that counts. Source: ten tables of MetaSchedule's CPU spaces on a Zen 4 machine
(bench/cpu/metaschedule_ranking.py), 24 of 60 candidates known: the best of the first four others improves from 1.063 to
1.047 times the best, the rank correlation stays 0.78; longer lengths, less noise and ensembles of trees were worse."""
_MOST = 512
"""Number of latest observations that are used, because the work for another one grows with it."""
_FEWEST = 4
"""Smallest number of observations for a correction; fewer do not give a scale of the features."""


class Residuals:
    """Kriging of log(measured / predicted) over features that the caller computes.

    It is deterministic: predictions depend only on the observations and their order.
    """

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._values: list[float] = []
        self._fitted: tuple[FeatureScale, Kriging[ScaledFeatures]] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def _forget_others(self, features: Floats) -> None:
        """Drop observations that were saved with features of another version."""
        if self._rows and len(self._rows[0]) != features.shape[1]:
            self._rows, self._values, self._fitted = [], [], None

    def observe(self, features: Floats, residuals: Sequence[float] | Floats) -> None:
        """Add observations: features (num, num_features) and log(measured / predicted) of each."""
        self._forget_others(features)
        self._rows += np.asarray(features, dtype=np.float64).tolist()
        self._values += [float(value) for value in residuals]
        self._rows, self._values = self._rows[-_MOST:], self._values[-_MOST:]
        self._fitted = None

    def predict(self, features: Floats) -> Floats:
        """Return the expected residuals of points, (num_points,); zeros before any observation."""
        self._forget_others(features)
        if len(self._values) < _FEWEST:
            return np.full(len(features), float(np.median(self._values)) if self._values else 0.0)
        if self._fitted is None:
            rows = np.array(self._rows)
            scale = fit_scale(rows, np.ones(rows.shape[1]), _LENGTH)
            correction: Kriging[ScaledFeatures] = Kriging(SquaredExponential(_STD**2, _NOISE_STD), clip=_CLIP)
            for row in rows:
                correction.observe(scale.apply(row[None, :]))
            self._fitted = scale, correction
        scale, correction = self._fitted
        batch = Batch(scale.apply(features), correction.similarity)
        batch.extend(correction.factor, correction.observed)
        mean, weights = correction.solve(dict(enumerate(self._values)))
        result: Floats = mean + weights @ batch.rows
        return result

    def to_builtins(self) -> dict[str, object]:
        """Return the observations as builtin objects, for JSON."""
        return {"features": self._rows, "residuals": self._values}

    @classmethod
    def from_builtins(cls, data: object) -> Residuals:
        """Restore the observations that `to_builtins` returned.

        Raises
        ------
        msgspec.ValidationError
            The data has another form.
        """
        saved = convert(data, _SavedResiduals)
        if len({len(row) for row in saved.features}) > 1 or len(saved.features) != len(saved.residuals):
            raise msgspec.ValidationError("features and residuals differ in number")
        residuals = cls()
        residuals._rows, residuals._values = saved.features, saved.residuals
        return residuals


class _SavedResiduals(msgspec.Struct, forbid_unknown_fields=True):
    features: list[list[float]]
    residuals: list[float]
