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
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from anatune.core.trial import Outcome

__all__ = ["COMPARED", "RecordedTrial", "fastest", "recorded_trial"]

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
    found = msgspec.json.decode(result, type=_Result)
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
    left = {schedule for session in by_session.values() for schedule in _contending(session, wrong)}
    by_ratio: list[tuple[float, list[RecordedTrial]]] = []
    by_time: list[tuple[float, list[RecordedTrial]]] = []
    for schedule, of_schedule in by_schedule.items():
        measured = [one for one in of_schedule if one.ok and one.times_s]
        if schedule not in left or not measured:
            continue
        if ratios := [ratio for one in measured for ratio in one.ratios]:
            by_ratio.append((statistics.median(ratios), measured))
        else:
            by_time.append((_median_time(measured), measured))
    winners = [min(pool, key=lambda scored: scored[0])[1] for pool in (by_ratio, by_time) if pool]
    if not winners:
        return None
    best = min(winners, key=_median_time)
    return max(best, key=lambda one: (len(one.times_s), one.id)).id


def _contending(trials: Sequence[RecordedTrial], wrong: set[str]) -> set[str]:
    """Return the schedules of a session that can be the best: the winner of its final comparison, else all.

    Trials after a comparison (of a session that was resumed and did not reach its end) make it no longer final.
    """
    compared: dict[str, RecordedTrial] = {}
    for trial in reversed(trials):
        if not trial.compared or trial.schedule in compared:
            break
        compared[trial.schedule] = trial
    ran = [one for one in reversed(compared.values()) if one.ok and one.ratios and one.schedule not in wrong]
    if not ran:
        return {trial.schedule for trial in trials} - wrong
    return {min(ran, key=lambda one: (one.stopped_early, statistics.median(one.ratios))).schedule}


def _median_time(trials: Sequence[RecordedTrial]) -> float:
    return statistics.median(time_s for one in trials for time_s in one.times_s)
