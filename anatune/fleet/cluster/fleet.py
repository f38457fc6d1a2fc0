"""The interface between a session and its workers; `dask_fleet` and `executor_fleet` implement it."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from anatune.fleet.cluster.messages import WorkerDescription, WorkerStanding

Kind = Literal["build", "lease", "measure"]
"""The kinds of tasks: build a kernel, prepare a session on a worker (a lease), measure a kernel."""


class SeenWorker(NamedTuple):
    """A connected worker.

    Attributes
    ----------
    description : WorkerDescription or None
        The description, None if it cannot be read.
    silent_s : float
        The seconds since its last message.
    standing : WorkerStanding
        Its work at that time.
    """

    description: WorkerDescription | None
    silent_s: float = 0.0
    standing: WorkerStanding = WorkerStanding()


class Snapshot(NamedTuple):
    """All connected workers by address."""

    workers: Mapping[str, SeenWorker]


class TaskEnd(NamedTuple):
    """The end of a task.

    Attributes
    ----------
    number : int
        The number of the task.
    content : bytes or None
        The answer; None for a build, whose result stays on its worker.
    error : str
        The reason why there is no answer, such as a lost connection; not an error of the task itself.
    """

    number: int
    content: object = None
    error: str = ""


class FleetLoss(NamedTuple):
    """The loss of the connection to all workers."""

    why: str


Event = Snapshot | TaskEnd | FleetLoss


class Fleet(Protocol):
    """An interface that submits tasks to workers by address and reports their ends; each task has a unique number."""

    events: queue.SimpleQueue[Event]

    def look(self) -> Snapshot:
        """Wait for a snapshot of the connected workers and return it.

        Raises
        ------
        DeviceError
            The scheduler does not answer.
        """
        ...

    def watch(self) -> None:
        """Put a snapshot into `events` at regular intervals."""
        ...

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Submit a request (`tasks.RequestHandler`) to a worker, with the results of the tasks `needs` as arguments.

        A lease needs the build of the reference kernel. A measurement needs the worker's lease and the builds. A result
        stays on its worker until it is dropped.
        """
        ...

    def drop(self, number: int) -> None:
        """Cancel a task or release its result; unknown numbers are ignored."""
        ...

    def close(self) -> None:
        """Cancel all tasks and release all results."""
        ...
