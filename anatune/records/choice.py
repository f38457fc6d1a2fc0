"""Which of several recorded trials of one workload, hardware and number of threads is the best.

The rule: a schedule is judged by the samples of all its trials together, so that a lucky first measurement does not
win over one that was measured again. Where the reference kernel ran beside the samples, schedules are compared by the
median of sample over reference, which the machine's drifting speed leaves alone; those without a reference by the
median time, and the winners of both kinds by their median times. A schedule whose last trial gave a wrong result is
left out. Ties go to the earlier schedule.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Candidate", "fastest"]


class Candidate(NamedTuple):
    """One recorded trial.

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
    """

    id: int
    schedule: str
    ok: bool
    times_s: Sequence[float]
    reference_times_s: Sequence[float]


def fastest(candidates: Sequence[Candidate]) -> int | None:
    """Return the id of the best schedule's trial with the most samples (the last of them), None if nothing ran.

    Parameters
    ----------
    candidates : sequence of Candidate
        Trials of one workload, hardware and number of threads, in the order of recording.
    """
    trials: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        trials.setdefault(candidate.schedule, []).append(candidate)
    by_relative: list[tuple[float, list[Candidate]]] = []
    by_time: list[tuple[float, list[Candidate]]] = []
    for of_schedule in trials.values():
        measured = [one for one in of_schedule if one.ok and one.times_s]
        if not (of_schedule[-1].ok and measured):
            continue
        ratios = [
            time_s / reference_s
            for one in measured
            if len(one.times_s) == len(one.reference_times_s)
            for time_s, reference_s in zip(one.times_s, one.reference_times_s, strict=True)
            if reference_s > 0
        ]
        if ratios:
            by_relative.append((statistics.median(ratios), measured))
        else:
            by_time.append((_median_time(measured), measured))
    winners = [min(pool, key=lambda scored: scored[0])[1] for pool in (by_relative, by_time) if pool]
    if not winners:
        return None
    best = min(winners, key=_median_time)
    return max(best, key=lambda one: (len(one.times_s), one.id)).id


def _median_time(trials: Sequence[Candidate]) -> float:
    return statistics.median(time_s for one in trials for time_s in one.times_s)
