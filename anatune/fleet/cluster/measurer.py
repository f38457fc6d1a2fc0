"""A session's measurer on a cluster: who builds and measures what, and what becomes of failures and silence."""

from __future__ import annotations

import queue
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from anatune.arguments import checked_integer
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, RunError
from anatune.fleet.cluster.fleet import Done, Event, Fleet, Kind, Lost, Snapshot
from anatune.fleet.cluster.messages import Answer, SessionSetting, checked_measurement, decode
from anatune.fleet.cluster.requests import Comparison, Job, Pace, Requests, Task
from anatune.fleet.cluster.roster import Member, Roster
from anatune.measure.place import Ask, WorkerState, checked_of
from anatune.measure.run.build_processes import KeptBuilds, Limits

if TYPE_CHECKING:
    from typing import Self

_WAIT_S = 60.0
"""How long a session without workers waits for one."""
_MOST_LOST = 2
"""A trial with which so many workers were lost is not tried again."""
_REPEATED = (
    *(Outcome.BUILD_ERROR, Outcome.BUILD_TIMEOUT),
    *(Outcome.RUN_ERROR, Outcome.RUN_TIMEOUT, Outcome.WRONG_RESULT, Outcome.LOST_DEVICE),
)
"""Failures that may be the worker's: repeated once on another."""


class ClusterMeasurer:
    """Builds, checks and times schedules of one workload on the workers of a cluster; a `MeasurerLike`.

    Workers may come and go. Each measures beside its own reference kernel. Who is not what the session needs is
    refused; who does not answer in time, or whose failures others refute, is asked for nothing more. A failure that may
    be the worker's is repeated on another one.

    Not safe to share between threads.

    Parameters
    ----------
    workload, hardware, threads, limits, seed
        As a local measurer takes them.
    connect : callable
        Name of the session -> `Fleet`.
    wait_s : float
        How long a session without workers waits for one.
    clock : callable
        Seconds.
    conditions : str or int
        "cold", "template", "l2", "least_samples" of the measurer; "device" and "backend" are the workers' own.

    Attributes
    ----------
    incumbent : float or None
        As a local measurer's.
    session : str
        Its name with workers.

    Raises
    ------
    DeviceError
        The scheduler is gone; no worker can be used, and none comes.
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
        told = {name: str(value) for name, value in conditions.items() if name not in others}
        samples = checked_integer("least_samples", conditions.get("least_samples", 1), 1)
        self._setting = SessionSetting(self.session, workload, hardware, threads, self.limits, seed, told, samples)
        self._connect, self._wait_s, self._clock = connect, wait_s, clock
        self._roster = Roster(hardware, threads)
        self._open: Requests | None = None
        self._waiting: dict[Kind, deque[Job]] = {"build": deque(), "measure": deque()}
        self._answers: deque[tuple[Job, Measurement]] = deque()
        self._jobs: set[Job] = set()
        self._kept: KeptBuilds[Job] = KeptBuilds(self._drop_build)
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
        """Take back what workers were asked for; may be called twice."""
        if self._open is not None:
            self._open.fleet.close()
            self._open = None

    def workers(self) -> tuple[WorkerState, ...]:
        """Return all workers that were there, and why some are not asked."""
        return self._roster.states()

    # -- what a session calls ---------------------------------------------------------------------------------------

    def serve(self, ask: Ask) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure what `ask` returns, in any order; see `MeasurerLike`.

        Raises
        ------
        DeviceError
            The scheduler is gone, or all workers are and none comes back.
        SpaceError
            A schedule of another workload.
        """
        may_ask = True
        try:
            while True:
                while self._answers:
                    job, measurement = self._answers.popleft()
                    yield job.schedule, measurement
                    may_ask = True
                while may_ask and len(self._jobs) < self._pace.room(self._roster.ready()):
                    schedule = ask()
                    if schedule is None:
                        may_ask = False
                    else:
                        self._add(Job(checked_of(self.workload, schedule)))
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
            As `serve`.
        """
        self._abandon()
        jobs = [Job(checked_of(self.workload, schedule), compared=True) for schedule in schedules]
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

    def _add(self, job: Job) -> None:
        self._jobs.add(job)
        self._waiting["build"].append(job)

    def _finish(self, job: Job, measurement: Measurement, member: Member | None) -> None:
        """Answer for a job, and keep what was built of the best."""
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

    def _drop_build(self, job: Job) -> None:
        if job.built is not None:
            self._requests.fleet.drop(job.built)
        job.built, job.builder = None, ""

    def _abandon(self) -> None:
        """Take back whatever is on its way; leases and the reference kernel stay."""
        if self._open is None:
            return
        for task in self._open.of_jobs():
            self._open.forget(task)
        kept = {job.built for job in self._kept.jobs()}
        for job in self._jobs:
            if job.built not in kept:
                self._drop_build(job)
        self._jobs.clear()
        for waiting in self._waiting.values():
            waiting.clear()
        self._answers.clear()

    # -- who does what ----------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        """Give free workers something to do."""
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

    def _hand_out(self, kind: Kind, members: Sequence[Member], able: Sequence[Member]) -> None:
        """Give what waits to members that have room; `able` are all that may be among them soon."""
        waiting = self._waiting[kind]
        for _ in range(len(waiting)):
            job = waiting.popleft()
            failed = job.failed.get(kind)
            # A bad line is no reason to give up a trial: where all were lost with it before, any will do.
            fresh = [member for member in members if member.name not in job.lost] or members
            free = [member for member in fresh if member.has_room(kind) and (not failed or member is not failed[0])]
            if free and kind == "build":
                self._requests.build(min(free, key=lambda member: member.load(kind)), job)
            elif free:
                here = job.builder  # what was built there need not travel
                member = min(free, key=lambda member: (member.load(kind), member.address != here))
                self._requests.measure(member, job, self.incumbent)
            elif failed and list(able) == [failed[0]]:  # the others have left
                self._finish(job, failed[1], failed[0])
            else:
                waiting.append(job)
                if not failed and len(fresh) == len(members):
                    break

    # -- what comes back --------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Wait for what happens next, and deal with all that did."""
        events = self._requests.fleet.events
        try:
            self._deal(events.get(timeout=1.0))
            while True:
                self._deal(events.get_nowait())
        except queue.Empty:
            pass
        self._roster.check_alone(self._clock(), self._wait_s)

    def _deal(self, event: Event) -> None:
        if isinstance(event, Lost):
            raise DeviceError(event.why)
        if isinstance(event, Snapshot):
            self._note(event)
            self._check_overdue()
            return
        task = self._requests.ended(event)
        if task is None:
            return
        if event.error:
            self._suspect(task.member, event.error, task)
        elif task.kind != "build":
            self._answered(event, task)
        elif task.job is None:
            self._requests.reference = event.number, task.member
        else:
            task.job.built, task.job.builder = event.number, task.member.address
            if not task.job.compared:
                self._waiting["measure"].append(task.job)

    def _answered(self, event: Done, task: Task) -> None:
        """Deal with what a worker answered to a lease, a run or a comparison."""
        member = task.member
        comparison = self._comparison if self._comparison is not None and self._comparison.task is task else None
        jobs = [task.job] if task.job is not None else comparison.jobs if comparison is not None else []
        try:
            answer = decode(event.content, Answer)
            if answer.session != self.session or answer.number != (0 if task.kind == "lease" else event.number):
                raise RunError("an answer to something else arrived")
            if not answer.trouble and len(answer.measurements) != len(jobs):
                raise RunError(f"{len(answer.measurements)} measurements arrived, expected {len(jobs)}")
            measurements = [checked_measurement(measurement) for measurement in answer.measurements]
        except RunError as error:
            self._suspect(member, str(error), task)
            return
        if answer.trouble and answer.whose == "lease":
            self._moved(task, blamed=False)
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

    def _judge(self, job: Job, measurement: Measurement, member: Member, failed_build: bool) -> None:
        """Take an answer, or have a failure repeated elsewhere; who fails with what works elsewhere is noted."""
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
        for failing, by in refuted:  # last: it may take back what others have
            if self._roster.refuted(failing, by):
                self._take_back(failing, lost=False)

    def _blame_builder(self, trouble: str, task: Task, jobs: Sequence[Job]) -> None:
        """Ask who could not make a build for nothing more, and have it made elsewhere."""
        if task.kind == "lease":
            task.member.lease = builder = None
            reference = self._requests.reference
            if reference is not None and reference[0] in task.needs:
                builder = reference[1]
                self._requests.drop_reference()
        else:
            builder = next((member for job in jobs if (member := self._roster.get(job.builder)) is not None), None)
            for job in jobs:
                self._again(job)
            if self._comparison is not None:
                self._comparison.task = None
        if builder is not None:
            self._suspect(builder, trouble)

    # -- who is there -----------------------------------------------------------------------------------------------

    def _note(self, snapshot: Snapshot) -> None:
        for member in self._roster.update(snapshot):
            self._take_back(member, lost=True)

    def _suspect(self, member: Member, why: str, task: Task | None = None) -> None:
        """Ask a worker for nothing more; what it has goes elsewhere, and so does the task that it gave up."""
        if member.is_ready:
            self._roster.quarantine(member, why)
        if task is not None:
            self._moved(task, blamed=True)
        self._take_back(member, lost=True)

    def _take_back(self, member: Member, *, lost: bool) -> None:
        """Have others do what a worker was asked for; `lost`: with what it was at just now, it may be its end."""
        requests, first = self._requests, next(iter(member.measuring), None)
        for task in requests.of_member(member):
            requests.forget(task)
            self._moved(task, blamed=lost and (task.number == first or task.kind == "build"))
        member.lease = None
        if requests.reference is not None and requests.reference[1] is member:
            requests.drop_reference()
        for job in [job for job in self._jobs if job.builder == member.address]:
            for task in requests.of_job(job):
                requests.forget(task)
            if self._comparison is not None and self._comparison.task is not None:
                requests.forget(self._comparison.task)
                self._comparison.task = None
            self._again(job)
        for job in self._kept.jobs():
            if job.builder == member.address:
                self._kept.lose(job.schedule.key)

    def _moved(self, task: Task, *, blamed: bool) -> None:
        """Have somebody else do a task that a worker did not."""
        if self._comparison is not None and self._comparison.task is task:
            self._comparison.task = None
        job = task.job
        if job is None or job not in self._jobs:
            return
        if blamed:
            job.lost.append(task.member.name)
        if len(job.lost) >= _MOST_LOST and not job.compared:
            message = f"{len(job.lost)} workers were lost with it: {', '.join(job.lost)}"
            self._finish(job, Measurement(Outcome.LOST_DEVICE, message), None)
        elif task.kind == "measure" and job.built is not None:
            self._waiting["measure"].append(job)
        else:
            self._again(job)

    def _again(self, job: Job) -> None:
        """Build a job once more."""
        self._drop_build(job)
        to_build, to_measure = self._waiting["build"], self._waiting["measure"]
        if job in to_measure:
            to_measure.remove(job)
        if job not in to_build:
            to_build.append(job)

    def _check_overdue(self) -> None:
        """Do without workers that should have answered long ago."""
        for member, limit_s in self._requests.overdue(self._roster.ready(), self._comparison):
            self._suspect(member, f"it did not answer within {limit_s:g} s")
