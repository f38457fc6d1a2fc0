"""The interface between a session and what measures for it: this machine, a cluster, boards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Protocol

import msgspec

from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.records.environment import Environment

Ask = Callable[[], Schedule | None]
"""A function that returns the next schedule; None if there is none before the next result is taken."""


class WorkerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker or board that measures for a session. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        Name in measurements (`Measurement.worker`).
    device : str
        Description of its device.
    state : str
        "ready"; "lost": not connected any more; "refused": another device or other versions than the session's;
        "quarantined": it was accepted, but gave unreliable results, or none.
    why : str
        Reason in one line; empty for "ready".
    trials, failed : int
        Number of trials in this session, and of those that failed.
    environment : Environment, optional
        Environment of its process, for records.
    measures : bool
        Whether it has a device; workers without one only build.
    """

    name: str
    device: str = ""
    state: Literal["ready", "lost", "refused", "quarantined"] = "ready"
    why: str = ""
    trials: int = 0
    failed: int = 0
    environment: Environment | None = None
    measures: bool = True


def add_earlier_trials(before: Sequence[WorkerState], now: Sequence[WorkerState]) -> tuple[WorkerState, ...]:
    """Return the present workers with the trials and failures of earlier sessions added.

    Parameters
    ----------
    before, now : sequence of WorkerState
        Workers of all earlier sessions, and of this one. Workers that are gone do not change.
    """
    earlier = {worker.name: worker for worker in before}
    states = []
    for worker in now:
        last = earlier.pop(worker.name, worker)
        trials, failed = (last.trials, last.failed) if last is not worker else (0, 0)
        states.append(msgspec.structs.replace(worker, trials=worker.trials + trials, failed=worker.failed + failed))
    return (*earlier.values(), *states)


class MeasurerLike(Protocol):
    """The interface of measurers, which build, check and time schedules of one workload; a context manager.

    Attributes
    ----------
    incumbent : float or None
        Best time over the reference kernel's so far; timing stops early for clearly slower schedules. May be set.
    """

    incumbent: float | None

    def __enter__(self) -> MeasurerLike: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def serve(self, ask: Ask) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure the schedules that `ask` returns on all devices at once; yield results in any order.

        A missing result delays no other. It ends when no result is outstanding and `ask` returns None.
        """
        ...

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Return measurements of schedules that are timed in turn on one device."""
        ...

    def workers(self) -> tuple[WorkerState, ...]:
        """Return the workers that measure; empty if this machine does."""
        ...


MakeMeasurer = Callable[..., MeasurerLike]
"""A function (workload, hardware, threads=, limits=, seed=, least_samples=, and for GPUs template=, l2=, device=,
backend=) -> measurer."""


def asking(schedules: Iterable[Schedule]) -> Ask:
    """Return a function that returns the `schedules` in their order."""
    source = iter(schedules)
    return lambda: next(source, None)


def check_workload(workload: Workload, schedule: Schedule) -> Schedule:
    """Return a schedule after checking that it is of the workload of a measurer.

    Raises
    ------
    SpaceError
        The schedule is of another workload.
    """
    if schedule.workload != workload:
        raise SpaceError(
            f"the schedule is for {schedule.workload.describe()}, but this measurer measures {workload.describe()}; "
            "make another measurer"
        )
    return schedule
