"""Which of several recorded trials of one workload, hardware and number of threads is the best.

The rule, in the order of evidence:

1. A schedule whose last trial gave a wrong result is left out.
2. Of a session that ended with a final comparison, only its winner counts: the fastest of what was measured in turn.
   That is the schedule that `tune` returned.
3. What is left (winners of sessions; all trials of sessions without a comparison: imported, interrupted, or with one
   schedule that ran) is judged schedule by schedule, by the samples of all its trials together, so that a lucky first
   measurement does not win over one that was measured again. Where the reference kernel ran beside the samples,
   schedules are compared by the median of sample over reference, which the machine's drifting speed leaves alone; those
   without a reference by the median time, and the winners of both kinds by their median times. Ties go to the earlier
   schedule.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

COMPARED = "compare"
"""Source of the records of a final comparison: samples of a schedule that has its own trial already."""


class RecordedTrial(NamedTuple):
    """What of a recorded trial the choice rests on.

    Attributes
    ----------
    id : int
        The record's.
    schedule : str
        Equal for trials of the same schedule.
    session : str
        Who asked for it.
    ok : bool
        Whether it ran and was right; False: its result was wrong.
    compared : bool
        Whether it is of a final comparison.
    stopped_early : bool
        It was clearly slower than another.
    relative : float or None
        Median of `ratios`; None where the reference kernel did not run.
    times_s, reference_times_s : sequence of float
        Samples, and the reference kernel's beside each (or none), s. How a session ended is told by those of its
        comparison.
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
        """Samples over the reference's beside them; empty where it did not run beside each."""
        if len(self.times_s) != len(self.reference_times_s):
            return []
        return [t / r for t, r in zip(self.times_s, self.reference_times_s, strict=True) if r > 0]


def fastest(trials: Sequence[RecordedTrial]) -> int | None:
    """Return the id of the best schedule's trial with the most samples (the last of them), None if nothing ran.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        Of one workload, hardware and number of threads, in the order of recording.
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
    scores = [known for schedule, own in by_schedule.items() if schedule in left and (known := score(own)) is not None]
    # Only equals compare: between the best with a reference kernel and the best without the times decide.
    pools = [[known for known in scores if known.is_ratio is kind] for kind in (True, False)]
    first = min((min(pool) for pool in pools if pool), key=lambda known: known.time_s, default=None)
    return None if first is None else first.id


class Score(NamedTuple):
    """How good a schedule is, by all its trials. Less is better; ties go to the earlier schedule.

    Attributes
    ----------
    value : float
        Median of the samples over the reference kernel's beside them, or of the samples, s.
    first_id : int
        Of its first trial.
    is_ratio : bool
        Which of the two `value` is: only equals compare.
    time_s : float
        Median of the samples, s.
    id : int
        Its trial with the most samples, the last of them.
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
    """Return the schedule that won the final comparison of a session; None: it did not end with one, all compete.

    Trials after a comparison (of a session that was resumed and did not reach its end) make it no longer final.

    Parameters
    ----------
    trials : sequence of RecordedTrial
        The last ones of a session, at least to the one before its comparison.
    is_wrong : callable
        Whether the last result of a schedule was wrong.

    Those that were compared have their samples.
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
    """Return the position of the contender that won a comparison: the least mean of the logarithms of its times.

    That is what the paired test of two contenders compares, so that the test never contradicts the choice. The winner
    is among those that stayed to the end, unless another contender was faster in the rounds that both ran.

    Parameters
    ----------
    times_s : sequence of sequence of float
        Samples of each contender, s, one a round from the first on; none is empty.
    dropped : sequence of bool
        Whether each left the comparison early.
    """
    order = sorted(range(len(times_s)), key=lambda place: (dropped[place], _log_mean(times_s[place])))
    best = order[0]
    for place in order[1:]:
        rounds = min(len(times_s[best]), len(times_s[place]))
        if _log_mean(times_s[place][:rounds]) < _log_mean(times_s[best][:rounds]):
            best = place
    return best


def _log_mean(times_s: Sequence[float]) -> float:
    return statistics.fmean(map(math.log, times_s))
