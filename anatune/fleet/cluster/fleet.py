"""What a session needs of the machinery between it and its workers: `dask_fleet`, `executor_fleet`."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from anatune.fleet.cluster.messages import Standing, WorkerDescription

Kind = Literal["build", "lease", "measure"]
"""What workers are asked for: to build a kernel, to get ready for a session, to measure what was built."""


class Seen(NamedTuple):
    """A worker that is there.

    Attributes
    ----------
    description : WorkerDescription or None
        None: what it says of itself cannot be read.
    silent_s : float
        Since its last sign of life.
    standing : Standing
        What it was at then.
    """

    description: WorkerDescription | None
    silent_s: float = 0.0
    standing: Standing = Standing()


class Snapshot(NamedTuple):
    """All workers that are there, by address."""

    workers: Mapping[str, Seen]


class Done(NamedTuple):
    """Something that was submitted ended.

    Attributes
    ----------
    number : int
        Which.
    content : bytes or None
        The answer; None of builds, which stay where they are.
    error : str
        Why there is no answer: it failed on the way, not by its own doing.
    """

    number: int
    content: object = None
    error: str = ""


class Lost(NamedTuple):
    """The machinery itself is gone."""

    why: str


Event = Snapshot | Done | Lost


class Fleet(Protocol):
    """Submits to workers by address and tells what ended. What is submitted has a number, never used twice."""

    events: queue.SimpleQueue[Event]

    def look(self) -> Snapshot:
        """Return who is there now; waits for it.

        Raises
        ------
        DeviceError
            Nobody answers.
        """
        ...

    def watch(self) -> None:
        """Put a snapshot into `events` now and then."""
        ...

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Have a worker answer a request (`tasks.Desk`) with the answers to the numbers that it needs.

        A lease needs the build of the reference kernel; what is measured, the worker's lease and the builds. An answer
        stays with its worker until it is dropped.
        """
        ...

    def drop(self, number: int) -> None:
        """Take back what was submitted, and let go what it left; it need not be known."""
        ...

    def close(self) -> None:
        """Take everything back."""
        ...
