"""What a session needs of the machinery between it and its workers; `dask_fleet` is the one that is used."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from anatune.measure.cluster.description import WorkerDescription
from anatune.measure.cluster.messages import Standing

__all__ = ["Done", "Event", "Fleet", "Lost", "Seen", "Snapshot"]


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
        The answer, of those that are fetched.
    error : str
        Why there is none: it failed on the way, not by its own doing.
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

    def build(self, worker: str, number: int, request: bytes) -> None:
        """Have a worker build; what it built stays there until it is needed or dropped. Its `Done` has no content."""
        ...

    def lease(self, worker: str, number: int, setting: bytes, reference: int) -> None:
        """Have a worker get ready for the session with the kernel built as `reference`; fetched."""
        ...

    def measure(self, worker: str, number: int, request: bytes, built: int, leased: int) -> None:
        """Have a worker measure what was built as `built`; fetched."""
        ...

    def compare(self, worker: str, number: int, request: bytes, built: Sequence[int], leased: int) -> None:
        """Have a worker compare; fetched."""
        ...

    def drop(self, number: int) -> None:
        """Take back what was submitted, and let go what it left; it need not be known."""
        ...

    def close(self) -> None:
        """Take everything back."""
        ...
