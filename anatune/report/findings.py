"""Statistics of the trials of a session: prediction errors, failures, and drift of the machine's speed."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from anatune.core.trial import Outcome, Trial
from anatune.measure.run.timing import paired_test
from anatune.report import units
from anatune.report.sessions import SessionView
from anatune.tuning.ending import FinalComparison

_FEWEST_RANKED, _FEWEST_CONFIDENT = 3, 5
"""Fewest trials for a rank correlation, and for its confidence interval."""
_QUANTILE = 1.959964
"""The quantile of the normal distribution for a confidence of 95 %."""
_WIDEST = 50.0
"""Largest half width of an interval of logarithms, because a figure cannot show infinity."""
_MOST_PAIRED = 1000
"""Most trials of which all pairs are compared; of more trials, this many are picked evenly."""


class Agreement(NamedTuple):
    """The agreement of predicted and measured times in one session.

    Attributes
    ----------
    num : int
        Number of trials with both times.
    rho, low, high : float or None
        Spearman's rank correlation and its 95 % confidence interval. None if there are too few trials, or if all
        predicted or all measured times are equal.
    ordered : float or None
        Share of the pairs of trials whose faster one the prediction names; pairs of equal times are left out.
    ratio : float
        Median of measured over predicted time.
    """

    num: int
    rho: float | None
    low: float | None
    high: float | None
    ordered: float | None
    ratio: float

    def describe(self) -> str:
        """Return sentences that describe the agreement."""
        if not self.num:
            return "No trial has both a predicted and a measured time."
        trials = units.many(self.num, "trial")
        text = f"The median of measured over predicted time is {units.ratio(self.ratio)} ({trials}). "
        if self.rho is None or self.ordered is None:
            why = "all predicted or all measured times are equal" if self.num >= _FEWEST_RANKED else "too few trials"
            return f"{text}The order of the predictions cannot be judged: {why}."
        text += (
            f"For {units.percent(self.ordered)} of all pairs of schedules the model predicts which one is faster; "
            f"rank correlation {self.rho:.2f}"
        )
        if self.low is None or self.high is None:
            return f"{text}. There are too few trials for a confidence interval."
        text += f" (95 % confidence: {self.low:.2f} to {self.high:.2f})."
        if self.low <= 0.0 <= self.high:
            text += " So these trials do not show that the model orders them better than chance; "
            text += "a session measures schedules whose predicted times are close together."
        return text


def pair_times(trials: Iterable[Trial]) -> list[tuple[float, float, Trial]]:
    """Return (predicted seconds, measured seconds, trial) of the trials that have both."""
    return [
        (trial.predicted_s, trial.measurement.time_s, trial)
        for trial in trials
        if trial.predicted_s and trial.measurement.time_s is not None
    ]


def agreement(trials: Iterable[Trial]) -> Agreement:
    """Return the agreement of predicted and measured times.

    Source: [BW00] Bonett and Wright, Psychometrika 65 (2000), Eq. (5): the standard error of Fisher's z of Spearman's
    coefficient is sqrt((1 + rho^2 / 2) / (n - 3)).
    """
    pairs = [(predicted_s, measured_s) for predicted_s, measured_s, _ in pair_times(trials)]
    count = len(pairs)
    if not pairs:
        return Agreement(0, None, None, None, None, math.nan)
    ratio = statistics.median(measured / predicted for predicted, measured in pairs)
    predicted, measured = zip(*pairs, strict=True)
    if count < _FEWEST_RANKED or len(set(predicted)) == 1 or len(set(measured)) == 1:
        return Agreement(count, None, None, None, None, ratio)
    rho = statistics.correlation(_ranks(predicted), _ranks(measured))
    low = high = None
    if count >= _FEWEST_CONFIDENT:
        centre = math.atanh(min(max(rho, -0.999999), 0.999999))
        width = _QUANTILE * math.sqrt((1 + rho * rho / 2) / (count - 3))
        low, high = math.tanh(centre - width), math.tanh(centre + width)
    agreeing = [
        (one[0] < other[0]) == (one[1] < other[1])
        for one, other in combinations(pairs[:: math.ceil(count / _MOST_PAIRED)], 2)
        if one[0] != other[0] and one[1] != other[1]
    ]
    return Agreement(count, rho, low, high, statistics.fmean(agreeing) if agreeing else None, ratio)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    places: dict[float, list[int]] = {}
    for rank, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(rank)
    return [statistics.fmean(places[value]) for value in values]


class FailureKind(NamedTuple):
    """Trials of one outcome: their number, and the first line of each message with its number of trials."""

    outcome: Outcome
    num: int
    messages: tuple[tuple[str, int], ...]


def failure_kinds(trials: Iterable[Trial]) -> list[FailureKind]:
    """Return the failed trials by outcome, the most frequent outcome first."""
    lines: dict[Outcome, Counter[str]] = {}
    for trial in trials:
        measurement = trial.measurement
        if measurement.time_s is None:
            text = measurement.message.strip() or "no message"
            lines.setdefault(measurement.outcome, Counter())[" ".join(text.splitlines()[0].split())] += 1
    kinds = [FailureKind(outcome, counted.total(), tuple(counted.most_common())) for outcome, counted in lines.items()]
    return sorted(kinds, key=lambda kind: -kind.num)


class SpeedSample(NamedTuple):
    """The reference kernel during one measurement: its time over its median time on that machine.

    Attributes
    ----------
    place : int
        Number of the measurement in the session, from 0; those of the final comparison follow the trials.
    worker : str
        The machine; empty for the machine of the session.
    low, median, high : float
    """

    place: int
    worker: str
    low: float
    median: float
    high: float


def reference_speeds(view: SessionView) -> list[SpeedSample]:
    """Return the drift of each machine's speed: the reference kernel's time in each trial over its median time."""
    compared = () if view.comparison is None else view.comparison.contenders
    workers = [trial.measurement.worker for trial in view.trials] + [one.measurement.worker for one in compared]
    references = [*view.references_s, *(one.measurement.reference_times_s for one in compared)]
    times_by_worker: dict[str, list[float]] = {}
    for worker, times_s in zip(workers, references, strict=True):
        times_by_worker.setdefault(worker, []).extend(times_s)
    medians = {worker: statistics.median(times) for worker, times in times_by_worker.items() if times}
    return [
        SpeedSample(place, worker, *(f(times_s) / medians[worker] for f in (min, statistics.median, max)))
        for place, (worker, times_s) in enumerate(zip(workers, references, strict=True))
        if times_s
    ]


class Contest(NamedTuple):
    """The result of one schedule in the final comparison, relative to the winner.

    Attributes
    ----------
    number : int
        Number of its trial.
    time_s : float
        Time of the session's best schedule times `ratio`, s.
    ratio, low, high : float
        Its time over the winner's, sample by sample of the same round, and the 95 % interval; 1 for the winner.
    num_samples : int
    dropped : bool
        Whether it was clearly slower and left the comparison early.
    """

    number: int
    time_s: float
    ratio: float
    low: float
    high: float
    num_samples: int
    dropped: bool


def contests(comparison: FinalComparison, best_s: float | None) -> list[Contest]:
    """Return the schedules of a comparison that ran, the winner first; `best_s` is the winner's time."""
    ran = {
        contender.number: contender.measurement
        for contender in comparison.contenders
        if contender.measurement.time_s is not None
    }
    winner = ran[comparison.best]
    results = []
    for number, measurement in ran.items():
        pairs = min(len(measurement.times_s), len(winner.times_s))
        test = paired_test(measurement.times_s[:pairs], winner.times_s[:pairs])
        width = 0.0 if number == comparison.best else test.half_width
        ratio, low, high = (math.exp(test.difference + sign * min(width, _WIDEST)) for sign in (0.0, -1.0, 1.0))
        results.append(
            Contest(
                number, (best_s or 0.0) * ratio, ratio, low, high, len(measurement.times_s), measurement.stopped_early
            )
        )
    return sorted(results, key=lambda one: (one.number != comparison.best, one.ratio))
