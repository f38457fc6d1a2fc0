"""Strategies written as a walk that asks for points and waits for their times.

A subclass yields batches of points and receives their answers; this class does everything else that the contract of
`search.base.Strategy` wants. The walk sees nothing but answers to its own questions, so that what it asks depends
neither on the order nor on the batches of telling; told to a new object, the same trials lead it to the same place. A
trial that changes an answer which the walk has already used (a schedule was measured once more) makes it start over,
with all answers at hand.
"""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Generator, Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.knobs import knobs_of
from anatune.search.points import legal_point
from anatune.search.strategy import OptionsT, SpaceStrategy

__all__ = ["Answer", "StepwiseStrategy", "Walk"]

Integers = NDArray[np.int64]

_DRAWS = 40
"""Draws without a new program after which the space counts as used up."""
_BARREN = 256
"""Batches in a row without a point that the walk has not met, after which it counts as finished."""


class Answer(NamedTuple):
    """What came back for a point: seconds (or times relative to the reference kernel); no samples if it failed."""

    cost: float | None
    samples: tuple[float, ...] = ()


Walk = Generator[Integers, list[Answer], None]


class StepwiseStrategy(SpaceStrategy[OptionsT]):
    """A strategy whose `walk` yields (num_points, num_columns) batches and receives an `Answer` for each point.

    Points of the same program are measured once; the walk gets the same answer for all of them.
    """

    def _prepare(self) -> None:
        self.knobs = knobs_of(self.model)
        self._keys: dict[bytes, Hashable] = {}
        self._asked: set[Hashable] = set()
        self._trials: dict[Hashable, list[Trial]] = {}
        self._is_relative = True
        self._restart()

    @abstractmethod
    def walk(self) -> Walk:
        """Yield batches of legal points, receive their answers; return when there is nothing left to ask."""

    def draw(self, count: int, *stream: int) -> Integers:
        """Return `count` uniform legal points, a fixed draw for each `stream`."""
        return self.knobs.draw(count, (self.seed, *stream))

    def random(self, *stream: int) -> np.random.Generator:
        """Return a generator of random numbers, a fixed one for each `stream`."""
        return np.random.default_rng([self.seed, *stream])

    def program(self, point: Integers) -> Hashable:
        """Return the key of a point's program."""
        data = point.tobytes()
        if data not in self._keys:
            self._keys[data] = self.model.program_key(point)
        return self._keys[data]

    def is_new(self, point: Integers) -> bool:
        """Say whether the walk has not met this program yet."""
        return self.program(point) not in self._met

    def new_among(self, points: Integers) -> Integers:
        """Return the points whose programs the walk has not met yet, each program once, in their order."""
        first: dict[Hashable, int] = {}
        for at, point in enumerate(points):
            if self.is_new(point):
                first.setdefault(self.program(point), at)
        return points[list(first.values())]

    def draw_new(self, count: int, *stream: int) -> Integers:
        """Return up to `count` random points that the walk has not met; none where the space seems used up."""
        for attempt in range(_DRAWS):
            found = self.new_among(self.draw(max(count, 16), *stream, attempt))
            if len(found):
                return found[:count]
        return np.empty((0, len(self.space.columns)), dtype=np.int64)

    # ---- ask and tell ----------------------------------------------------------------------------------------

    def ask(self, n: int) -> list[Schedule]:
        """Return the next `n` schedules; fewer where the walk has to be told first, none when it is finished."""
        found: list[Schedule] = []
        while len(found) < n and self._advance():
            for point, key in zip(self._batch, self._batch_keys, strict=True):
                if key not in self._asked and key not in self._trials:
                    self._asked.add(key)
                    found.append(self.space.schedule_of(point))
                    if len(found) == n:
                        break
            else:
                break
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those that are not legal points of this space are left out."""
        touched: set[Hashable] = set()
        for trial in trials:
            point = legal_point(self.model, trial.schedule)
            if point is None:
                continue
            key = self.program(point)
            known = self._trials.setdefault(key, [])
            if trial in known:
                continue
            known.append(trial)
            touched.add(key)
            if self._is_relative and trial.measurement.time_s is not None and trial.measurement.relative is None:
                self._is_relative = False
                touched = set(self._trials)
        if any(key in self._met and self._answer(key) != self._met[key] for key in touched):
            self._restart()

    # ---- the walk --------------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self._met: dict[Hashable, Answer] = {}
        """Program -> the answer that the walk received."""
        self._walk: Walk | None = None
        self._batch: Integers = np.empty((0, len(self.space.columns)), dtype=np.int64)
        self._batch_keys: list[Hashable] = []
        self._is_finished = False

    def _advance(self) -> bool:
        """Let the walk go on while everything it asks for is known; return whether it waits for an answer."""
        barren = 0
        while not self._is_finished:
            if any(key not in self._trials for key in self._batch_keys):
                return True
            try:
                if self._walk is None:
                    self._walk = self.walk()
                    batch = next(self._walk)
                else:
                    answers = [self._answer(key) for key in self._batch_keys]
                    barren = 0 if any(key not in self._met for key in self._batch_keys) else barren + 1
                    self._met.update(zip(self._batch_keys, answers, strict=True))
                    batch = self._walk.send(answers)
            except StopIteration:
                self._is_finished = True
            else:
                self._batch = np.asarray(batch, dtype=np.int64).reshape(-1, len(self.space.columns))
                self._batch_keys = [self.program(point) for point in self._batch]
                self._is_finished = barren > _BARREN
        return False

    def _answer(self, key: Hashable) -> Answer:
        """Return what is known about a program: the median of its trials that went well."""
        good = [trial.measurement for trial in self._trials[key] if trial.measurement.time_s is not None]
        if not good:
            return Answer(None)
        if self._is_relative:
            samples = [t / r for one in good for t, r in zip(one.times_s, one.reference_times_s, strict=True)]
        else:
            samples = [t for one in good for t in one.times_s]
        costs = [(one.relative if self._is_relative else one.time_s) or 0.0 for one in good]
        return Answer(statistics.median(costs), tuple(sorted(samples)))
