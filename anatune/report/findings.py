"""What trials of a session say together: how well they were predicted, how they failed, how the machine drifted."""

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
"""Trials from which on a rank correlation is told; from which on with an interval."""
_QUANTILE = 1.959964
"""Of the normal distribution, for 95 %."""
_WIDEST = 50.0
"""Half width of an interval of logarithms where two samples decide nothing; a picture knows no infinity."""
_MOST_PAIRED = 1000
"""Trials whose pairs are all looked at: pairs of more are those of so many, evenly picked."""


class Agreement(NamedTuple):
    """How predictions and measurements of one session agree.

    Attributes
    ----------
    num : int
        Trials with both.
    rho, low, high : float or None
        Spearman's rank correlation; its confidence interval, 95 %. None: all of one side are equal, or too few.
    ordered : float or None
        Share of pairs of trials of which the prediction names the faster one; pairs of equal predictions left out.
    ratio : float
        Measured over predicted time, the median.
    """

    num: int
    rho: float | None
    low: float | None
    high: float | None
    ordered: float | None
    ratio: float

    def describe(self) -> str:
        """Return it in sentences."""
        if not self.num:
            return "Nothing was both predicted and measured."
        trials = units.many(self.num, "trial")
        text = f"Measured times are {units.ratio(self.ratio)} times the predicted ones ({trials}, the median). "
        if self.rho is None or self.ordered is None:
            why = "predictions or times are all equal" if self.num >= _FEWEST_RANKED else "they are too few"
            return f"{text}How well the model orders these trials cannot be said: {why}."
        text += (
            f"Of two of these schedules the model names the faster one in {units.percent(self.ordered)} of the cases; "
            f"rank correlation {self.rho:.2f}"
        )
        if self.low is None or self.high is None:
            return f"{text}. So few trials do not say how sure that is."
        text += f", with 95 % confidence between {self.low:.2f} and {self.high:.2f}."
        if self.low <= 0.0 <= self.high:
            text += " These trials do not show that the model orders them: "
            text += "a search asks for schedules whose predictions are close to each other."
        return text


def predicted_and_measured(trials: Iterable[Trial]) -> list[tuple[float, float, Trial]]:
    """Return (predicted seconds, measured seconds, trial) of the trials that have both."""
    return [
        (trial.predicted_s, trial.measurement.time_s, trial)
        for trial in trials
        if trial.predicted_s and trial.measurement.time_s is not None
    ]


def agreement(trials: Iterable[Trial]) -> Agreement:
    """Return how predicted and measured times agree.

    Source: [BW00] Bonett and Wright, Psychometrika 65 (2000), Eq. (5): the standard error of Fisher's z of Spearman's
    coefficient is sqrt((1 + rho^2 / 2) / (n - 3)).
    """
    pairs = [(predicted_s, measured_s) for predicted_s, measured_s, _ in predicted_and_measured(trials)]
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
    told = [
        (one[0] < other[0]) == (one[1] < other[1])
        for one, other in combinations(pairs[:: math.ceil(count / _MOST_PAIRED)], 2)
        if one[0] != other[0] and one[1] != other[1]
    ]
    return Agreement(count, rho, low, high, statistics.fmean(told) if told else None, ratio)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, equal ones sharing the mean of theirs."""
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(values)):
        places.setdefault(value, []).append(place)
    return [statistics.fmean(places[value]) for value in values]


class FailureKind(NamedTuple):
    """Trials that ended in the same way: how many, and the first line of each message with how many had it."""

    outcome: Outcome
    num: int
    messages: tuple[tuple[str, int], ...]


def failure_kinds(trials: Iterable[Trial]) -> list[FailureKind]:
    """Return how trials without a time ended, the most frequent first."""
    lines: dict[Outcome, Counter[str]] = {}
    for trial in trials:
        measurement = trial.measurement
        if measurement.time_s is None:
            text = measurement.message.strip() or "no message"
            lines.setdefault(measurement.outcome, Counter())[" ".join(text.splitlines()[0].split())] += 1
    found = [FailureKind(outcome, counted.total(), tuple(counted.most_common())) for outcome, counted in lines.items()]
    return sorted(found, key=lambda kind: -kind.num)


class SpeedSample(NamedTuple):
    """The reference kernel beside one trial: its time over the median of all on that machine.

    Attributes
    ----------
    place : int
        Which measurement of the session it stood beside, from 0; those of the comparison follow the trials.
    worker : str
        The machine; empty: that of the session.
    low, median, high : float
    """

    place: int
    worker: str
    low: float
    median: float
    high: float


def reference_speeds(view: SessionView) -> list[SpeedSample]:
    """Return how the machines' speed drifted: the reference kernel's time beside each trial over its usual time.

    GPUs and CPUs have reference kernels of their own; each machine is compared with itself.
    """
    compared = () if view.comparison is None else view.comparison.contenders
    workers = [trial.measurement.worker for trial in view.trials] + [one.measurement.worker for one in compared]
    references = [*view.references_s, *(one.measurement.reference_times_s for one in compared)]
    usual: dict[str, list[float]] = {}
    for worker, times_s in zip(workers, references, strict=True):
        usual.setdefault(worker, []).extend(times_s)
    medians = {worker: statistics.median(times) for worker, times in usual.items() if times}
    return [
        SpeedSample(place, worker, *(f(times_s) / medians[worker] for f in (min, statistics.median, max)))
        for place, (worker, times_s) in enumerate(zip(workers, references, strict=True))
        if times_s
    ]


class Contest(NamedTuple):
    """One schedule of the final comparison against its winner.

    Attributes
    ----------
    number : int
        Of its trial.
    time_s : float
        The time of the session's best times `ratio`, s.
    ratio, low, high : float
        Its time over the winner's, sample by sample of the same round; the interval of 95 %. 1 of the winner.
    num_samples : int
    dropped : bool
        It was clearly slower and left the comparison early.
    """

    number: int
    time_s: float
    ratio: float
    low: float
    high: float
    num_samples: int
    dropped: bool


def contests(comparison: FinalComparison, best_s: float | None) -> list[Contest]:
    """Return the contenders that ran, the winner first, then by their time over its, which is `best_s`."""
    ran = {
        contender.number: contender.measurement
        for contender in comparison.contenders
        if contender.measurement.time_s is not None
    }
    winner = ran[comparison.best]
    found = []
    for number, one in ran.items():
        pairs = min(len(one.times_s), len(winner.times_s))
        test = paired_test(one.times_s[:pairs], winner.times_s[:pairs])
        width = 0.0 if number == comparison.best else test.half_width
        ratio, low, high = (math.exp(test.difference + sign * min(width, _WIDEST)) for sign in (0.0, -1.0, 1.0))
        found.append(Contest(number, (best_s or 0.0) * ratio, ratio, low, high, len(one.times_s), one.stopped_early))
    return sorted(found, key=lambda one: (one.number != comparison.best, one.ratio))
