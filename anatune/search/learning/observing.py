"""Strategies that correct the model's times by measurements, point after point.

The next proposal is the candidate with the smallest corrected time minus a multiple of its uncertainty (a lower
confidence bound); points that are being measured count as known. At first nothing is known and the proposals explore;
later every second one is the best estimate without a bonus for uncertainty, so that exploration never dominates.
Candidates are a pool of promising points and the neighbourhoods of the best measured ones.
"""

from __future__ import annotations

import bisect
import itertools
import math
from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.search.learning.kriging import Batch, Kriging, take_row
from anatune.search.points import Floats, Integers, find_legal_point
from anatune.search.strategy import SpaceStrategy
from anatune.templates.base.model import Model

FeaturesT = TypeVar("FeaturesT", bound=NamedTuple)

_WIDTH = 64
"""Number of best candidates among which a new one is searched first."""


class CandidatePool(Generic[FeaturesT]):
    """Points with all that changes little from one proposal to the next.

    Attributes
    ----------
    points : (num_points, num_columns) int64
        The points.
    log_times : (num_points,) float64
        Logarithms of their predicted times.
    batch : Batch
        Their features, and the posterior given the observations.
    closed : (num_points,) bool
        Whether the point's program is known to be an observation, so that it is never proposed again.
    penalty : (num_points,) float64
        How similar they are to failed points; `failed` lists the points that it includes.
    estimate : (num_points,) float64, optional
        Corrected log times, computed with the solution `estimated_with`.
    """

    def __init__(self, points: Integers, log_times: Floats, batch: Batch[FeaturesT]) -> None:
        self.points, self.log_times, self.batch = points, log_times, batch
        self.closed = np.zeros(len(points), dtype=bool)
        self.penalty = np.zeros(len(points))
        self.failed: list[bytes] = []
        self.estimate: Floats | None = None
        self.estimated_with: Floats | None = None
        self._programs: dict[int, Hashable] = {}

    def program(self, model: Model, number: int) -> Hashable:
        """Return the key of a point's program."""
        if number not in self._programs:
            self._programs[number] = model.program_key(self.points[number])
        return self._programs[number]


class ObservingStrategy(SpaceStrategy, Generic[FeaturesT]):
    """A strategy that proposes points one by one; all proposed and reported points are observations of a `Kriging`.

    Proposals depend only on the seed, the set of reported trials, and the proposals without a trial.
    """

    num_first = 6
    """Number of first proposals, all of which explore."""
    exploration = 1.5
    """Number of standard deviations that a point's bound is lowered by while exploring."""
    num_centres = 3
    """Number of best measured points whose neighbourhoods are candidates."""
    failure_penalty = 0.5
    """Largest number that is added to the log time of points similar to failed ones."""

    def _prepare(self) -> None:
        self._kriging = self._begin()
        self._numbers: dict[bytes, int] = {}
        """Point -> number of its observation."""
        self._programs: set[Hashable] = set()
        self._log_times: dict[bytes, float] = {}
        self._values: dict[bytes, list[Trial]] = {}
        self._is_relative = True
        self._measured: dict[bytes, float] = {}
        """Point -> log of the measured time, seconds or relative to the reference kernel."""
        self._residuals: dict[int, float] = {}
        """Number of an observation -> log(measured / predicted)."""
        self._ranking: list[tuple[float, bytes]] = []
        """Measured points, best first, by log time."""
        self._failed: list[bytes] = []
        """Points that failed, sorted."""
        self._solved: tuple[float, Floats] | None = None
        """Solution for the present residuals; proposals without trials do not change it."""
        self._chosen: tuple[CandidatePool[FeaturesT], int] | None = None
        """Pool and number of the point that is being proposed."""
        self._pool: CandidatePool[FeaturesT] | None = None
        self._around: dict[bytes, CandidatePool[FeaturesT]] = {}

    @abstractmethod
    def _begin(self) -> Kriging[FeaturesT]:
        """Return the empty model of residuals."""

    @abstractmethod
    def _features(self, points: Integers) -> tuple[Floats, FeaturesT]:
        """Return the logarithms of the predicted times of points, and their features."""

    @abstractmethod
    def _first(self) -> Integers:
        """Return the candidates that do not depend on measurements."""

    @abstractmethod
    def _near(self, point: Integers) -> Integers:
        """Return the legal points near a point."""

    def _closeness(self, failed: FeaturesT, many: FeaturesT) -> Floats:
        """Return the similarity of points with a failed one, at most 1."""
        return self._kriging.similarity.covariance(failed, many) / self._kriging.similarity.variance

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer only if no candidates are left."""
        schedules: list[Schedule] = []
        while len(schedules) < n:
            point = self._next()
            if point is None:
                break
            self._note(point)
            schedules.append(self.space.schedule_of(point))
        return schedules

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from trials; schedules that are not legal points of this space are ignored."""
        for trial in trials:
            point = find_legal_point(self.model, trial.schedule)
            if point is not None:
                self._note(point)
                self._learn(point.tobytes(), trial)

    def _note(self, point: Integers) -> None:
        """Make a point an observation."""
        key, chosen, self._chosen = point.tobytes(), self._chosen, None
        if key in self._numbers:
            return
        if chosen is not None and chosen[0].points[chosen[1]].tobytes() == key:
            pool, number = chosen
            log_time, features, program = (
                pool.log_times[number],
                take_row(pool.batch.features, number),
                pool.program(self.model, number),
            )
        else:
            (log_time,), features = self._features(point[None, :])
            program = self.model.program_key(point)
        self._log_times[key] = float(log_time)
        self._numbers[key] = self._kriging.observe(features)
        self._programs.add(program)

    def _learn(self, key: bytes, trial: Trial) -> None:
        """Learn from a trial of an observed point."""
        self._values.setdefault(key, []).append(trial)
        self._solved = None
        if self._is_relative and trial.measurement.time_s is not None and trial.measurement.relative is None:
            self._is_relative = False
            for other in self._values:
                self._update_point(other)
        else:
            self._update_point(key)

    def _update_point(self, key: bytes) -> None:
        """Update the measured time, residual and failure of a point from its trials."""
        number, trials = self._numbers[key], self._values[key]
        if key in self._measured:
            self._ranking.remove((self._measured.pop(key), key))
            del self._residuals[number]
        good = [trial.measurement for trial in trials if trial.measurement.time_s is not None]
        if good:
            values = sorted((one.relative if self._is_relative else one.time_s) or math.nan for one in good)
            log_time = self._measured[key] = math.log(values[len(values) // 2])
            self._residuals[number] = log_time - self._log_times[key]
            bisect.insort(self._ranking, (log_time, key))
        failed = not good and all(trial.measurement.outcome is not Outcome.LOST_DEVICE for trial in trials)
        if failed != (key in self._failed):
            if failed:
                bisect.insort(self._failed, key)
            else:
                self._failed.remove(key)

    def _predict_anew(self) -> None:
        """Predict all times again after the model has changed; measured times stay."""
        points = np.array([np.frombuffer(key, dtype=np.int64) for key in self._numbers])
        self._log_times = dict(zip(self._numbers, self._predict_log_times(points).tolist(), strict=True))
        for key, log_time in self._measured.items():
            self._residuals[self._numbers[key]] = log_time - self._log_times[key]
        for pool in (self._pool, *self._around.values()):
            if pool is not None:
                pool.log_times, pool.estimate = self._predict_log_times(pool.points), None
        self._solved = None

    def _predict_log_times(self, points: Integers) -> Floats:
        return np.asarray(np.log(self.model.times(points)[0]), dtype=np.float64)

    # ---- the next proposal -----------------------------------------------------------------------------------

    def _next(self) -> Integers | None:
        """Return the candidate with the smallest bound whose program is new, or None."""
        if self._solved is None:
            self._solved = self._kriging.solve(self._residuals)
        mean, weights = self._solved
        if self._pool is None:
            self._pool = self._candidates(self._first())
        pools = [self._pool, *(self._neighbourhood(key) for key in self._centres())]
        number = len(self._numbers)
        explores = number < self.num_first or number % 2 == 1
        bounds = []
        for pool in pools:
            pool.batch.extend(self._kriging.factor, self._kriging.observed)
            if pool.estimate is None or pool.estimated_with is not weights:
                pool.estimate = pool.log_times + mean + weights @ pool.batch.rows[: len(weights)]
                pool.estimated_with = weights
            bound = pool.estimate.copy()
            if explores:
                bound -= self.exploration * np.sqrt(pool.batch.variance)
            bound += self.failure_penalty * self._penalty(pool)
            bound[pool.closed] = np.inf
            bounds.append(np.round(bound, 9))  # equal points stay equal in any order of observations
        return self._first_new(pools, np.concatenate(bounds))

    def _penalty(self, pool: CandidatePool[FeaturesT]) -> Floats:
        """Return the similarity of candidates with the failed points."""
        if not set(pool.failed) <= set(self._failed):
            pool.failed, pool.penalty = [], np.zeros(len(pool.points))
        for key in self._failed if len(pool.failed) < len(self._failed) else ():
            if key not in pool.failed:
                pool.failed.append(key)
                pool.penalty += self._closeness(self._kriging.observed[self._numbers[key]], pool.batch.features)
        return pool.penalty

    def _first_new(self, pools: Sequence[CandidatePool[FeaturesT]], bounds: Floats) -> Integers | None:
        """Return the point with the smallest bound (the first of equal ones) whose program is no observation yet."""
        starts = [0, *itertools.accumulate(len(pool.points) for pool in pools)]
        width = 0
        while width < len(bounds):
            width = min(max(4 * width, _WIDTH), len(bounds))
            rows = np.flatnonzero(bounds <= np.partition(bounds, width - 1)[width - 1])
            for row in rows[np.argsort(bounds[rows], kind="stable")].tolist():
                if bounds[row] == np.inf:
                    return None
                pool_number = bisect.bisect_right(starts, row) - 1
                pool, number = pools[pool_number], row - starts[pool_number]
                point: Integers = pool.points[number]
                if point.tobytes() not in self._numbers and pool.program(self.model, number) not in self._programs:
                    self._chosen = pool, number
                    return point
                pool.closed[number] = True
        return None

    # ---- candidates ------------------------------------------------------------------------------------------

    def _centres(self) -> list[bytes]:
        """Return the best measured points, best first; [] for a list, whose points are all in the pool."""
        return [] if self.space.listed is not None else [key for _, key in self._ranking[: self.num_centres]]

    def _neighbourhood(self, key: bytes) -> CandidatePool[FeaturesT]:
        if key not in self._around:
            self._around[key] = self._candidates(self._near(np.frombuffer(key, dtype=np.int64)))
        return self._around[key]

    def _candidates(self, points: Integers) -> CandidatePool[FeaturesT]:
        log_times, features = self._features(points)
        return CandidatePool(points, log_times, Batch(features, self._kriging.similarity))
