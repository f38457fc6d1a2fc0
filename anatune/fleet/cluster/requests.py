"""The open requests of a session on a cluster: task, worker, number and time of each.

Each request has a unique number. An answer whose number is not open any more is late or a duplicate, and is dropped. So
no trial is lost, and none is counted twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.fleet.cluster.fleet import Fleet, Kind, TaskEnd
from anatune.fleet.cluster.messages import BuildRequest, MeasureRequest, Running, SessionSetting, encode
from anatune.fleet.cluster.roster import QUEUED, ClusterWorker
from anatune.measure.run.build_processes import Limits

_SLACK_S = 10.0
"""The seconds in addition to the limits of a request, for transport and restarts of processes."""
_OTHERS_S = 600.0
"""The seconds after which a task of another session on a worker counts as dead."""
_LATEST_WEIGHT = 0.1
"""The weight of the latest trial in the average times of building and running."""
_WAITS = "wait"
"""The stage of a request that waits for its turn (`station`)."""


class ClusterJob:
    """A schedule that is being built or measured.

    Attributes
    ----------
    built, builder
        The number of its finished build, and the address of the worker that has it.
    failed : dict of str to (Member, Measurement)
        The worker that failed to build or to measure it, and the failure, which is repeated on another worker.
    lost : list of str
        The workers that were lost while they ran it.
    compared : bool
        Whether it is only built for a comparison.
    """

    def __init__(self, schedule: Schedule, compared: bool = False) -> None:
        self.schedule, self.compared = schedule, compared
        self.built: int | None = None
        self.builder = ""
        self.failed: dict[Kind, tuple[ClusterWorker, Measurement]] = {}
        self.lost: list[str] = []


class ClusterTask(msgspec.Struct, eq=False):
    """A task that a worker was asked to do.

    Attributes
    ----------
    number : int
        The unique number.
    kind : {"build", "lease", "measure"}
        The kind of task.
    member : Member
        The worker.
    job : Job or None
        The job of a build or measurement; None for the reference kernel, a lease or a comparison.
    since : float
        The time in seconds at which the task's turn began.
    needs : tuple of int
        The numbers of the tasks whose results it needs.
    """

    number: int
    kind: Kind
    member: ClusterWorker
    job: ClusterJob | None
    since: float
    needs: tuple[int, ...] = ()


class Comparison:
    """The final comparison of the best schedules: their jobs, the worker's task, and its measurements."""

    def __init__(self, jobs: Sequence[ClusterJob], budget_s: float) -> None:
        self.jobs, self.budget_s = jobs, budget_s
        self.task: ClusterTask | None = None
        self.measurements: list[Measurement] | None = None


class Requests:
    """Submits tasks to workers through a fleet, and keeps those that are not answered yet.

    Parameters
    ----------
    fleet : Fleet
        The fleet.
    setting : SessionSetting
        The setting of the session.
    clock : callable
        A function that returns the time in seconds.

    Attributes
    ----------
    reference : tuple or None
        The number of the reference kernel's finished build, and the worker that has it.
    """

    def __init__(self, fleet: Fleet, setting: SessionSetting, clock: Callable[[], float]) -> None:
        self.fleet, self._setting, self._clock = fleet, setting, clock
        self.reference: tuple[int, ClusterWorker] | None = None
        self._numbers = itertools.count(1)
        self._tasks: dict[int, ClusterTask] = {}

    # -- submitting -------------------------------------------------------------------------------------------------

    def build(self, member: ClusterWorker, job: ClusterJob | None) -> None:
        """Ask a worker to build a job's schedule, or the reference kernel if `job` is None."""
        task, setting = self._make_task("build", member, job), self._setting
        schedule = None if job is None else job.schedule
        self._submit(
            task,
            BuildRequest(setting.session, task.number, setting.hardware, setting.threads, setting.limits, schedule),
        )

    def lease(self, member: ClusterWorker) -> None:
        """Ask a worker to prepare the session with the reference kernel, which has to be built."""
        assert self.reference is not None
        task = self._make_task("lease", member, None, self.reference[0])
        member.lease = task.number
        self._submit(task, self._setting)

    def measure(self, member: ClusterWorker, job: ClusterJob, incumbent: float | None) -> None:
        """Ask a worker with a lease to measure a built job."""
        task = self._make_task("measure", member, job, member.lease, job.built)
        self._submit(task, MeasureRequest(self._setting.session, task.number, (job.schedule,), incumbent))

    def compare(self, member: ClusterWorker, comparison: Comparison) -> None:
        """Ask a worker with a lease to time the built jobs of a comparison in turn."""
        jobs = comparison.jobs
        comparison.task = task = self._make_task("measure", member, None, member.lease, *(job.built for job in jobs))
        schedules = tuple(job.schedule for job in jobs)
        self._submit(task, MeasureRequest(self._setting.session, task.number, schedules, budget_s=comparison.budget_s))

    def _make_task(self, kind: Kind, member: ClusterWorker, job: ClusterJob | None, *needs: int | None) -> ClusterTask:
        """Return a new task for a worker."""
        numbers = tuple(need for need in needs if need is not None)
        assert len(numbers) == len(needs)
        return ClusterTask(next(self._numbers), kind, member, job, self._clock(), numbers)

    def _submit(self, task: ClusterTask, request: msgspec.Struct) -> None:
        self._tasks[task.number] = task
        if task.kind == "build":
            task.member.building.add(task.number)
        else:
            task.member.measuring[task.number] = None
        self.fleet.submit(task.kind, task.member.address, task.number, encode(request), *task.needs)

    # -- open tasks -------------------------------------------------------------------------------------------------

    @property
    def builds_reference(self) -> bool:
        """True if a worker is building the reference kernel."""
        return any(task.kind == "build" and task.job is None for task in self._tasks.values())

    def tasks_of_jobs(self) -> list[ClusterTask]:
        """Return all builds, runs and comparisons, without leases and the reference kernel."""
        return [task for task in self._tasks.values() if task.job is not None or task.kind == "measure"]

    def tasks_of_worker(self, member: ClusterWorker) -> list[ClusterTask]:
        """Return the open tasks of a worker."""
        return [task for task in self._tasks.values() if task.member is member]

    def tasks_of_job(self, job: ClusterJob) -> list[ClusterTask]:
        """Return the open tasks of a job."""
        return [task for task in self._tasks.values() if task.job is job]

    def find_overdue(
        self, ready: Iterable[ClusterWorker], comparison: Comparison | None
    ) -> Iterator[tuple[ClusterWorker, float]]:
        """Yield each worker that should have answered long ago, with the passed limit in seconds."""
        now, setting = self._clock(), self._setting
        for member in [*ready]:
            running = member.seen.standing.running
            reports = {at.number: at for at in running if at.session == setting.session}
            others = any(at.session != setting.session and at.seconds < _OTHERS_S for at in running)
            for number in [*member.building, *itertools.islice(member.measuring, 1)]:
                task = self._tasks[number]
                report = reports.get(0 if task.kind == "lease" else number)
                compared = comparison if comparison is not None and comparison.task is task else None
                if others and (report is None or report.stage == _WAITS):
                    task.since = now
                elif limit_s := _passed_limit_s(report, now - task.since, setting.limits, compared):
                    yield member, limit_s
                    break

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self, event: TaskEnd) -> ClusterTask | None:
        """Close a task and return it; None if it is not open, because its answer is late or a duplicate."""
        task = self._take(event.number)
        if task is not None and task.kind == "measure":
            self.fleet.drop(event.number)  # builds and leases stay as long as they are needed
        return task

    def forget(self, task: ClusterTask) -> None:
        """Close a task whose answer is not needed; a later answer is dropped."""
        if self._take(task.number) is not None:
            self.fleet.drop(task.number)

    def drop_reference(self) -> None:
        """Release the build of the reference kernel."""
        if self.reference is not None:
            self.fleet.drop(self.reference[0])
            self.reference = None

    def _take(self, number: int) -> ClusterTask | None:
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


def _passed_limit_s(report: Running | None, waited_s: float, limits: Limits, compared: Comparison | None) -> float:
    """Return the limit in seconds that a request has passed, or 0.

    Parameters
    ----------
    report : Running or None
        The state of the request that its worker reports, if any.
    waited_s : float
        The seconds since its turn began.
    limits : Limits
        The limits of the session.
    compared : Comparison or None
        The comparison, if the request is one.
    """
    if report is None:  # it has not begun, or its answer is missing
        limit_s = limits.start_s + _SLACK_S
        return limit_s if waited_s > limit_s else 0.0
    run_s = limits.run_s if compared is None else compared.budget_s + limits.run_s * len(compared.jobs)
    stage_s = {"build": limits.build_s, "run": run_s}.get(report.stage, limits.start_s)
    limit_s = 2 * stage_s + limits.start_s + _SLACK_S  # processes that die are restarted and try once more
    return limit_s if report.seconds > limit_s else 0.0


class Pace:
    """The average times of builds and runs, and the number of schedules that keep all workers busy."""

    def __init__(self) -> None:
        self._build_s = self._run_s = 0.0

    def note(self, measurement: Measurement) -> None:
        """Update the averages with a trial."""
        self._build_s += (measurement.build_s - self._build_s) * (_LATEST_WEIGHT if self._build_s else 1.0)
        self._run_s += (measurement.run_s - self._run_s) * (_LATEST_WEIGHT if self._run_s else 1.0)

    def capacity(self, ready: Sequence[ClusterWorker]) -> int:
        """Return how many schedules may be in progress: running and waiting at devices, and being built."""
        devices = sum(member.measures for member in ready)
        slots = sum(member.builders for member in ready)
        ahead = math.ceil(devices * self._build_s / self._run_s) if self._run_s else 2 * devices
        return (1 + QUEUED) * devices + min(slots, max(2, ahead)) if devices and slots else 0
