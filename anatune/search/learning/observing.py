"""What strategies share that correct a model's times by what is measured: asking, and keeping what they were told."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.model.base import Model
from anatune.search.learning.correction import Correction
from anatune.search.points import legal_point

__all__ = ["ObservingStrategy"]

Integers = NDArray[np.int64]


class ObservingStrategy(ABC):
    """Asks one point after the other; every point that was asked or told is an observation of a `Correction`.

    What it asks depends only on the seed, on the set of told trials, and on what it asked that was not told.

    Parameters
    ----------
    model, seed, ranked, options
        As for `search.base.make_strategy`; the options have ``num_centres``, best measured points to search around.
    correction : Correction
        What learns.
    """

    def __init__(
        self, model: Model, *, seed: int, ranked: Integers | None, options: Any, correction: Correction[Any]
    ) -> None:
        self._model = model
        self._seed = seed
        self._ranked = ranked
        self._options = options
        self._correction = correction
        self._numbers: dict[bytes, int] = {}
        """Point -> number of its observation."""
        self._log_times: dict[bytes, float] = {}
        self._values: dict[bytes, list[Trial]] = {}

    @abstractmethod
    def _next(self) -> Integers | None:
        """Return the next point, noted; None if there is none."""

    @abstractmethod
    def _note(self, point: Integers) -> None:
        """Make a point an observation."""

    def ask(self, n: int) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the candidates are used up."""
        found: list[Schedule] = []
        while len(found) < n:
            point = self._next()
            if point is None:
                break
            found.append(self._model.space.schedule_of(point))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those that are not legal points of this space are left out."""
        for trial in trials:
            point = legal_point(self._model, trial.schedule)
            if point is not None:
                self._note(point)
                self._values.setdefault(point.tobytes(), []).append(trial)

    def _outcomes(self) -> tuple[dict[int, float], list[Any]]:
        """Return the residual of each measured point, and the features of the points that failed."""
        measured: dict[bytes, list[Trial]] = {}
        failed = []
        for key in sorted(self._values):
            good = [trial for trial in self._values[key] if trial.measurement.time_s is not None]
            if good:
                measured[key] = good
            elif all(trial.measurement.outcome is not Outcome.LOST_DEVICE for trial in self._values[key]):
                failed.append(self._correction.observed[self._numbers[key]])
        relative = all(trial.measurement.relative is not None for good in measured.values() for trial in good)
        residuals = {}
        for key, good in measured.items():
            values = sorted((t.measurement.relative if relative else t.measurement.time_s) or math.nan for t in good)
            residuals[self._numbers[key]] = math.log(values[len(values) // 2]) - self._log_times[key]
        return residuals, failed

    def _centres(self, residuals: dict[int, float]) -> list[bytes]:
        """Return the best measured points, best first."""
        measured = [key for key in self._numbers if self._numbers[key] in residuals]
        measured.sort(key=lambda key: (residuals[self._numbers[key]] + self._log_times[key], key))
        return measured[: self._options.num_centres]
