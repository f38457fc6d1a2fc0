"""Strategies written as a generator (a walk) that yields points and waits for their times.

A subclass yields batches of points and receives their answers; this class does all the rest that the contract of
`search.base.Strategy` requires. The walk sees only the answers to its own points. Its proposals therefore do not depend
on the order in which trials are reported, and a new object that gets the same trials reaches the same state. If a trial
changes an answer that the walk has used already (a schedule was measured again), the walk starts again with all
answers.

If devices would be idle (``ask(..., ahead=True)``), the walk continues while answers are missing: it receives `MISSING`
for them, and the answers later from `take_late`. Its proposals then depend on what was known at the time. A new object
that gets the same trials walks with the answers alone, and `take_strangers` returns the trials that this walk did not
propose.
"""

from __future__ import annotations

import statistics
from abc import abstractmethod
from collections.abc import Generator, Hashable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.knobs import make_knobs, make_limited_knobs
from anatune.search.points import Integers, find_legal_point
from anatune.search.strategy import SpaceStrategy

_DRAWS = 40
"""Number of draws without a new program after which the space counts as exhausted."""
_BARREN = 256
"""Number of consecutive batches without a new point after which the walk counts as finished."""


class TrialAnswer(NamedTuple):
    """The result for a point: seconds, or times relative to the reference kernel; no samples after a failure."""

    cost: float | None
    samples: tuple[float, ...] = ()
    is_missing: bool = False


MISSING = TrialAnswer(None, is_missing=True)
"""Answer of a point without a trial."""

Walk = Generator[Integers, list[TrialAnswer], None]


class StepwiseStrategy(SpaceStrategy):
    """A strategy whose `walk` yields batches (num_points, num_columns) and receives an `Answer` for each point.

    Points of the same program are measured once; the walk receives the same answer for all of them. A walk that yields
    no points waits for a late answer. While `is_ahead`, it should yield something else, because devices are idle.
    """

    is_ahead = False
    """True if devices are idle unless the walk continues without answers."""
    has_limits = False
    """True if the published form keeps the limits of published searches on GPUs, see `search.knobs`."""

    def _prepare(self) -> None:
        self.knobs = make_limited_knobs(self.model) if self.as_published and self.has_limits else make_knobs(self.model)
        self._keys: dict[bytes, Hashable] = {}
        self._asked: set[Hashable] = set()
        self._trials: dict[Hashable, list[Trial]] = {}
        self._points: dict[Hashable, Integers] = {}
        """Program -> one of its measured points."""
        self._is_relative = True
        self._restart()

    @abstractmethod
    def walk(self) -> Walk:
        """Yield batches of legal points and receive their answers; return when there is nothing left to propose."""

    @property
    def num_missing(self) -> int:
        """Number of answers that the walk continued without."""
        return len(self._pending)

    def is_missing(self, point: Integers) -> bool:
        """Return whether the walk continued without the answer to a point, which has not arrived yet."""
        return self.program(point) in self._pending

    def find_answer(self, point: Integers) -> TrialAnswer:
        """Return the answer to a point, or `MISSING`."""
        return self._met.get(self.program(point), MISSING)

    def take_late(self) -> tuple[Integers, list[TrialAnswer]]:
        """Return the points whose answers arrived after the walk had continued without them, and these answers."""
        points = self._late.copy()
        self._late.clear()
        return self._stack_points(points), [self.find_answer(point) for point in points]

    def take_strangers(self) -> tuple[Integers, list[TrialAnswer]]:
        """Return the points that were measured although the walk did not propose them, and their answers.

        They exist only if the walk continued without answers; otherwise it depends only on its own points.
        """
        points = self._strangers.copy()
        self._strangers.clear()
        return self._stack_points(points), [self.find_answer(point) for point in points]

    def receive_new(self, points: Integers, answers: list[TrialAnswer]) -> Iterator[tuple[Integers, list[TrialAnswer]]]:
        """Yield (points, answers) of everything that is new to the walk: from a batch, late answers, strangers."""
        answered = [at for at, answer in enumerate(answers) if not answer.is_missing]
        yield points[answered], [answers[at] for at in answered]
        for new_points, new_answers in (self.take_late(), self.take_strangers()):
            if new_answers:
                yield new_points, new_answers

    def _stack_points(self, points: Sequence[Integers]) -> Integers:
        return np.array(points, dtype=np.int64).reshape(-1, len(self.space.columns))

    def draw(self, count: int, *stream: int) -> Integers:
        """Return `count` uniform random legal points; the same ones for each `stream`."""
        return self.knobs.draw(count, (self.seed, *stream))

    def random(self, *stream: int) -> np.random.Generator:
        """Return a random generator; the same one for each `stream`."""
        return np.random.default_rng([self.seed, *stream])

    def program(self, point: Integers) -> Hashable:
        """Return the key of a point's program."""
        data = point.tobytes()
        if data not in self._keys:
            self._keys[data] = self.model.program_key(point)
        return self._keys[data]

    def is_new(self, point: Integers) -> bool:
        """Return whether the walk has not met the program of a point."""
        return self.program(point) not in self._met

    def filter_new(self, points: Integers) -> Integers:
        """Return the points whose programs the walk has not met, each program once, in order."""
        first: dict[Hashable, int] = {}
        for number, point in enumerate(points):
            if self.is_new(point):
                first.setdefault(self.program(point), number)
        return points[list(first.values())]

    def draw_new(self, count: int, *stream: int) -> Integers:
        """Return up to `count` random points that the walk has not met; none if the space seems exhausted."""
        for attempt in range(_DRAWS):
            new_points = self.filter_new(self.draw(max(count, 16), *stream, attempt))
            if len(new_points):
                return new_points[:count]
        return np.empty((0, len(self.space.columns)), dtype=np.int64)

    # ---- ask and tell ----------------------------------------------------------------------------------------

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer if the walk needs trials first, none if it has finished.

        With `ahead` it continues without the missing answers if it has something to propose.
        """
        schedules: list[Schedule] = []
        futile = 0
        self.is_ahead = ahead
        while len(schedules) < n and self._advance():
            for point, key in zip(self._batch, self._batch_keys, strict=True):
                if key not in self._asked and key not in self._trials:
                    self._asked.add(key)
                    schedules.append(self.space.schedule_of(point))
                    futile = 0
                    if len(schedules) == n:
                        break
            else:
                futile += 1
                if not ahead or futile > _BARREN or not self._go_ahead():
                    break
        return schedules

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from trials; schedules that are not legal points of this space are ignored."""
        touched: set[Hashable] = set()
        for trial in trials:
            point = find_legal_point(self.model, trial.schedule)
            if point is None:
                continue
            key = self.program(point)
            program_trials = self._trials.setdefault(key, [])
            if trial in program_trials:
                continue
            program_trials.append(trial)
            touched.add(key)
            self._points[key] = point
            if key not in self._met:
                self._unmet[key] = point
            if self._is_relative and trial.measurement.time_s is not None and trial.measurement.relative is None:
                self._is_relative = False
                touched = set(self._trials)
        met = [key for key in touched if key in self._met and key not in self._pending]
        if any(self._answer(key) != self._met[key] for key in met):
            self._restart()

    # ---- the walk --------------------------------------------------------------------------------------------

    def _restart(self) -> None:
        self._met: dict[Hashable, TrialAnswer] = {}
        """Program -> the answer that the walk received, or `MISSING`."""
        self._pending: dict[Hashable, Integers] = {}
        """Programs whose answers the walk continued without."""
        self._unmet: dict[Hashable, Integers] = {}
        """Measured programs that the walk has not reached."""
        self._late: list[Integers] = []
        self._strangers: list[Integers] = []
        self._walk: Walk | None = None
        self._batch: Integers = np.empty((0, len(self.space.columns)), dtype=np.int64)
        self._batch_keys: list[Hashable] = []
        self._is_finished = False
        self._barren = 0
        self._unmet |= self._points

    def _advance(self) -> bool:
        """Continue the walk while all its answers are known; return whether it waits for one."""
        while not self._is_finished:
            if any(key not in self._trials for key in self._batch_keys):
                return True
            if self._walk is not None and not self._batch_keys and self._pending and not self._has_late():
                return True
            self._send()
        return False

    def _go_ahead(self) -> bool:
        """Continue the walk without the missing answers; return whether it may have something to propose."""
        waited = not self._batch_keys
        for key, point in self._unmet.items():
            if key not in self._batch_keys:
                self._met[key] = self._answer(key)
                self._strangers.append(point)
        self._unmet = {}
        self._send()
        return not self._is_finished and not (waited and not self._batch_keys)

    def _has_late(self) -> bool:
        return any(key in self._trials for key in self._pending)

    def _send(self) -> None:
        """Send the walk its answers, and take its next batch."""
        try:
            if self._walk is None:
                self._walk = self.walk()
                batch = next(self._walk)
            else:
                batch = self._walk.send(self._collect_answers())
        except StopIteration:
            self._is_finished = True
            self._batch_keys = []
        else:
            self._batch = np.asarray(batch, dtype=np.int64).reshape(-1, len(self.space.columns))
            self._batch_keys = [self.program(point) for point in self._batch]
            self._is_finished = self._barren > _BARREN

    def _collect_answers(self) -> list[TrialAnswer]:
        """Return the answers to the batch; record which are missing, and which have arrived."""
        answers = [self._answer(key) if key in self._trials else MISSING for key in self._batch_keys]
        is_barren = all(key in self._met for key in self._batch_keys)
        for key in [key for key in self._pending if key in self._trials]:
            self._met[key] = self._answer(key)
            self._late.append(self._pending.pop(key))
        self._barren = self._barren + 1 if is_barren and not self._pending else 0
        for key, point, answer in zip(self._batch_keys, self._batch, answers, strict=True):
            self._met[key] = answer
            self._unmet.pop(key, None)
            if answer.is_missing:
                self._pending[key] = point
        return answers

    def _answer(self, key: Hashable) -> TrialAnswer:
        """Return the answer for a program: the median of its successful trials."""
        good = [trial.measurement for trial in self._trials[key] if trial.measurement.time_s is not None]
        if not good:
            return TrialAnswer(None)
        if self._is_relative:
            samples = [t / r for one in good for t, r in zip(one.times_s, one.reference_times_s, strict=True)]
        else:
            samples = [t for one in good for t in one.times_s]
        costs = [(one.relative if self._is_relative else one.time_s) or 0.0 for one in good]
        return TrialAnswer(statistics.median(costs), tuple(sorted(samples)))
