"""What measurements say about a model's errors, learned while another program searches: no space, no strategy."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from anatune.decoding import converted
from anatune.search.learning.kriging import Batch, Kriging
from anatune.search.learning.scaled import Scale, Scaled, SquaredExponential, scale_of
from anatune.search.points import Floats

__all__ = ["Residuals"]


_STD, _NOISE_STD, _LENGTH, _CLIP = 0.5, 0.3, 0.5, 1.5
"""Prior of log(measured / predicted): standard deviation, noise, length (see `scale_of`), and how far from the median
one counts. Source: ten tables of MetaSchedule's CPU spaces on a Zen 4 machine (bench/cpu/metaschedule_ranking.py),
24 of 60 candidates known: the best of the first four of the others goes from 1.063 to 1.047 times the best, the rank
correlation stays 0.78; longer lengths, less noise and ensembles of trees were worse."""
_MOST = 512
"""Observations that count, the latest: the work for one more grows with their number."""
_FEWEST = 4
"""Observations from which on there is a correction: fewer give no scale of the features."""


class Residuals:
    """Kriging of log(measured / predicted) over features that the caller computes.

    Guarantees: deterministic; what is predicted depends only on the observations and their order.
    """

    def __init__(self) -> None:
        self._rows: list[list[float]] = []
        self._values: list[float] = []
        self._fitted: tuple[Scale, Kriging[Scaled]] | None = None

    def __len__(self) -> int:
        return len(self._values)

    def _forget_others(self, features: Floats) -> None:
        """Drop what was saved with features of another version."""
        if self._rows and len(self._rows[0]) != features.shape[1]:
            self._rows, self._values, self._fitted = [], [], None

    def observe(self, features: Floats, residuals: Sequence[float] | Floats) -> None:
        """Take in observations: features (num, num_features), log(measured / predicted) of each."""
        self._forget_others(features)
        self._rows += np.asarray(features, dtype=np.float64).tolist()
        self._values += [float(value) for value in residuals]
        self._rows, self._values = self._rows[-_MOST:], self._values[-_MOST:]
        self._fitted = None

    def predict(self, features: Floats) -> Floats:
        """Return the expected residuals of points, (num_points,), zeros before anything is known."""
        self._forget_others(features)
        if len(self._values) < _FEWEST:
            return np.full(len(features), float(np.median(self._values)) if self._values else 0.0)
        if self._fitted is None:
            rows = np.array(self._rows)
            scale = scale_of(rows, np.ones(rows.shape[1]), _LENGTH)
            correction: Kriging[Scaled] = Kriging(SquaredExponential(_STD**2, _NOISE_STD), clip=_CLIP)
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
        """Return what is known, for JSON."""
        return {"features": self._rows, "residuals": self._values}

    @classmethod
    def from_builtins(cls, data: object) -> Residuals:
        """Return what `to_builtins` gave.

        Raises
        ------
        msgspec.ValidationError
            It is something else.
        """
        known = converted(data, _Saved)
        if len({len(row) for row in known.features}) > 1 or len(known.features) != len(known.residuals):
            raise msgspec.ValidationError("features and residuals differ in number")
        found = cls()
        found._rows, found._values = known.features, known.residuals
        return found


class _Saved(msgspec.Struct, forbid_unknown_fields=True):
    features: list[list[float]]
    residuals: list[float]
