"""What a session on a cluster has on its way, and who was asked for what under which number, since when.

Each thing that is asked for has a number, never used twice; an answer under a number that nobody waits for any more is
late, or the second one, and is dropped. So no trial is lost, and none is counted twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.fleet.cluster.fleet import Done, Fleet, Kind
from anatune.fleet.cluster.messages import BuildRequest, MeasureRequest, Running, SessionSetting, encode
from anatune.fleet.cluster.roster import QUEUED, Member
from anatune.measure.run.build_processes import Limits

_SLACK_S = 10.0
"""Beside the limits of a request: what travels, processes that start anew."""
_OTHERS_S = 600.0
"""What another session has done on a worker for so long is taken for dead."""
_MEMORY = 0.1
"""Weight of the latest trial in the usual times of building and running."""
_WAITS = "wait"
"""Stage of a request that waits for its turn (`station`)."""


class Job:
    """A schedule on its way.

    Attributes
    ----------
    built, builder
        Number of its build, once that is done, and the address of who has it.
    failed : dict of str to (Member, Measurement)
        Who failed to build or to measure it, and how: that is repeated elsewhere.
    lost : list of str
        Workers that were lost with it.
    compared : bool
        It is only built, for a comparison.
    """

    def __init__(self, schedule: Schedule, compared: bool = False) -> None:
        self.schedule, self.compared = schedule, compared
        self.built: int | None = None
        self.builder = ""
        self.failed: dict[Kind, tuple[Member, Measurement]] = {}
        self.lost: list[str] = []


class Task(msgspec.Struct, eq=False):
    """Something that a worker was asked for.

    Attributes
    ----------
    number : int
    kind : {"build", "lease", "measure"}
    member : Member
        Who was asked.
    job : Job or None
        Of a build, or a measurement; None: the reference kernel is built, a comparison measured.
    since : float
        The second since when it is its turn.
    needs : tuple of int
        The numbers whose answers it needs.
    """

    number: int
    kind: Kind
    member: Member
    job: Job | None
    since: float
    needs: tuple[int, ...] = ()


class Comparison:
    """The contenders of the end, the task that a worker has to compare them, and what it answered."""

    def __init__(self, jobs: Sequence[Job], budget_s: float) -> None:
        self.jobs, self.budget_s = jobs, budget_s
        self.task: Task | None = None
        self.measurements: list[Measurement] | None = None


class Requests:
    """Asks workers through a fleet, and knows what is not answered yet.

    Parameters
    ----------
    fleet : Fleet
        Closed with this.
    setting : SessionSetting
        Of the session.
    clock : callable
        Seconds.

    Attributes
    ----------
    reference : tuple or None
        Number of the reference kernel's build and who has it, once that is done.
    """

    def __init__(self, fleet: Fleet, setting: SessionSetting, clock: Callable[[], float]) -> None:
        self.fleet, self._setting, self._clock = fleet, setting, clock
        self.reference: tuple[int, Member] | None = None
        self._numbers = itertools.count(1)
        self._tasks: dict[int, Task] = {}

    # -- asking -----------------------------------------------------------------------------------------------------

    def build(self, member: Member, job: Job | None) -> None:
        """Have a worker build a job's schedule; None: the reference kernel."""
        task, setting = self._task("build", member, job), self._setting
        schedule = None if job is None else job.schedule
        self._submit(
            task,
            BuildRequest(setting.session, task.number, setting.hardware, setting.threads, setting.limits, schedule),
        )

    def lease(self, member: Member) -> None:
        """Have a worker get ready with the reference kernel, which has to be there."""
        assert self.reference is not None
        task = self._task("lease", member, None, self.reference[0])
        member.lease = task.number
        self._submit(task, self._setting)

    def measure(self, member: Member, job: Job, incumbent: float | None) -> None:
        """Have a worker that is ready measure what was built."""
        task = self._task("measure", member, job, member.lease, job.built)
        self._submit(task, MeasureRequest(self._setting.session, task.number, (job.schedule,), incumbent))

    def compare(self, member: Member, comparison: Comparison) -> None:
        """Have a worker that is ready time contenders, all of which are built."""
        jobs = comparison.jobs
        comparison.task = task = self._task("measure", member, None, member.lease, *(job.built for job in jobs))
        schedules = tuple(job.schedule for job in jobs)
        self._submit(task, MeasureRequest(self._setting.session, task.number, schedules, budget_s=comparison.budget_s))

    def _task(self, kind: Kind, member: Member, job: Job | None, *needs: int | None) -> Task:
        """Return a new task of a worker's."""
        numbers = tuple(need for need in needs if need is not None)
        assert len(numbers) == len(needs)
        return Task(next(self._numbers), kind, member, job, self._clock(), numbers)

    def _submit(self, task: Task, request: msgspec.Struct) -> None:
        self._tasks[task.number] = task
        if task.kind == "build":
            task.member.building.add(task.number)
        else:
            task.member.measuring[task.number] = None
        self.fleet.submit(task.kind, task.member.address, task.number, encode(request), *task.needs)

    # -- what is on its way -----------------------------------------------------------------------------------------

    @property
    def builds_reference(self) -> bool:
        """Whether somebody builds the reference kernel."""
        return any(task.kind == "build" and task.job is None for task in self._tasks.values())

    def of_jobs(self) -> list[Task]:
        """Return all builds, runs and comparisons; neither leases nor the reference kernel."""
        return [task for task in self._tasks.values() if task.job is not None or task.kind == "measure"]

    def of_member(self, member: Member) -> list[Task]:
        """Return what a worker was asked for."""
        return [task for task in self._tasks.values() if task.member is member]

    def of_job(self, job: Job) -> list[Task]:
        """Return what is asked for a job."""
        return [task for task in self._tasks.values() if task.job is job]

    def overdue(self, ready: Iterable[Member], comparison: Comparison | None) -> Iterator[tuple[Member, float]]:
        """Yield workers that should have answered long ago, each with the limit that it passed, s."""
        now, setting = self._clock(), self._setting
        for member in [*ready]:
            running = member.seen.standing.running
            own = {at.number: at for at in running if at.session == setting.session}
            others = any(at.session != setting.session and at.seconds < _OTHERS_S for at in running)
            for number in [*member.building, *itertools.islice(member.measuring, 1)]:
                task = self._tasks[number]
                at = own.get(0 if task.kind == "lease" else number)
                compared = comparison if comparison is not None and comparison.task is task else None
                if others and (at is None or at.stage == _WAITS):
                    task.since = now
                elif limit_s := _overdue_s(at, now - task.since, setting.limits, compared):
                    yield member, limit_s
                    break

    # -- the end ----------------------------------------------------------------------------------------------------

    def ended(self, event: Done) -> Task | None:
        """Return what ended, None if nobody waits for it: it is late, or the second answer."""
        task = self._take(event.number)
        if task is not None and task.kind == "measure":
            self.fleet.drop(event.number)  # builds and leases are held as long as they are needed
        return task

    def forget(self, task: Task) -> None:
        """Wait for an answer no longer; should it come, it is dropped."""
        if self._take(task.number) is not None:
            self.fleet.drop(task.number)

    def drop_reference(self) -> None:
        """Let the reference kernel's build go."""
        if self.reference is not None:
            self.fleet.drop(self.reference[0])
            self.reference = None

    def _take(self, number: int) -> Task | None:
        task = self._tasks.pop(number, None)
        if task is None:
            return None
        member = task.member
        member.building.discard(number)
        if number in member.measuring:
            del member.measuring[number]
            for following in itertools.islice(member.measuring, 1):
                self._tasks[following].since = self._clock()
        return task


def _overdue_s(at: Running | None, waited_s: float, limits: Limits, compared: Comparison | None) -> float:
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


class Pace:
    """How long builds and runs usually take, and so how many schedules keep all workers busy."""

    def __init__(self) -> None:
        self._build_s = self._run_s = 0.0

    def note(self, measurement: Measurement) -> None:
        """Learn from a trial that ran."""
        self._build_s += (measurement.build_s - self._build_s) * (_MEMORY if self._build_s else 1.0)
        self._run_s += (measurement.run_s - self._run_s) * (_MEMORY if self._run_s else 1.0)

    def room(self, ready: Sequence[Member]) -> int:
        """Return how many schedules may be on their way: what runs and waits at devices, and the builds for them."""
        devices = sum(member.measures for member in ready)
        slots = sum(member.builders for member in ready)
        ahead = math.ceil(devices * self._build_s / self._run_s) if self._run_s else 2 * devices
        return (1 + QUEUED) * devices + min(slots, max(2, ahead)) if devices and slots else 0
