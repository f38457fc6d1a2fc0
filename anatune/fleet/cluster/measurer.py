"""A session's measurer on a cluster: it assigns builds and measurements to workers and handles their failures."""

from __future__ import annotations

import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from anatune.arguments import check_integer
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, RunError
from anatune.fleet.cluster.fleet import Event, Fleet, FleetLoss, Kind, Snapshot, TaskEnd
from anatune.fleet.cluster.messages import SessionSetting, WorkerAnswer, check_measurement, decode
from anatune.fleet.cluster.requests import ClusterJob, ClusterTask, Comparison, Pace, Requests
from anatune.fleet.cluster.roster import ClusterWorker, Roster
from anatune.measure.place import Ask, WorkerState, check_workload
from anatune.measure.run.build_processes import KeptBuilds, Limits

if TYPE_CHECKING:
    from typing import Self

_WAIT_S = 60.0
"""The seconds that a session without workers waits for one."""
_MOST_LOST = 2
"""The number of lost workers after which a trial is not repeated."""
_REPEATED = (
    *(Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT),
    *(Outcome.RUN_ERROR, Outcome.RUN_TIMEOUT, Outcome.WRONG_RESULT, Outcome.LOST_DEVICE),
)
"""The failures that a worker may have caused: they are repeated once on another worker."""


class ClusterMeasurer:
    """The `MeasurerLike` that builds, checks and times schedules of one workload on the workers of a cluster.

    Workers may come and go. Each worker measures next to its own reference kernel. A worker that does not fit the
    session is refused. A worker that does not answer in time, or whose failures other workers refute, gets no more
    work. A failure that the worker may have caused is repeated on another worker.

    The object cannot be shared between threads.

    Parameters
    ----------
    workload, hardware, threads, limits, seed
        The same as for a local measurer.
    connect : callable
        A function from the name of the session to its `Fleet`.
    wait_s : float
        The seconds that a session without workers waits for one.
    clock : callable
        A function that returns the time in seconds.
    conditions : str or int
        "cold", "template", "l2" and "least_samples" of the measurer; "device" and "backend" are ignored, because the
        workers decide them.

    Attributes
    ----------
    incumbent : float or None
        The best relative time, as in a local measurer.
    session : str
        The name of the session on workers.

    Raises
    ------
    DeviceError
        The scheduler is gone, or no usable worker comes in time.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        connect: Callable[[str], Fleet],
        threads: int = 1,
        limits: Limits | None = None,
        seed: int = 0,
        wait_s: float = _WAIT_S,
        clock: Callable[[], float] = time.monotonic,
        **conditions: object,
    ) -> None:
        self.workload, self.hardware, self.threads = workload, hardware, threads
        self.limits = limits or Limits()
        self.incumbent: float | None = None
        self.session = uuid.uuid4().hex
        others = ("device", "backend", "least_samples")
        shared = {name: str(value) for name, value in conditions.items() if name not in others}
        samples = check_integer("least_samples", conditions.get("least_samples", 1), 1)
        self._setting = SessionSetting(self.session, workload, hardware, threads, self.limits, seed, shared, samples)
        self._connect, self._wait_s, self._clock = connect, wait_s, clock
        self._roster = Roster(hardware, threads)
        self._open: Requests | None = None
        self._waiting: dict[Kind, deque[ClusterJob]] = {"build": deque(), "measure": deque()}
        self._answers: deque[tuple[ClusterJob, Measurement]] = deque()
        self._jobs: set[ClusterJob] = set()
        self._kept: KeptBuilds[ClusterJob] = KeptBuilds(self._drop_build)
        self._pace = Pace()
        self._comparison: Comparison | None = None

    def __enter__(self) -> Self:
        self._open = Requests(self._connect(self.session), self._setting, self._clock)
        try:
            self._note(self._open.fleet.look())
            self._open.fleet.watch()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel all tasks of workers; a second call does nothing."""
        if self._open is not None:
            self._open.fleet.close()
            self._open = None

    def workers(self) -> tuple[WorkerState, ...]:
        """Return the states of all workers that the session has seen."""
        return self._roster.states()

    # -- methods that a session calls -------------------------------------------------------------------------------

    def serve(self, ask: Ask) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure the schedules that `ask` returns, in any order; see `MeasurerLike`.

        Raises
        ------
        DeviceError
            The scheduler is gone, or all workers are gone and none comes back.
        SpaceError
            A schedule belongs to another workload.
        """
        may_ask = True
        try:
            while True:
                while self._answers:
                    job, measurement = self._answers.popleft()
                    yield job.schedule, measurement
                    may_ask = True
                while may_ask and len(self._jobs) < self._pace.capacity(self._roster.ready()):
                    schedule = ask()
                    if schedule is None:
                        may_ask = False
                    else:
                        self._add(ClusterJob(check_workload(self.workload, schedule)))
                if not self._jobs and not may_ask:
                    return
                self._assign()
                self._take()
        finally:
            self._abandon()

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Time contenders in turn on one worker; see `Measurer.compare`.

        Raises
        ------
        DeviceError, SpaceError
            The errors of `serve`.
        """
        self._abandon()
        jobs = [ClusterJob(check_workload(self.workload, schedule), compared=True) for schedule in schedules]
        self._comparison = comparison = Comparison(jobs, budget_s)
        try:
            for job in jobs:
                kept = self._kept.get(job.schedule.key)
                if kept is not None:
                    job.built, job.builder = kept.built, kept.builder
                    self._jobs.add(job)
                else:
                    self._add(job)
            while comparison.measurements is None:
                self._assign()
                self._take()
            return comparison.measurements
        finally:
            self._comparison = None
            self._abandon()

    # -- jobs -------------------------------------------------------------------------------------------------------

    @property
    def _requests(self) -> Requests:
        if self._open is None:
            raise RunError("the measurer is not open; use it in a with statement")
        return self._open

    def _add(self, job: ClusterJob) -> None:
        self._jobs.add(job)
        self._waiting["build"].append(job)

    def _finish(self, job: ClusterJob, measurement: Measurement, member: ClusterWorker | None) -> None:
        """Report the measurement of a job, and keep the builds of the best ones."""
        self._jobs.discard(job)
        if member is not None:
            measurement = msgspec.structs.replace(measurement, worker=member.name)
            member.trials += 1
            member.failed += measurement.time_s is None
        relative = measurement.relative
        if relative is not None:
            self._pace.note(measurement)
            if not measurement.stopped_early:
                self.incumbent = relative if self.incumbent is None else min(self.incumbent, relative)
        self._answers.append((job, measurement))
        self._kept.settle(job.schedule.key, job, None if job.built is None else relative)

    def _drop_build(self, job: ClusterJob) -> None:
        if job.built is not None:
            self._requests.fleet.drop(job.built)
        job.built, job.builder = None, ""

    def _abandon(self) -> None:
        """Cancel all jobs; leases and the reference kernel stay."""
        if self._open is None:
            return
        for task in self._open.tasks_of_jobs():
            self._open.forget(task)
        kept = {job.built for job in self._kept.jobs()}
        for job in self._jobs:
            if job.built not in kept:
                self._drop_build(job)
        self._jobs.clear()
        for waiting in self._waiting.values():
            waiting.clear()
        self._answers.clear()

    # -- assignment of tasks ----------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Assign tasks to free workers."""
        ready = self._roster.ready()
        builders = [member for member in ready if member.builders]
        devices = [member for member in ready if member.measures]
        if not (builders and devices):
            return
        requests = self._requests
        if requests.reference is None and not requests.builds_reference:
            requests.build(min(builders, key=lambda member: member.load("build")), None)
        for member in devices:
            if member.lease is None and requests.reference is not None:
                requests.lease(member)
        leased = [member for member in devices if member.lease is not None]
        self._hand_out("build", builders, builders)
        self._hand_out("measure", leased, devices)
        comparison = self._comparison
        if comparison is None or comparison.task is not None or any(job.built is None for job in comparison.jobs):
            return
        if leased:
            requests.compare(min(leased, key=lambda member: member.load("measure")), comparison)

    def _hand_out(self, kind: Kind, members: Sequence[ClusterWorker], able: Sequence[ClusterWorker]) -> None:
        """Assign waiting jobs to workers with capacity; `able` are all workers that may become free."""
        waiting = self._waiting[kind]
        for _ in range(len(waiting)):
            job = waiting.popleft()
            failed = job.failed.get(kind)
            # The network may be the cause of losses: if every worker was lost with this job before, take any.
            fresh = [member for member in members if member.name not in job.lost] or members
            free = [member for member in fresh if member.has_capacity(kind) and (not failed or member is not failed[0])]
            if free and kind == "build":
                self._requests.build(min(free, key=lambda member: member.load(kind)), job)
            elif free:
                here = job.builder  # a build need not be sent to its own worker
                member = min(free, key=lambda member: (member.load(kind), member.address != here))
                self._requests.measure(member, job, self.incumbent)
            elif failed and list(able) == [failed[0]]:  # the others have left
                self._finish(job, failed[1], failed[0])
            else:
                waiting.append(job)
                if not failed and len(fresh) == len(members):
                    break

    # -- events -----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Wait for the next event, and handle all pending ones."""
        events = self._requests.fleet.events
        try:
            self._handle(events.get(timeout=1.0))
            while True:
                self._handle(events.get_nowait())
        except queue.Empty:
            pass
        self._roster.check_alone(self._clock(), self._wait_s)

    def _handle(self, event: Event) -> None:
        if isinstance(event, FleetLoss):
            raise DeviceError(event.why)
        if isinstance(event, Snapshot):
            self._note(event)
            self._check_overdue()
            return
        task = self._requests.finish(event)
        if task is None:
            return
        if event.error:
            self._suspect(task.member, event.error, task)
        elif task.kind != "build":
            self._handle_answer(event, task)
        elif task.job is None:
            self._requests.reference = event.number, task.member
        else:
            task.job.built, task.job.builder = event.number, task.member.address
            if not task.job.compared:
                self._waiting["measure"].append(task.job)

    def _handle_answer(self, event: TaskEnd, task: ClusterTask) -> None:
        """Handle a worker's answer to a lease, a run or a comparison."""
        member = task.member
        comparison = self._comparison if self._comparison is not None and self._comparison.task is task else None
        jobs = [task.job] if task.job is not None else comparison.jobs if comparison is not None else []
        try:
            answer = decode(event.content, WorkerAnswer)
            if answer.session != self.session or answer.number != (0 if task.kind == "lease" else event.number):
                raise RunError("it answered another request")
            if not answer.trouble and len(answer.measurements) != len(jobs):
                raise RunError(f"it answered with {len(answer.measurements)} measurements, expected {len(jobs)}")
            measurements = [check_measurement(measurement) for measurement in answer.measurements]
        except RunError as error:
            self._suspect(member, str(error), task)
            return
        if answer.trouble and answer.whose == "lease":
            self._move(task, blamed=False)
        elif answer.trouble and answer.whose == "builder":
            self._blame_builder(answer.trouble, task, jobs[answer.part : answer.part + 1])
        elif answer.trouble:
            self._suspect(member, answer.trouble, task)
        elif comparison is not None:
            comparison.measurements = [
                msgspec.structs.replace(measurement, worker=member.name) for measurement in measurements
            ]
        elif task.job is not None:
            self._judge(task.job, measurements[0], member, answer.failed_build)

    def _judge(self, job: ClusterJob, measurement: Measurement, member: ClusterWorker, failed_build: bool) -> None:
        """Accept a measurement, or repeat a failure on another worker; count failures that others refute."""
        kind: Kind = "build" if failed_build else "measure"
        builder = self._roster.get(job.builder)
        doer = builder if failed_build else member
        refuted = []
        if not failed_build and (failed := job.failed.pop("build", None)):
            refuted.append((failed[0], job.builder if builder is None else builder.name))
        others = any(
            other is not doer and (other.builders if failed_build else other.measures) for other in self._roster.ready()
        )
        if measurement.outcome in _REPEATED and doer is not None and kind not in job.failed and others:
            job.failed[kind] = doer, measurement
            if failed_build:
                self._drop_build(job)
            self._waiting[kind].append(job)
        else:
            if not failed_build and measurement.outcome not in _REPEATED and kind in job.failed:
                refuted.append((job.failed[kind][0], member.name))
            self._finish(job, measurement, doer)
        for failing, by in refuted:  # at the end, because it may cancel tasks of others
            if self._roster.note_refutation(failing, by):
                self._take_back(failing, lost=False)

    def _blame_builder(self, trouble: str, task: ClusterTask, jobs: Sequence[ClusterJob]) -> None:
        """Quarantine the worker that made an unusable build, and repeat the build on another worker."""
        if task.kind == "lease":
            task.member.lease = builder = None
            reference = self._requests.reference
            if reference is not None and reference[0] in task.needs:
                builder = reference[1]
                self._requests.drop_reference()
        else:
            builder = next((member for job in jobs if (member := self._roster.get(job.builder)) is not None), None)
            for job in jobs:
                self._build_again(job)
            if self._comparison is not None:
                self._comparison.task = None
        if builder is not None:
            self._suspect(builder, trouble)

    # -- workers ----------------------------------------------------------------------------------------------------

    def _note(self, snapshot: Snapshot) -> None:
        for member in self._roster.update(snapshot):
            self._take_back(member, lost=True)

    def _suspect(self, member: ClusterWorker, why: str, task: ClusterTask | None = None) -> None:
        """Quarantine a worker, and move its tasks, and the task that it gave up, to other workers."""
        if member.is_ready:
            self._roster.quarantine(member, why)
        if task is not None:
            self._move(task, blamed=True)
        self._take_back(member, lost=True)

    def _take_back(self, member: ClusterWorker, *, lost: bool) -> None:
        """Move a worker's tasks to others; `lost` says that the task it was running may be the cause of its loss."""
        requests, first = self._requests, next(iter(member.measuring), None)
        for task in requests.tasks_of_worker(member):
            requests.forget(task)
            self._move(task, blamed=lost and (task.number == first or task.kind == "build"))
        member.lease = None
        if requests.reference is not None and requests.reference[1] is member:
            requests.drop_reference()
        for job in [job for job in self._jobs if job.builder == member.address]:
            for task in requests.tasks_of_job(job):
                requests.forget(task)
            if self._comparison is not None and self._comparison.task is not None:
                requests.forget(self._comparison.task)
                self._comparison.task = None
            self._build_again(job)
        for job in self._kept.jobs():
            if job.builder == member.address:
                self._kept.lose(job.schedule.key)

    def _move(self, task: ClusterTask, *, blamed: bool) -> None:
        """Assign a task that a worker did not finish to another worker."""
        if self._comparison is not None and self._comparison.task is task:
            self._comparison.task = None
        job = task.job
        if job is None or job not in self._jobs:
            return
        if blamed:
            job.lost.append(task.member.name)
        if len(job.lost) >= _MOST_LOST and not job.compared:
            message = f"{len(job.lost)} workers were lost while they ran it: {', '.join(job.lost)}"
            self._finish(job, Measurement(Outcome.LOST_DEVICE, message), None)
        elif task.kind == "measure" and job.built is not None:
            self._waiting["measure"].append(job)
        else:
            self._build_again(job)

    def _build_again(self, job: ClusterJob) -> None:
        """Queue a job for another build."""
        self._drop_build(job)
        to_build, to_measure = self._waiting["build"], self._waiting["measure"]
        if job in to_measure:
            to_measure.remove(job)
        if job not in to_build:
            to_build.append(job)

    def _check_overdue(self) -> None:
        """Quarantine workers that should have answered long ago."""
        for member, limit_s in self._requests.find_overdue(self._roster.ready(), self._comparison):
            self._suspect(member, f"it did not answer within {limit_s:g} s")
