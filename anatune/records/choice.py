"""The choice of the best of several recorded trials of one workload, hardware and number of threads.

The rule:

1. A schedule whose last trial gave a wrong result is left out.
2. A session that ended with a final comparison contributes only the winner, which is the schedule that `tune` returned.
3. All other schedules (of sessions that were imported, interrupted, or had one schedule that ran) and the winners are
   judged by the samples of all their trials together, so that one lucky measurement does not win. If the reference
   kernel ran with the samples, schedules are compared by the median of sample over reference, which does not depend on
   the machine's drifting speed, else by the median time. The winners of both kinds are compared by their median times.
   Ties go to the earlier schedule.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

COMPARED = "compare"
"""Source of records of a final comparison, whose schedules have other trials already."""


class RecordedTrial(NamedTuple):
    """The part of a recorded trial that the choice needs.

    Attributes
    ----------
    id : int
        Id of the record.
    schedule : str
        Key of the schedule.
    session : str
        Id of the session.
    ok : bool
        Whether it ran with a correct result; False if its result was wrong.
    compared : bool
        Whether it belongs to a final comparison.
    stopped_early : bool
        Whether it was clearly slower than another one.
    relative : float or None
        Median of `ratios`; None if the reference kernel did not run.
    times_s, reference_times_s : sequence of float
        Samples, and those of the reference kernel (or none), s.
    """

    id: int
    schedule: str
    session: str
    ok: bool
    compared: bool = False
    stopped_early: bool = False
    relative: float | None = None
    times_s: Sequence[float] = ()
    reference_times_s: Sequence[float] = ()

    @property
    def ratios(self) -> list[float]:
        """Samples over those of the reference kernel; empty if it did not run with each."""
        if len(self.times_s) != len(self.reference_times_s):
            return []
        return [t / r for t, r in zip(self.times_s, self.reference_times_s, strict=True) if r > 0]


def fastest(trials: Sequence[RecordedTrial]) -> int | None:
    """Return the id of the best schedule's trial with the most samples (the last of these); None if no trial ran.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        Trials of one workload, hardware and number of threads, in the order of recording.
    """
    by_schedule: dict[str, list[RecordedTrial]] = {}
    by_session: dict[str, list[RecordedTrial]] = {}
    for trial in trials:
        by_schedule.setdefault(trial.schedule, []).append(trial)
        by_session.setdefault(trial.session, []).append(trial)
    wrong = {schedule for schedule, own in by_schedule.items() if not own[-1].ok}
    left: set[str] = set()
    for session in by_session.values():
        winner = final_winner(session, wrong.__contains__)
        left |= {trial.schedule for trial in session} if winner is None else {winner}
    left -= wrong
    scores = [
        scored for schedule, own in by_schedule.items() if schedule in left and (scored := score(own)) is not None
    ]
    # Only scores of one kind are comparable. The best of each kind are compared by their times.
    pools = [[known for known in scores if known.is_ratio is kind] for kind in (True, False)]
    first = min((min(pool) for pool in pools if pool), key=lambda known: known.time_s, default=None)
    return None if first is None else first.id


class Score(NamedTuple):
    """The score of a schedule by all its trials; lower is better, and ties go to the earlier schedule.

    Attributes
    ----------
    value : float
        Median of the samples over those of the reference kernel, or of the samples, s.
    first_id : int
        Id of its first trial.
    is_ratio : bool
        Whether `value` is a ratio; ratios are not comparable with times.
    time_s : float
        Median of the samples, s.
    id : int
        Id of its last trial with the most samples.
    """

    value: float
    first_id: int
    is_ratio: bool
    time_s: float
    id: int


def score(trials: Sequence[RecordedTrial]) -> Score | None:
    """Return the score of one schedule's trials, None if none ran."""
    measured = [trial for trial in trials if trial.ok and trial.times_s]
    if not measured:
        return None
    time_s = statistics.median(sample for trial in measured for sample in trial.times_s)
    ratios = [ratio for trial in measured for ratio in trial.ratios]
    longest = max(measured, key=lambda trial: (len(trial.times_s), trial.id))
    return Score(statistics.median(ratios) if ratios else time_s, trials[0].id, bool(ratios), time_s, longest.id)


def final_winner(trials: Sequence[RecordedTrial], is_wrong: Callable[[str], bool]) -> str | None:
    """Return the schedule that won the final comparison of a session; None if the session did not end with one.

    A comparison is not final if trials follow it, as in a session that was resumed and interrupted.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        The last trials of a session, at least back to the one before its comparison; those of the comparison have
        samples.
    is_wrong : callable
        Returns whether the last result of a schedule was wrong.
    """
    compared: dict[str, RecordedTrial] = {}
    for trial in reversed(trials):
        if not trial.compared or trial.schedule in compared:
            break
        compared[trial.schedule] = trial
    competing = [
        trial
        for trial in reversed(compared.values())
        if trial.ok and trial.relative is not None and trial.times_s and not is_wrong(trial.schedule)
    ]
    if not competing:
        return None
    return competing[
        choose_winner([one.times_s for one in competing], [one.stopped_early for one in competing])
    ].schedule


def choose_winner(times_s: Sequence[Sequence[float]], dropped: Sequence[bool]) -> int:
    """Return the position of the contender that won a comparison: that of the least mean logarithm of its times.

    The paired test of two contenders compares the same means, so that it never contradicts the choice. The winner is
    one of those that stayed to the end, unless another contender was faster in the rounds that both ran.

    Parameters
    ----------
    times_s : sequence of sequence of float
        Samples of each contender, s, one for each round from the first on; not empty.
    dropped : sequence of bool
        Whether each left the comparison early.
    """
    order = sorted(range(len(times_s)), key=lambda place: (dropped[place], _log_mean(times_s[place])))
    best = order[0]
    for position in order[1:]:
        rounds = min(len(times_s[best]), len(times_s[position]))
        if _log_mean(times_s[position][:rounds]) < _log_mean(times_s[best][:rounds]):
            best = position
    return best


def _log_mean(times_s: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times_s))
