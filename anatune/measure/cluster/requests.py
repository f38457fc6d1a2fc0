"""What a session on a cluster has asked for: who was asked under which number, and since when it is whose turn.

Each thing that is asked for has a number, never used twice; an answer under a number that nobody waits for any more is
late, or the second one, and is dropped. So no trial is lost, and none is counted twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from anatune.measure.cluster.fleet import Done, Fleet
from anatune.measure.cluster.jobs import Comparison, Job, Task, overdue_s, waits
from anatune.measure.cluster.messages import BuildRequest, CompareRequest, MeasureRequest, SessionSetting, encode
from anatune.measure.cluster.roster import Member

__all__ = ["Requests"]

_OTHERS_S = 600.0
"""What another session has done on a worker for so long is taken for dead."""


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
        number = self._ask("reference" if job is None else "build", member, job)
        setting, schedule = self._setting, None if job is None else job.schedule
        request = BuildRequest(setting.session, number, setting.hardware, setting.threads, setting.limits, schedule)
        self.fleet.build(member.address, number, encode(request))

    def lease(self, member: Member) -> None:
        """Have a worker get ready with the reference kernel, which has to be there."""
        assert self.reference is not None
        reference, _ = self.reference
        member.lease = self._ask("lease", member, None)
        self._tasks[member.lease].reference = reference
        self.fleet.lease(member.address, member.lease, encode(self._setting), reference)

    def measure(self, member: Member, job: Job, incumbent: float | None) -> None:
        """Have a worker that is ready measure what was built."""
        assert job.built is not None
        assert member.lease is not None
        number = self._ask("measure", member, job)
        request = encode(MeasureRequest(self._setting.session, number, job.schedule, incumbent))
        self.fleet.measure(member.address, number, request, job.built, member.lease)

    def compare(self, member: Member, one: Comparison) -> None:
        """Have a worker that is ready time contenders, all of which are built."""
        assert member.lease is not None
        one.number = number = self._ask("compare", member, None)
        request = CompareRequest(self._setting.session, number, tuple(job.schedule for job in one.jobs), one.budget_s)
        built = [job.built for job in one.jobs if job.built is not None]
        self.fleet.compare(member.address, number, encode(request), built, member.lease)

    def _ask(self, kind: str, member: Member, job: Job | None) -> int:
        """Note that a worker is asked for something; return the number."""
        number = next(self._numbers)
        self._tasks[number] = Task(kind, member, job, self._clock())
        if kind in ("build", "reference"):
            member.building.add(number)
        else:
            member.measuring[number] = None
        return number

    # -- what is on its way -----------------------------------------------------------------------------------------

    @property
    def builds_reference(self) -> bool:
        """Whether somebody builds the reference kernel."""
        return any(task.kind == "reference" for task in self._tasks.values())

    def of_jobs(self) -> list[int]:
        """Return the numbers of all builds, runs and comparisons; neither leases nor the reference kernel."""
        return [number for number, task in self._tasks.items() if task.job is not None or task.kind == "compare"]

    def of_member(self, member: Member) -> list[tuple[int, Task]]:
        """Return what a worker was asked for."""
        return [(number, task) for number, task in self._tasks.items() if task.member is member]

    def of_job(self, job: Job) -> list[int]:
        """Return under which numbers something is asked for a job."""
        return [number for number, task in self._tasks.items() if task.job is job]

    def overdue(self, ready: Iterator[Member], comparison: Comparison | None) -> Iterator[tuple[Member, float]]:
        """Yield workers that should have answered long ago, each with the limit that it passed, s."""
        now, setting = self._clock(), self._setting
        for member in [*ready]:
            running = member.seen.standing.running
            at = {one.number: one for one in running if one.session == setting.session}
            others = any(one.session != setting.session and one.seconds < _OTHERS_S for one in running)
            for number in [*member.building, *itertools.islice(member.measuring, 1)]:
                task = self._tasks[number]
                mine = at.get(0 if task.kind == "lease" else number)
                compared = comparison if task.kind == "compare" else None
                if others and waits(mine):
                    task.since = now
                elif limit_s := overdue_s(mine, now - task.since, setting.limits, compared):
                    yield member, limit_s
                    break

    # -- the end ----------------------------------------------------------------------------------------------------

    def ended(self, event: Done) -> Task | None:
        """Return what ended, None if nobody waits for it: it is late, or the second answer."""
        task = self._take(event.number)
        if task is not None and task.kind in ("measure", "compare"):
            self.fleet.drop(event.number)  # builds and leases are held as long as they are needed
        return task

    def forget(self, number: int) -> None:
        """Wait for an answer no longer; should it come, it is dropped."""
        if self._take(number) is not None:
            self.fleet.drop(number)

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
