"""Strategies that correct a model's times by what is measured, point after point.

Each question is the candidate of the smallest corrected time minus a multiple of its uncertainty (a lower confidence
bound), where points that are being measured count as known. Nothing is known at first, so that the first questions
explore; later every second one asks for the best estimate, without a bonus for what is unknown: exploration never takes
over. Candidates are a pool of promising points and the neighbourhoods of the best measured ones.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.search.learning.kriging import Batch, Batched, Kriging
from anatune.search.points import legal_point
from anatune.search.strategy import SpaceStrategy

__all__ = ["Candidates", "ObservingOptions", "ObservingStrategy"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
FeaturesT = TypeVar("FeaturesT", bound=Batched)

_WIDTH = 64
"""Best candidates that are looked at first for one that is new."""


class ObservingOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of such a strategy.

    Attributes
    ----------
    num_first : int
        First questions, all of which explore.
    exploration : float
        Standard deviations that a point may gain while it explores.
    num_centres : int
        Best measured points whose neighbourhoods are in the pool.
    failure_penalty : float
        Added to the log time of points like those that failed, at most.
    """

    num_first: int = 6
    exploration: float = 1.5
    num_centres: int = 3
    failure_penalty: float = 0.5


OptionsT = TypeVar("OptionsT", bound=ObservingOptions)


class Candidates(NamedTuple, Generic[FeaturesT]):
    """Points with everything about them that does not change."""

    points: Integers
    log_times: Floats
    batch: Batch[FeaturesT]


class ObservingStrategy(SpaceStrategy[OptionsT], Generic[OptionsT, FeaturesT]):
    """Asks one point after the other; every point that was asked or told is an observation of a `Kriging`.

    What it asks depends only on the seed, on the set of told trials, and on what it asked that was not told.
    """

    def _prepare(self) -> None:
        self._kriging = self._begin()
        self._numbers: dict[bytes, int] = {}
        """Point -> number of its observation."""
        self._programs: set[Hashable] = set()
        self._log_times: dict[bytes, float] = {}
        self._values: dict[bytes, list[Trial]] = {}
        self._pool: Candidates[FeaturesT] | None = None
        self._around: dict[bytes, Candidates[FeaturesT]] = {}

    @abstractmethod
    def _begin(self) -> Kriging[FeaturesT]:
        """Return what learns."""

    @abstractmethod
    def _features(self, points: Integers) -> tuple[Floats, FeaturesT]:
        """Return the logarithms of the predicted times of points, and their features."""

    @abstractmethod
    def _first(self) -> Integers:
        """Return the candidates that do not depend on measurements."""

    @abstractmethod
    def _near(self, point: Integers) -> Integers:
        """Return the legal points around a point."""

    def _closeness(self, one: FeaturesT, many: FeaturesT) -> Floats:
        """Return how much points share with one that failed, at most 1."""
        return self._kriging.similarity.covariance(one, many) / self._kriging.similarity.variance

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the candidates are used up."""
        found: list[Schedule] = []
        while len(found) < n:
            point = self._next()
            if point is None:
                break
            self._note(point)
            found.append(self.space.schedule_of(point))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those that are not legal points of this space are left out."""
        for trial in trials:
            point = legal_point(self.model, trial.schedule)
            if point is not None:
                self._note(point)
                self._values.setdefault(point.tobytes(), []).append(trial)

    def _note(self, point: Integers) -> None:
        """Make a point an observation."""
        key = point.tobytes()
        if key not in self._numbers:
            log_times, features = self._features(point[None, :])
            self._log_times[key] = float(log_times[0])
            self._numbers[key] = self._kriging.observe(features)
            self._programs.add(self.model.program_key(point))

    # ---- the next question -----------------------------------------------------------------------------------

    def _next(self) -> Integers | None:
        """Return the candidate of the smallest bound whose program is new; None if there is none."""
        options, (residuals, failed) = self.options, self._outcomes()
        mean, weights = self._kriging.solve(residuals)
        if self._pool is None:
            self._pool = self._candidates(self._first())
        pools = [self._pool, *(self._neighbourhood(key) for key in self._centres(residuals))]
        number = len(self._numbers)
        explores = number < options.num_first or number % 2 == 1
        bounds = []
        for pool in pools:
            pool.batch.extend(self._kriging.factor, self._kriging.observed)
            bound = pool.log_times + mean + weights @ pool.batch.rows
            if explores:
                bound -= options.exploration * np.sqrt(pool.batch.variance)
            for features in failed:
                bound += options.failure_penalty * self._closeness(features, pool.batch.features)
            bounds.append(np.round(bound, 9))  # equal points stay equal, whatever was observed first
        return self._first_new([pool.points for pool in pools], np.concatenate(bounds))

    def _first_new(self, pools: Sequence[Integers], bounds: Floats) -> Integers | None:
        """Return the point of the smallest bound, of equal ones the first, whose program is no observation yet."""
        first = np.cumsum([0, *(len(points) for points in pools)])
        width = 0
        while width < len(bounds):
            width = min(max(4 * width, _WIDTH), len(bounds))
            rows = np.flatnonzero(bounds <= np.partition(bounds, width - 1)[width - 1])
            for at in rows[np.argsort(bounds[rows], kind="stable")].tolist():
                of = int(np.searchsorted(first, at, side="right")) - 1
                point: Integers = pools[of][at - first[of]]
                if point.tobytes() not in self._numbers and self.model.program_key(point) not in self._programs:
                    return point
        return None

    def _outcomes(self) -> tuple[dict[int, float], list[FeaturesT]]:
        """Return the residual of each measured point, and the features of the points that failed."""
        measured: dict[bytes, list[Trial]] = {}
        failed = []
        for key in sorted(self._values):
            good = [trial for trial in self._values[key] if trial.measurement.time_s is not None]
            if good:
                measured[key] = good
            elif all(trial.measurement.outcome is not Outcome.LOST_DEVICE for trial in self._values[key]):
                failed.append(self._kriging.observed[self._numbers[key]])
        relative = all(trial.measurement.relative is not None for good in measured.values() for trial in good)
        residuals = {}
        for key, good in measured.items():
            values = sorted((t.measurement.relative if relative else t.measurement.time_s) or math.nan for t in good)
            residuals[self._numbers[key]] = math.log(values[len(values) // 2]) - self._log_times[key]
        return residuals, failed

    # ---- candidates ------------------------------------------------------------------------------------------

    def _centres(self, residuals: dict[int, float]) -> list[bytes]:
        """Return the best measured points, best first; none of a list, all of which is in the pool."""
        if self.space.listed is not None:
            return []
        measured = [key for key in self._numbers if self._numbers[key] in residuals]
        measured.sort(key=lambda key: (residuals[self._numbers[key]] + self._log_times[key], key))
        return measured[: self.options.num_centres]

    def _neighbourhood(self, key: bytes) -> Candidates[FeaturesT]:
        if key not in self._around:
            self._around[key] = self._candidates(self._near(np.frombuffer(key, dtype=np.int64)))
        return self._around[key]

    def _candidates(self, points: Integers) -> Candidates[FeaturesT]:
        log_times, features = self._features(points)
        return Candidates(points, log_times, Batch(features, self._kriging.similarity))
