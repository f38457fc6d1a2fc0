"""The end of a session: when it ends early, and the final comparison of the best schedules.

A session ends early when it is close enough to the lower bound, or after a number of trials without a better one. Then
the plan's first choice and the best schedules are measured again in turn. Ctrl-C never interrupts the recording of a
trial.
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
"""The reason why a session ended: all trials were measured; the best time is close enough to the lower bound; too many
trials without a better one; the time limit; the strategy has no more schedules; Ctrl-C."""

_SAME = 0.005
"""Relative difference below which times count as equal, as in the comparison (`measure.run.timing.alternate`)."""
_DEVIATIONS = 2.0
"""Standard errors of a difference, which 1 of 40 pairs of equal kernels exceeds."""


def is_faster_beyond_noise(trial: Measurement, leader: Measurement) -> bool:
    """Return whether a trial is faster than another one by more than the noise of their samples.

    Times over those of the reference kernel are compared if both have them.
    """
    relative = trial.relative is not None and leader.relative is not None
    (log_s, error), (leading_s, leading_error) = (_log_time(each, relative=relative) for each in (trial, leader))
    return leading_s - log_s > max(_SAME, _DEVIATIONS * math.hypot(error, leading_error))


def _log_time(measurement: Measurement, *, relative: bool) -> tuple[float, float]:
    """Return the logarithm of a measured time and its standard error."""
    samples = measurement.times_s
    if relative:
        samples = tuple(sample / base for sample, base in zip(samples, measurement.reference_times_s, strict=True))
    logs = [math.log(sample) for sample in samples]
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return statistics.median(logs), error


class Ending:
    """The judge of whether a session ends early, from its trials as they come.

    For `patience`, a trial is better if it is faster than the last better one by more than their noise. Trials that
    were asked for before that one was known do not count, so that many devices do not end a session too soon.

    Parameters
    ----------
    bound_s : float
        The lower bound on the time, s.
    stop_at : float, optional
        A share in (0, 1]: the session ends when the bound over the best time is at least that.
    patience : int, optional
        Number of trials without a better one, >= 1.
    """

    def __init__(self, bound_s: float, stop_at: float | None = None, patience: int | None = None) -> None:
        self._enough_s = None if stop_at is None else bound_s / stop_at
        self._patience = patience
        self._leader: Measurement | None = None
        self._first: Measurement | None = None
        self._done = self._since = 0
        self._is_near = False

    def add(self, measurement: Measurement, num_asked: int) -> None:
        """Add a trial; `num_asked` is the number of schedules proposed by then, including this one."""
        self._done += 1
        if measurement.time_s is None:
            return
        self._first = self._first or measurement
        self._is_near |= self._enough_s is not None and time_beside(measurement, self._first) <= self._enough_s
        if self._patience is not None and (self._leader is None or is_faster_beyond_noise(measurement, self._leader)):
            self._leader, self._since = measurement, max(num_asked, self._done)

    @property
    def reason(self) -> Ended | None:
        """The reason to end the session; None to continue."""
        if self._is_near:
            return "stop_at"
        return "patience" if self._patience is not None and self._done - self._since >= self._patience else None


# ---- the final comparison --------------------------------------------------------------------------------------

_CONTENDERS = 3
_CONTENDING = 1.15
"""Largest number of the best trials in the comparison, and their longest time over the best time."""


class Contender(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule in the final comparison: the number of its trial, and its new measurement."""

    number: int
    measurement: Measurement


class FinalComparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The final comparison: schedules that were measured again in turn. Immutable; JSON both ways.

    Attributes
    ----------
    contenders : tuple of Contender
        The plan's first choice and the best of the trials.
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
        """True if the winner is significantly faster than the plan's first choice (95 %)."""
        return self.low is not None and self.low > 1.0


def _times(trials: Sequence[Trial]) -> list[float]:
    """Return the values by which trials are compared: times over the reference kernel's if all have them, else times.

    Relative times do not depend on the machine's speed, which drifts.
    """
    relatives = [trial.measurement.relative for trial in trials]
    if None not in relatives:
        return [relative or 0.0 for relative in relatives]
    return [trial.measurement.time_s or 0.0 for trial in trials]


def speed_over(trial: Trial, other: Trial) -> float:
    """Return the speed of a trial over that of another one, as `BestTracker` compares them; both ran."""
    return (other.measurement.time_s or 0.0) / time_beside(trial.measurement, other.measurement)


def time_beside(measurement: Measurement, first: Measurement) -> float:
    """Return a kernel's time, s, scaled to the machine's speed during `first`; both ran.

    Without times of the reference kernel for both it is the measured time.
    """
    if measurement.relative is None or first.relative is None:
        return measurement.time_s or 0.0
    return (first.time_s or 0.0) * measurement.relative / first.relative


def equalise_speed(trials: Sequence[Trial]) -> list[Trial]:
    """Return trials with times scaled to one speed of the machine: that during the first trial that ran.

    Each sample is divided by the time of the reference kernel that ran next to it. The time of the first trial does not
    change, and the order of the times is that of `rank_trials`. If a trial has no reference times, nothing is scaled.
    """
    ran = [trial.measurement for trial in trials if trial.measurement.time_s is not None]
    if not ran or any(measurement.relative is None for measurement in ran):
        return list(trials)
    unit_s = (ran[0].time_s or 0.0) / (ran[0].relative or 1.0)
    return [_rescale(trial, unit_s) for trial in trials]


def _rescale(trial: Trial, unit_s: float) -> Trial:
    """Return a trial with its samples scaled as if the reference kernel had taken `unit_s` with each of them."""
    measurement = trial.measurement
    if measurement.time_s is None:
        return trial
    pairs = zip(measurement.times_s, measurement.reference_times_s, strict=True)
    times_s = tuple(unit_s * sample / base for sample, base in pairs)
    references_s = (unit_s,) * len(times_s)
    measurement = msgspec.structs.replace(measurement, times_s=times_s, reference_times_s=references_s)
    return msgspec.structs.replace(trial, measurement=measurement)


def time_of_best(best: Trial | None, first: Trial | None, comparison: FinalComparison | None) -> float | None:
    """Return the time of a session's best schedule, s; None if no trial ran.

    Parameters
    ----------
    best, first : Trial or None
        The winner and the plan's first choice, as `equalise_speed` returns them. After a comparison of both, the time
        is that of the first choice over the speedup, so that the three numbers agree.
    """
    first_s = None if first is None else first.measurement.time_s
    if first_s is not None and comparison is not None and comparison.speedup is not None:
        return first_s / comparison.speedup
    return None if best is None else best.measurement.time_s


def rank_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ran, fastest first; equal ones keep their order."""
    ran = [trial for trial in trials if trial.measurement.time_s is not None]
    times = _times(ran)
    return [ran[at] for at in sorted(range(len(ran)), key=times.__getitem__)]


class BestTracker:
    """The best trial of a session so far, updated with each trial.

    Attributes
    ----------
    last_number : int
        The largest number of a trial; -1 without trials.
    num_ran : int
        Number of trials with a time.
    """

    def __init__(self) -> None:
        self.last_number, self.num_ran = -1, 0
        self._relative = True
        self._best_relative: Trial | None = None
        self._best_time: Trial | None = None

    def add(self, trial: Trial) -> None:
        """Add a trial."""
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
        """The first of `rank_trials`; None if no trial ran."""
        return self._best_relative if self._relative else self._best_time


def _less(trial: Trial, other: Trial, name: str) -> bool:
    return bool(getattr(trial.measurement, name) < getattr(other.measurement, name))


def choose_contenders(trials: Sequence[Trial], plan: Trial | None) -> list[Trial]:
    """Return the trials to measure again: the best ones that are close, and the plan's first choice if it ran."""
    ranked = rank_trials(trials)
    times = _times(ranked)
    chosen = [trial for trial, time in zip(ranked[:_CONTENDERS], times, strict=False) if time <= _CONTENDING * times[0]]
    if plan is not None and plan not in chosen and plan.measurement.time_s is not None:
        chosen.append(plan)
    return chosen


def compare_contenders(
    trials: Sequence[Trial], measurements: Sequence[Measurement], plan: int | None
) -> FinalComparison | None:
    """Return the result of measuring schedules in turn; None if none of them ran.

    Parameters
    ----------
    trials, measurements
        The trials to compare, and the results of `Measurer.compare` for them.
    plan : int or None
        Number of the trial of the plan's first choice; None if it was not measured.
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
    if test.difference < 0.0:  # it was slower than the first choice in the rounds that both ran
        return FinalComparison(contenders, first.number, 1.0, 1.0, 1.0)
    width = min(test.half_width, 50.0)  # JSON has no infinity
    speedup, low, high = (math.exp(test.difference + sign * width) for sign in (0.0, -1.0, 1.0))
    return FinalComparison(contenders, best.number, speedup, low, high)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------


class SignalDelay:
    """A context manager that turns SIGINT into KeyboardInterrupt, but delays it during blocks that must complete.

    It does nothing outside the main thread, or if the program handles or ignores SIGINT itself (as with ``nohup``).
    """

    def __init__(self) -> None:
        self._holding = False
        self._pending = False
        self._installed = False

    def __enter__(self) -> SignalDelay:
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
    def hold(self) -> Iterator[None]:
        """Delay an interrupt until the block is done."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt
