"""What a session needs of whoever measures for it: this machine, a cluster, boards."""

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
"""Returns the next schedule; None: nothing for now, ask again when the next answer was taken."""


class WorkerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device elsewhere that measures for a session. Immutable; JSON both ways.

    Attributes
    ----------
    name : str
        As measurements have it (`Measurement.worker`).
    device : str
        What it is, in words.
    state : str
        "ready"; "lost": it is gone; "refused": not the session's device or versions; "quarantined": it was accepted,
        and then gave answers that cannot be relied on, or none.
    why : str
        In one line; empty for "ready".
    trials, failed : int
        Answers in this session; those without a time.
    environment : Environment, optional
        Of its process, as records have it.
    measures : bool
        Whether it has a device; those that have none only build.
    """

    name: str
    device: str = ""
    state: Literal["ready", "lost", "refused", "quarantined"] = "ready"
    why: str = ""
    trials: int = 0
    failed: int = 0
    environment: Environment | None = None
    measures: bool = True


def added_up(before: Sequence[WorkerState], now: Sequence[WorkerState]) -> tuple[WorkerState, ...]:
    """Return workers as they are now, with the trials and failures of earlier sessions added to those of this one.

    Parameters
    ----------
    before, now : sequence of WorkerState
        Of all earlier sessions; of this one. Those that are not there any more stay as they were.
    """
    earlier = {worker.name: worker for worker in before}
    states = []
    for worker in now:
        last = earlier.pop(worker.name, worker)
        trials, failed = (last.trials, last.failed) if last is not worker else (0, 0)
        states.append(msgspec.structs.replace(worker, trials=worker.trials + trials, failed=worker.failed + failed))
    return (*earlier.values(), *states)


class MeasurerLike(Protocol):
    """Builds, checks and times schedules of one workload; a context manager.

    Attributes
    ----------
    incumbent : float or None
        Best time over the reference kernel's so far: candidates that are clearly slower stop early. May be set.
    """

    incumbent: float | None

    def __enter__(self) -> MeasurerLike: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def serve(self, ask: Ask) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure what `ask` returns, as many at once as there are devices; yield answers in any order.

        A missing answer stalls no other. Ends when nothing is outstanding and `ask` returns None.
        """
        ...

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Return measurements of contenders that take turns on one device."""
        ...

    def workers(self) -> tuple[WorkerState, ...]:
        """Return who measures elsewhere; empty where this machine does."""
        ...


MakeMeasurer = Callable[..., MeasurerLike]
"""(workload, hardware, threads=, limits=, seed=, least_samples=, and for GPUs template=, l2=, device=, backend=) ->
measurer."""


def asking(schedules: Iterable[Schedule]) -> Ask:
    """Return what asks for each of `schedules` in their order."""
    source = iter(schedules)
    return lambda: next(source, None)


def checked_of(workload: Workload, schedule: Schedule) -> Schedule:
    """Return a schedule of the workload that a measurer serves.

    Raises
    ------
    SpaceError
        It is one of another.
    """
    if schedule.workload != workload:
        raise SpaceError(
            f"schedule is for {schedule.workload.describe()}, expected {workload.describe()}: "
            "a measurer serves one workload"
        )
    return schedule
