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

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from anatune.core.trial import Outcome
from anatune.decoding import from_json

__all__ = [
    "COMPARED",
    "Ending",
    "RecordedTrial",
    "Score",
    "fastest",
    "final_winner",
    "quicker",
    "recorded_trial",
    "score",
]

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
    ok : bool
        Whether it ran and was right; False: its result was wrong.
    times_s, reference_times_s : sequence of float
        Samples, and the reference kernel's beside each (or none), s.
    session : str
        Who asked for it.
    compared : bool
        Whether it is of a final comparison.
    stopped_early : bool
        It was clearly slower than another.
    """

    id: int
    schedule: str
    ok: bool
    times_s: Sequence[float]
    reference_times_s: Sequence[float]
    session: str = ""
    compared: bool = False
    stopped_early: bool = False

    @property
    def ratios(self) -> list[float]:
        """Samples over the reference's beside them; empty where it did not run beside each."""
        if len(self.times_s) != len(self.reference_times_s):
            return []
        return [t / r for t, r in zip(self.times_s, self.reference_times_s, strict=True) if r > 0]

    @property
    def ending(self) -> Ending:
        """What of it says how its session ended."""
        relative = statistics.median(ratios) if (ratios := self.ratios) else None
        return Ending(self.schedule, self.ok, self.compared, self.stopped_early, relative)


class _Samples(msgspec.Struct, frozen=True):
    """A stored measurement as far as choosing the best needs it."""

    times_s: tuple[float, ...] = ()
    reference_times_s: tuple[float, ...] = ()
    stopped_early: bool = False


class _Result(msgspec.Struct, frozen=True):
    """A stored trial likewise."""

    measurement: _Samples
    source: str = ""


def recorded_trial(row_id: int, schedule: str, session: str, outcome: Outcome, result: str) -> RecordedTrial:
    """Return a trial out of the columns of its row; raise msgspec.DecodeError if they are damaged."""
    found = from_json(result, _Result)
    samples, ran = found.measurement, outcome is Outcome.OK
    return RecordedTrial(
        row_id, schedule, ran, samples.times_s if ran else (), samples.reference_times_s if ran else (),
        session, found.source == COMPARED, samples.stopped_early,
    )  # fmt: skip


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
    wrong = {schedule for schedule, found in by_schedule.items() if not found[-1].ok}
    left: set[str] = set()
    for session in by_session.values():
        winner = final_winner([trial.ending for trial in session], wrong.__contains__)
        left |= {trial.schedule for trial in session} if winner is None else {winner}
    left -= wrong
    scores = [score(found) for schedule, found in by_schedule.items() if schedule in left]
    return quicker(one for one in scores if one is not None)


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
    measured = [one for one in trials if one.ok and one.times_s]
    if not measured:
        return None
    time_s = statistics.median(sample for one in measured for sample in one.times_s)
    ratios = [ratio for one in measured for ratio in one.ratios]
    longest = max(measured, key=lambda one: (len(one.times_s), one.id))
    return Score(statistics.median(ratios) if ratios else time_s, trials[0].id, bool(ratios), time_s, longest.id)


def quicker(scores: Iterable[Score]) -> int | None:
    """Return the id of the best score's trial: of the best with a reference kernel and the best without, by time."""
    kept = list(scores)
    winners = [min(pool) for kind in (True, False) if (pool := [one for one in kept if one.is_ratio is kind])]
    return min(winners, key=lambda one: one.time_s).id if winners else None


class Ending(NamedTuple):
    """What of a session's last trials says how it ended, as in `RecordedTrial`; `relative` is the median of ratios."""

    schedule: str
    ok: bool
    compared: bool
    stopped_early: bool
    relative: float | None


def final_winner(trials: Sequence[Ending], is_wrong: Callable[[str], bool]) -> str | None:
    """Return the schedule that won the final comparison of a session; None: it did not end with one, all compete.

    Trials after a comparison (of a session that was resumed and did not reach its end) make it no longer final.

    Parameters
    ----------
    trials : sequence of Ending
        The last ones of a session, at least to the one before its comparison.
    is_wrong : callable
        Whether the last result of a schedule was wrong.
    """
    compared: dict[str, Ending] = {}
    for trial in reversed(trials):
        if not trial.compared or trial.schedule in compared:
            break
        compared[trial.schedule] = trial
    ran = [(one.stopped_early, one.relative, one.schedule) for one in reversed(compared.values()) if one.ok]
    ranked = sorted(((early, value, name) for early, value, name in ran if value is not None), key=lambda one: one[:2])
    return next((name for _, _, name in ranked if not is_wrong(name)), None)
