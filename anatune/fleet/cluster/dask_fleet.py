"""A session's side of a Dask cluster: tasks on workers that it names, and who is there.

Dask carries what travels, keeps what was built where it was built, moves it to who measures, has tasks wait for the
worker's slot, and takes back what belongs to a session that is gone. Who gets which task is decided here, so that an
answer can be held against the worker that gave it.
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
from anatune.fleet.cluster.fleet import Done, Event, Kind, Lost, Seen, Snapshot
from anatune.fleet.cluster.messages import Standing, WorkerDescription, line_of
from anatune.fleet.cluster.security import Identity

if TYPE_CHECKING:
    from distributed import Client

WORD = "anatune"
"""Under which a worker's description and standing are found with the scheduler."""
BUILD, MEASURE, LEASE = "build", "measure", "anatune-lease"
"""Resources of workers; how keys of leases begin."""

_Untyped: TypeAlias = Any
"""A client or a future of Dask's, whose methods have no types."""
_LOOK_S = 1.0
"""Between two looks at who is there."""
_SCHEDULER_S = 30.0
"""A scheduler that does not answer for so long is gone."""
_VANISHED = {"lost dependencies", "already forgotten"}
"""Why the scheduler itself cancels a task: what it needs went with a worker that left."""


class DaskFleet:
    """A `Fleet` through a client.

    Parameters
    ----------
    client : distributed.Client
        Of the session; not closed here.
    session : str
        Name of the session.
    """

    def __init__(self, client: Client, session: str) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._client: _Untyped = client
        self._session = session
        self._futures: dict[int, _Untyped] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._read = _Reader()

    @property
    def _address(self) -> str:
        return str(self._client.scheduler.address) if self._client.scheduler is not None else "the cluster"

    def look(self) -> Snapshot:
        """Return who is there now."""
        try:
            snapshot: Snapshot = self._client.sync(self._look)
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:
            raise DeviceError(f"{self._address}: the scheduler does not answer ({line_of(error)})") from None
        return snapshot

    async def _look(self) -> Snapshot:
        asked = self._client.scheduler.identity(n_workers=-1)
        return self._read(await asyncio.wait_for(asked, _SCHEDULER_S))

    def watch(self) -> None:
        """Put a snapshot into `events` now and then, on the client's own loop."""
        self._client.loop.add_callback(self._watch)

    async def _watch(self) -> None:
        while not self._closed:
            try:
                self.events.put(await self._look())
            except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:  # a closed client has none
                if not self._closed:
                    self.events.put(Lost(f"{self._address}: the scheduler is gone ({line_of(error)})"))
                return
            await asyncio.sleep(_LOOK_S)

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Have a worker answer a request."""
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
        except Exception as error:  # noqa: BLE001  Dask says in many ways that the connection is gone
            self.events.put(Lost(f"{self._address}: {line_of(error)}"))
            return
        with self._lock:
            self._futures[number] = future
        future.add_done_callback(lambda done: self._ended(number, done, kind != "build"))

    def _ended(self, number: int, future: _Untyped, fetched: bool) -> None:
        """Tell of a task that ended; called in a thread of Dask's."""
        with self._lock:
            if number not in self._futures or self._closed:
                return
        if future.status == "finished":
            if fetched:
                self._client.loop.add_callback(self._fetch, number, future.key)
            else:
                self.events.put(Done(number))
        elif future.status == "error":  # the functions raise nothing: workers died, or are of another version
            self.events.put(Done(number, error=f"Dask: {line_of(future.exception(timeout=_SCHEDULER_S))}"))
        elif future.status == "cancelled" and _why_cancelled(future) not in _VANISHED:
            self.events.put(Lost(f"{self._address}: the connection to the scheduler was lost"))
        else:
            self._client.loop.add_callback(self._vanished, number)

    async def _vanished(self, number: int, why: str = "its answer is lost") -> None:
        """Tell that there is nothing to fetch: most often the worker that held it, or what it needs, has just left.

        Who is there is told first, so that nobody is blamed for what left with another.
        """
        try:
            self.events.put(await self._look())
        except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:
            self.events.put(Lost(f"{self._address}: the scheduler is gone ({line_of(error)})"))
        else:
            self.events.put(Done(number, error=why))

    async def _fetch(self, number: int, key: str) -> None:
        """Fetch one answer; a worker that stalls now stalls no other, as it would in a common request."""
        try:
            reply = await asyncio.wait_for(self._client.scheduler.gather(keys=[key]), _SCHEDULER_S)
        except (OSError, TimeoutError, asyncio.TimeoutError, AttributeError) as error:
            await self._vanished(number, f"its answer cannot be fetched: {line_of(error)}")
            return
        if reply.get("status") == "OK" and key in reply.get("data", {}):
            self.events.put(Done(number, reply["data"][key]))
        else:
            await self._vanished(number)

    def drop(self, number: int) -> None:
        """Take back what was submitted, and let go what it left."""
        with self._lock:
            future = self._futures.pop(number, None)
        if future is not None:
            future.release()

    def close(self) -> None:
        """Take everything back."""
        self._closed = True
        with self._lock:
            futures = [*self._futures.values()]
            self._futures.clear()
        for future in futures:
            future.release()


class _Reader:
    """Reads what the scheduler says of its workers; descriptions, which do not change, once each.

    How long a worker is silent is told by this process's clock: since the scheduler's last word of it changed.
    """

    def __init__(self) -> None:
        self._known: dict[str, WorkerDescription | None] = {}
        self._heard: dict[str, tuple[object, float]] = {}

    def __call__(self, identity: Identity) -> Snapshot:
        now, heard, seen = time.monotonic(), {}, {}
        for address, told in identity["workers"].items():
            text, last = str(told.get(WORD, "")), told.get("last_seen")
            if text not in self._known:
                self._known[text] = description_in(told)
            before = self._heard.get(address)
            heard[address] = before if before is not None and before[0] == last else (last, now)
            seen[address] = Seen(self._known[text], now - heard[address][1], standing_in(told))
        self._heard = heard
        return Snapshot(seen)


def description_in(told: Mapping[str, object]) -> WorkerDescription | None:
    """Return what a worker says of itself in the scheduler's ``identity()``; None if it is no anatune worker."""
    try:
        return from_json(str(told.get(WORD, "")), WorkerDescription)
    except (msgspec.DecodeError, AnatuneError):
        return None


def standing_in(told: Mapping[str, object]) -> Standing:
    """Return what a worker is at, likewise."""
    metrics = told.get("metrics")
    try:
        return from_json(str(metrics.get(WORD, "") if isinstance(metrics, Mapping) else ""), Standing)
    except msgspec.DecodeError:
        return Standing()


def _why_cancelled(future: _Untyped) -> str:
    """Return the reason that Dask gives for a cancelled task, "" if it gives none."""
    try:
        future.result(timeout=_SCHEDULER_S)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  of this package or that, as the version has it
        return str(getattr(error, "reason", "") or "")
    return ""
