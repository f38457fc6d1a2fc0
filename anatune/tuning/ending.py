"""How a session ends: when, before its trials are used up, and the best trials measured once more in turn.

It ends near enough to the bound, or after nothing better for a while. Then the plan's first choice, the best trial and
the runners-up are compared. Ctrl-C ends it between steps, never inside one.
"""

from __future__ import annotations

import math
import signal
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Literal

import msgspec

from anatune.core.trial import Measurement, Trial
from anatune.measure.run.timing import paired_test
from anatune.records.choice import choose_winner

Ended = Literal["trials", "stop_at", "patience", "time_limit", "space", "interrupted"]
"""Why a session ended: all trials were made; the best one is as near to its bound as was asked for; nothing better for
as many trials as was asked for; the time was up; there are no more schedules; Ctrl-C."""

_SAME = 0.005
"""Times that differ by less are no news, as in the final comparison (`measure.run.timing.alternate`)."""
_DEVIATIONS = 2.0
"""Standard errors of a difference that one in forty of equal kernels exceeds."""


def beyond_noise(trial: Measurement, leader: Measurement) -> bool:
    """Whether a trial is faster than another by more than their samples explain.

    By times over the reference kernel's, where both have that. A single sample says nothing of its noise.
    """
    relative = trial.relative is not None and leader.relative is not None
    (log_s, error), (leading_s, leading_error) = (_log_time(each, relative=relative) for each in (trial, leader))
    return leading_s - log_s > max(_SAME, _DEVIATIONS * math.hypot(error, leading_error))


def _log_time(measurement: Measurement, *, relative: bool) -> tuple[float, float]:
    """Return the logarithm of a time that was measured, and its standard error."""
    samples = measurement.times_s
    if relative:
        samples = tuple(sample / base for sample, base in zip(samples, measurement.reference_times_s, strict=True))
    logs = [math.log(sample) for sample in samples]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return statistics.median(logs), error


class Ending:
    """Judges a session's trials as they come.

    A better one, for `patience`, is one that is faster than the last better one by more than their noise. What was on
    its way when that one came could not know of it, and does not count: with many devices a session goes on until as
    many trials were asked for since and came back.

    Parameters
    ----------
    bound_s : float
        Time that no kernel undercuts.
    stop_at : float, optional
        Share of the bound, in (0, 1]: the session ends when bound over the best time is at least that.
    patience : int, optional
        Trials without a better one, >= 1.
    """

    def __init__(self, bound_s: float, stop_at: float | None = None, patience: int | None = None) -> None:
        self._enough_s = None if stop_at is None else bound_s / stop_at
        self._patience = patience
        self._leader: Measurement | None = None
        self._first: Measurement | None = None
        self._done = self._since = 0
        self._is_near = False

    def add(self, measurement: Measurement, num_asked: int) -> None:
        """Take in a trial; `num_asked` schedules were asked for by then, it and earlier ones included."""
        self._done += 1
        if measurement.time_s is None:
            return
        self._first = self._first or measurement
        self._is_near |= self._enough_s is not None and time_beside(measurement, self._first) <= self._enough_s
        if self._patience is not None and (self._leader is None or beyond_noise(measurement, self._leader)):
            self._leader, self._since = measurement, max(num_asked, self._done)

    @property
    def reason(self) -> Ended | None:
        """Why nothing more is asked for; None: go on."""
        if self._is_near:
            return "stop_at"
        return "patience" if self._patience is not None and self._done - self._since >= self._patience else None


# ---- the final comparison --------------------------------------------------------------------------------------

_CONTENDERS = 3
_CONTENDING = 1.15
"""The best trials that contend, at most so many, up to so many times the best time; and the plan's choice."""


class Contender(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One schedule of the final comparison: the number of its trial, and what it took this time."""

    number: int
    measurement: Measurement


class FinalComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contenders re-measured in alternating pairs. Immutable; JSON both ways.

    Attributes
    ----------
    contenders : tuple of Contender
        The plan's own first choice and the best of the trials.
    best : int
        Number of the winner's trial. It is never slower than the plan's first choice in the rounds that both ran.
    speedup : float or None
        Time of the plan's first choice over the winner's (1 if it is the winner); None if it did not run.
    low, high : float or None
        Confidence interval of `speedup`, 95 %, from a paired t-test.
    """

    contenders: tuple[Contender, ...]
    best: int
    speedup: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def decided(self) -> bool:
        """Whether the winner is faster than the plan's first choice beyond doubt (95 %)."""
        return self.low is not None and self.low > 1.0


def _times(trials: Sequence[Trial]) -> list[float]:
    """Return what trials that ran are compared by: times over the reference's beside them, where all have that.

    The machine's speed drifts.
    """
    relatives = [trial.measurement.relative for trial in trials]
    if None not in relatives:
        return [relative or 0.0 for relative in relatives]
    return [trial.measurement.time_s or 0.0 for trial in trials]


def speed_over(trial: Trial, other: Trial) -> float:
    """Return how many times as fast as another one a trial ran, as `Standing` compares them; both ran."""
    return (other.measurement.time_s or 0.0) / time_beside(trial.measurement, other.measurement)


def time_beside(measurement: Measurement, first: Measurement) -> float:
    """Return the seconds of a kernel at the speed that the machine had beside `first`; both ran.

    They are as measured where the reference kernel did not run beside both.
    """
    if measurement.relative is None or first.relative is None:
        return measurement.time_s or 0.0
    return (first.time_s or 0.0) * measurement.relative / first.relative


def equalise_speed(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials with their times at one speed of the machine: the speed beside the first trial that ran.

    Each sample is divided by the time of the reference kernel beside it. The time of the first trial stays as it was
    measured, and the order of the times is that of `rank_trials`. If a trial that ran has no reference times, all
    trials are returned as they are.
    """
    ran = [trial.measurement for trial in trials if trial.measurement.time_s is not None]
    if not ran or any(measurement.relative is None for measurement in ran):
        return list(trials)
    unit_s = (ran[0].time_s or 0.0) / (ran[0].relative or 1.0)
    return [_rescale(trial, unit_s) for trial in trials]


def _rescale(trial: Trial, unit_s: float) -> Trial:
    """Return a trial as if the reference kernel had taken `unit_s` beside each of its samples."""
    measurement = trial.measurement
    if measurement.time_s is None:
        return trial
    pairs = zip(measurement.times_s, measurement.reference_times_s, strict=True)
    times_s = tuple(unit_s * sample / base for sample, base in pairs)
    references_s = (unit_s,) * len(times_s)
    measurement = msgspec.structs.replace(measurement, times_s=times_s, reference_times_s=references_s)
    return msgspec.structs.replace(trial, measurement=measurement)


def time_of_best(best: Trial | None, first: Trial | None, comparison: FinalComparison | None) -> float | None:
    """Return the seconds of a session's best, None if nothing ran.

    Parameters
    ----------
    best, first : Trial or None
        The winner and the plan's first choice, as `equalise_speed` returns them. After a comparison of both, the time
        is that of the first choice over the speedup, so that the three figures agree.
    """
    first_s = None if first is None else first.measurement.time_s
    if first_s is not None and comparison is not None and comparison.speedup is not None:
        return first_s / comparison.speedup
    return None if best is None else best.measurement.time_s


def rank_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ran, fastest first, equal ones in order; see `_times`."""
    ran = [trial for trial in trials if trial.measurement.time_s is not None]
    times = _times(ran)
    return [ran[at] for at in sorted(range(len(ran)), key=times.__getitem__)]


class Standing:
    """What a session knows of its trials without looking at all of them after each.

    Attributes
    ----------
    last_number : int
        The largest number of a trial, -1 of none.
    num_ran : int
        Trials with a time.
    """

    def __init__(self) -> None:
        self.last_number, self.num_ran = -1, 0
        self._relative = True
        self._best_relative: Trial | None = None
        self._best_time: Trial | None = None

    def add(self, trial: Trial) -> None:
        """Take in a trial."""
        self.last_number = max(self.last_number, trial.number)
        if trial.measurement.time_s is None:
            return
        self.num_ran += 1
        self._relative &= trial.measurement.relative is not None
        if self._relative and (self._best_relative is None or _less(trial, self._best_relative, "relative")):
            self._best_relative = trial
        if self._best_time is None or _less(trial, self._best_time, "time_s"):
            self._best_time = trial

    @property
    def best(self) -> Trial | None:
        """The first of `rank_trials`, None of no trial that ran."""
        return self._best_relative if self._relative else self._best_time


def _less(trial: Trial, other: Trial, name: str) -> bool:
    return bool(getattr(trial.measurement, name) < getattr(other.measurement, name))


def choose_contenders(trials: Sequence[Trial], plan: Trial | None) -> list[Trial]:
    """Return who is measured again: the best trials that are close, and the plan's first choice if it ran."""
    ranked = rank_trials(trials)
    times = _times(ranked)
    chosen = [trial for trial, time in zip(ranked[:_CONTENDERS], times, strict=False) if time <= _CONTENDING * times[0]]
    if plan is not None and plan not in chosen and plan.measurement.time_s is not None:
        chosen.append(plan)
    return chosen


def compare_contenders(
    trials: Sequence[Trial], measurements: Sequence[Measurement], plan: int | None
) -> FinalComparison | None:
    """Return what measuring contenders in turn says; None if none of them ran.

    Parameters
    ----------
    trials, measurements
        The contenders' trials, and what `Measurer.compare` returned for them.
    plan : int or None
        Number of the trial of the plan's first choice; None: it was not measured.
    """
    contenders = tuple(Contender(trial.number, m) for trial, m in zip(trials, measurements, strict=True))
    ran = [contender for contender in contenders if contender.measurement.relative is not None]
    if not ran:
        return None
    best = ran[choose_winner([one.measurement.times_s for one in ran], [one.measurement.stopped_early for one in ran])]
    first = next((contender for contender in ran if contender.number == plan), None)
    if first is None:
        return FinalComparison(contenders, best.number)
    if first is best:
        return FinalComparison(contenders, best.number, 1.0, 1.0, 1.0)
    pairs = min(len(first.measurement.times_s), len(best.measurement.times_s))
    test = paired_test(first.measurement.times_s[:pairs], best.measurement.times_s[:pairs])
    if test.difference < 0.0:  # it lost to the first choice in the rounds that both ran: nothing shows it to be faster
        return FinalComparison(contenders, first.number, 1.0, 1.0, 1.0)
    width = min(test.half_width, 50.0)  # two pairs at least; JSON knows no infinity
    speedup, low, high = (math.exp(test.difference + sign * width) for sign in (0.0, -1.0, 1.0))
    return FinalComparison(contenders, best.number, speedup, low, high)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


class Interrupts:
    """A context manager that turns SIGINT into KeyboardInterrupt, but not while something is `held`.

    Does nothing outside the main thread, where the program handles SIGINT itself, or where it is ignored: who starts a
    program with ``nohup`` or in the background of a script does not want it ended from a keyboard.
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending = False
        self._installed = False

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holding:
            self._pending = True
        else:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off an interrupt until the block is done."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
