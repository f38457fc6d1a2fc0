"""What a session on a cluster has on its way, how much that may be, and which builds it keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.measure.cluster.messages import Running
from anatune.measure.cluster.roster import Member
from anatune.measure.run.build_processes import Limits

__all__ = ["QUEUED", "Comparison", "Job", "KeptBuilds", "Pace", "Task", "overdue_s", "waits"]

QUEUED = 1
"""Kernels that wait at each device beside the one that runs: it never waits for the session."""

_SLACK_S = 10.0
"""Beside the limits of a request: what travels, processes that start anew."""
_MEMORY = 0.1
"""Weight of the latest trial in the usual times of building and running."""
_KEPT_BUILDS = 8
"""As many as `measure.run.measurer` keeps on one machine."""
_WAITS = "wait"
"""Stage of a request that waits for its turn (`station`)."""


class Job:
    """A schedule on its way.

    Attributes
    ----------
    built, builder
        Number of its build, once that is done, and the address of who has it.
    failed_build, failed_run
        Who failed with it, and how: it is repeated elsewhere.
    lost : list of str
        Workers that were lost with it.
    compared : bool
        It is only built, for a comparison.
    """

    def __init__(self, schedule: Schedule, compared: bool = False) -> None:
        self.schedule, self.compared = schedule, compared
        self.built: int | None = None
        self.builder = ""
        self.failed_build: tuple[Member, Measurement] | None = None
        self.failed_run: tuple[Member, Measurement] | None = None
        self.lost: list[str] = []


class Task(msgspec.Struct):
    """Something that a worker was asked for.

    Attributes
    ----------
    kind : {"build", "reference", "lease", "measure", "compare"}
    member : Member
        Who was asked.
    job : Job or None
        Of a build or a measurement.
    since : float
        The second since when it is its turn.
    reference : int or None
        The reference kernel of a lease.
    """

    kind: str
    member: Member
    job: Job | None
    since: float
    reference: int | None = None


class Comparison:
    """The contenders of the end; `number` is what a worker was asked for under, `measurements` what it answered."""

    def __init__(self, jobs: Sequence[Job], budget_s: float) -> None:
        self.jobs, self.budget_s = jobs, budget_s
        self.number: int | None = None
        self.measurements: list[Measurement] | None = None


class Pace:
    """How long builds and runs usually take, and so how many schedules keep all workers busy."""

    def __init__(self) -> None:
        self._build_s = self._run_s = 0.0

    def note(self, measurement: Measurement) -> None:
        """Learn from a trial that ran."""
        self._build_s += (measurement.build_s - self._build_s) * (_MEMORY if self._build_s else 1.0)
        self._run_s += (measurement.run_s - self._run_s) * (_MEMORY if self._run_s else 1.0)

    def room(self, ready: Iterable[Member]) -> int:
        """Return how many schedules may be on their way: what runs and waits at devices, and the builds for them."""
        ready = [*ready]
        devices = sum(member.measures for member in ready)
        slots = sum(member.builders for member in ready)
        ahead = math.ceil(devices * self._build_s / self._run_s) if self._run_s else 2 * devices
        return (1 + QUEUED) * devices + min(slots, max(2, ahead)) if devices and slots else 0


class KeptBuilds:
    """What was built of the best candidates: comparing them needs no build.

    Parameters
    ----------
    drop : callable
        Lets a job's build go.
    """

    def __init__(self, drop: Callable[[Job], None]) -> None:
        self._drop = drop
        self._kept: dict[str, tuple[float, Job]] = {}

    def get(self, key: str) -> Job | None:
        """Return the job of a schedule whose build is kept."""
        found = self._kept.get(key)
        return None if found is None else found[1]

    def numbers(self) -> set[int | None]:
        """Return the builds that are kept."""
        return {job.built for _, job in self._kept.values()}

    def settle(self, job: Job, relative: float | None) -> None:
        """Keep the build of a job that ended if it is one of the best; let it or another one go."""
        out: Job | None = job
        if relative is not None and job.built is not None:
            key = job.schedule.key
            out = self._kept.pop(key, (0.0, None))[1]
            self._kept[key] = relative, job
            if len(self._kept) > _KEPT_BUILDS:
                out = self._kept.pop(max(self._kept, key=lambda key: self._kept[key][0]))[1]
        if out is not None:
            self._drop(out)

    def lose(self, builder: str) -> None:
        """Let go what a worker has that is gone."""
        for key in [key for key, (_, job) in self._kept.items() if job.builder == builder]:
            self._drop(self._kept.pop(key)[1])


def waits(at: Running | None) -> bool:
    """Whether a request has not begun, as far as its worker says."""
    return at is None or at.stage == _WAITS


def overdue_s(at: Running | None, waited_s: float, limits: Limits, compared: Comparison | None) -> float:
    """Return the limit that a request has passed, s; 0 if it has not.

    Parameters
    ----------
    at : Running or None
        What its worker says of it, if anything.
    waited_s : float
        Since it is its turn.
    limits : Limits
        Of the session.
    compared : Comparison or None
        If it is one.
    """
    if at is None:  # it has not begun, or its answer stays out
        limit_s = limits.start_s + _SLACK_S
        return limit_s if waited_s > limit_s else 0.0
    run_s = limits.run_s if compared is None else compared.budget_s + limits.run_s * len(compared.jobs)
    stage_s = {"build": limits.build_s, "run": run_s}.get(at.stage, limits.start_s)
    limit_s = 2 * stage_s + limits.start_s + _SLACK_S  # processes that die start anew and try once more
    return limit_s if at.seconds > limit_s else 0.0
