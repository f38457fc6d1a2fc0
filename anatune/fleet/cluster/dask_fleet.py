"""The session's side of a Dask cluster: it submits tasks to workers that it names, and lists the workers.

Dask transports data, keeps a built kernel on the worker that built it, moves it to the worker that measures it, makes
tasks wait for a free slot, and cancels the tasks of a session that is gone. The session decides which worker gets which
task, so that it knows which worker is responsible for an answer.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from anatune.decoding import from_json
from anatune.errors import AnatuneError, DeviceError
from anatune.fleet.cluster import tasks
from anatune.fleet.cluster.fleet import Event, FleetLoss, Kind, SeenWorker, Snapshot, TaskEnd
from anatune.fleet.cluster.messages import WorkerDescription, WorkerStanding, line_of
from anatune.fleet.cluster.security import Identity

if TYPE_CHECKING:
    from distributed import Client

WORD = "anatune"
"""The key of a worker's description and standing in the scheduler's data."""
BUILD, MEASURE, LEASE = "build", "measure", "anatune-lease"
"""The resources of workers, and the prefix of the keys of leases."""

_Untyped: TypeAlias = Any
"""A client or future of Dask, whose methods have no types."""
_LOOK_S = 1.0
"""The seconds between two looks at the workers."""
_SCHEDULER_S = 30.0
"""The seconds after which a scheduler that does not answer counts as gone."""
_VANISHED = {"lost dependencies", "already forgotten"}
"""The reasons of the scheduler for cancelling a task whose inputs were on a worker that left."""


class DaskFleet:
    """The `Fleet` of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        The session's client; it is not closed here.
    session : str
        The name of the session.
    """

    def __init__(self, client: Client, session: str) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._client: _Untyped = client
        self._session = session
        self._futures: dict[int, _Untyped] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._read = _SnapshotReader()

    @property
    def _address(self) -> str:
        return str(self._client.scheduler.address) if self._client.scheduler is not None else "the cluster"

    def look(self) -> Snapshot:
        """Return the workers that are connected now."""
        try:
            snapshot: Snapshot = self._client.sync(self._look)
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:
            raise DeviceError(f"{self._address}: the scheduler does not answer ({line_of(error)})") from None
        return snapshot

    async def _look(self) -> Snapshot:
        identity = self._client.scheduler.identity(n_workers=-1)
        return self._read(await asyncio.wait_for(identity, _SCHEDULER_S))

    def watch(self) -> None:
        """Put a snapshot into `events` at regular intervals, on the client's event loop."""
        self._client.loop.add_callback(self._watch)

    async def _watch(self) -> None:
        while not self._closed:
            try:
                self.events.put(await self._look())
            except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:  # closed client
                if not self._closed:
                    self.events.put(FleetLoss(f"{self._address}: the scheduler is gone ({line_of(error)})"))
                return
            await asyncio.sleep(_LOOK_S)

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Submit a request to a worker."""
        try:
            future = self._client.submit(
                tasks.answer,
                kind,
                request,
                *(self._futures[need] for need in needs),
                key=f"anatune-{kind}-{self._session}-{number}",
                workers=[worker],
                allow_other_workers=False,
                resources={BUILD if kind == "build" else MEASURE: 1},
                retries=0,
                pure=False,
            )
        except Exception as error:  # noqa: BLE001  Dask raises many kinds of errors for a lost connection
            self.events.put(FleetLoss(f"{self._address}: {line_of(error)}"))
            return
        with self._lock:
            self._futures[number] = future
        future.add_done_callback(lambda done: self._report_end(number, done, kind != "build"))

    def _report_end(self, number: int, future: _Untyped, fetched: bool) -> None:
        """Report a task that ended; Dask calls this in one of its threads."""
        with self._lock:
            if number not in self._futures or self._closed:
                return
        if future.status == "finished":
            if fetched:
                self._client.loop.add_callback(self._fetch, number, future.key)
            else:
                self.events.put(TaskEnd(number))
        elif future.status == "error":  # our functions raise nothing: the worker died, or has another version
            self.events.put(TaskEnd(number, error=f"Dask: {line_of(future.exception(timeout=_SCHEDULER_S))}"))
        elif future.status == "cancelled" and _cancel_reason(future) not in _VANISHED:
            self.events.put(FleetLoss(f"{self._address}: the connection to the scheduler was lost"))
        else:
            self._client.loop.add_callback(self._report_vanished, number)

    async def _report_vanished(self, number: int, why: str = "its answer is lost") -> None:
        """Report a task without an answer: usually the worker that had it or its inputs has just left.

        A snapshot of the workers is reported first, so that a task is not blamed for a worker that left.
        """
        try:
            self.events.put(await self._look())
        except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:
            self.events.put(FleetLoss(f"{self._address}: the scheduler is gone ({line_of(error)})"))
        else:
            self.events.put(TaskEnd(number, error=why))

    async def _fetch(self, number: int, key: str) -> None:
        """Fetch one answer in a separate request, so that a stalled worker does not delay the answers of others."""
        try:
            reply = await asyncio.wait_for(self._client.scheduler.gather(keys=[key]), _SCHEDULER_S)
        except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:
            await self._report_vanished(number, f"its answer cannot be fetched: {line_of(error)}")
            return
        if reply.get("status") == "OK" and key in reply.get("data", {}):
            self.events.put(TaskEnd(number, reply["data"][key]))
        else:
            await self._report_vanished(number)

    def drop(self, number: int) -> None:
        """Cancel a task, or release its result."""
        with self._lock:
            future = self._futures.pop(number, None)
        if future is not None:
            future.release()

    def close(self) -> None:
        """Cancel all tasks and release all results."""
        self._closed = True
        with self._lock:
            futures = [*self._futures.values()]
            self._futures.clear()
        for future in futures:
            future.release()


class _SnapshotReader:
    """Reads the scheduler's data about its workers, and parses each description once.

    The time that a worker is silent is measured with this process's clock, since the scheduler's data last changed.
    """

    def __init__(self) -> None:
        self._descriptions: dict[str, WorkerDescription | None] = {}
        self._heard: dict[str, tuple[object, float]] = {}

    def __call__(self, identity: Identity) -> Snapshot:
        now, heard, seen = time.monotonic(), {}, {}
        for address, worker_data in identity["workers"].items():
            text, last = str(worker_data.get(WORD, "")), worker_data.get("last_seen")
            if text not in self._descriptions:
                self._descriptions[text] = read_worker_description(worker_data)
            last_heard = self._heard.get(address)
            heard[address] = last_heard if last_heard is not None and last_heard[0] == last else (last, now)
            seen[address] = SeenWorker(self._descriptions[text], now - heard[address][1], read_standing(worker_data))
        self._heard = heard
        return Snapshot(seen)


def read_worker_description(worker_data: Mapping[str, object]) -> WorkerDescription | None:
    """Read a worker's description in the scheduler's ``identity()``; None if it is not an anatune worker."""
    try:
        return from_json(str(worker_data.get(WORD, "")), WorkerDescription)
    except (msgspec.DecodeError, AnatuneError):
        return None


def read_standing(worker_data: Mapping[str, object]) -> WorkerStanding:
    """Read a worker's standing in the scheduler's ``identity()``."""
    metrics = worker_data.get("metrics")
    try:
        return from_json(str(metrics.get(WORD, "") if isinstance(metrics, Mapping) else ""), WorkerStanding)
    except msgspec.DecodeError:
        return WorkerStanding()


def _cancel_reason(future: _Untyped) -> str:
    """Return Dask's reason for cancelling a task, or an empty text."""
    try:
        future.result(timeout=_SCHEDULER_S)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the error class depends on Dask's version
        return str(getattr(error, "reason", "") or "")
    return ""
