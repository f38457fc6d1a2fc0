"""Builds through any `concurrent.futures.Executor`, measurements on this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.fleet.cluster.builder import Builder
from anatune.fleet.cluster.fleet import Done, Event, Kind, Seen, Snapshot
from anatune.fleet.cluster.measurer import ClusterMeasurer
from anatune.fleet.cluster.messages import (
    BuildRequest,
    Built,
    WorkerDescription,
    code_digest,
    decode,
    encode,
    line_of,
)
from anatune.fleet.cluster.station import Device, Station
from anatune.fleet.cluster.tasks import Desk
from anatune.measure.place import WorkerState
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.records.environment import environment

_BUILDS, _HERE = "executor", ""
"""The two workers: who builds, and this machine, which records name by an empty text."""

_UNKNOWN_WORKERS = 4
"""How many builds an executor is given at once that does not say how many it takes."""

_own = threading.local()


def build_anywhere(request: bytes, cores: Sequence[int] = ()) -> bytes:
    """Build what a `BuildRequest` asks for, in a process that ends with the thread that calls; returns a `Built`.

    What an executor runs, wherever it does.
    """
    builders = _own.__dict__.setdefault("builders", {})
    key = tuple(cores)
    if key not in builders:
        builders[key] = Builder(cores=key)
    built: Built = builders[key].build(decode(request, BuildRequest))
    return encode(built)


class ExecutorFleet:
    """A `Fleet` of two: an executor that builds, and this machine's device.

    Executors of threads and processes of this machine build on the cores that no kernel is timed on, if there are any;
    others build wherever they are.

    Parameters
    ----------
    executor : Executor
        Not shut down here.
    device : Device
        Of this machine.
    threads : int
        That kernels run with.
    """

    def __init__(self, executor: Executor, device: Device, threads: int) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._executor = executor
        self._station = Station(_HERE, device, 0, compared=False)
        self._desk = Desk(self._station)
        self._measuring = ThreadPoolExecutor(1, thread_name_prefix="executor-fleet")
        self._futures: dict[int, Future[bytes]] = {}
        is_local = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)
        self._cores = plan_cores(threads, physical_cores()).builders if is_local else ()
        most = getattr(executor, "_max_workers", None)
        self._count = most if isinstance(most, int) and most > 0 else _UNKNOWN_WORKERS
        self._closed = False

    def look(self) -> Snapshot:
        """Return both."""
        builds = WorkerDescription(_BUILDS, code_digest(), environment(), self._count)
        return Snapshot({_BUILDS: Seen(builds), _HERE: Seen(self._station.description, 0.0, self._station.standing())})

    def watch(self) -> None:
        """Do nothing: neither of the two comes or goes."""

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Have the executor build; get ready and measure here."""

        def here() -> bytes:
            return self._desk.answer(kind, request, *(self._futures[need].result() for need in needs))

        try:
            if kind == "build":
                future = self._executor.submit(build_anywhere, request, self._cores)
            else:
                future = self._measuring.submit(here)
        except RuntimeError as error:  # the executor was shut down, or its processes died
            self.events.put(Done(number, error=line_of(error)))
            return
        self._futures[number] = future
        future.add_done_callback(lambda done: self._ended(kind, number, done))

    def _ended(self, kind: Kind, number: int, future: Future[bytes]) -> None:
        if future.cancelled() or self._closed:
            return
        error = future.exception()
        if error is not None:
            self.events.put(Done(number, error=line_of(error)))
        else:
            self.events.put(Done(number, None if kind == "build" else future.result()))

    def drop(self, number: int) -> None:
        """Take back what was submitted."""
        future = self._futures.pop(number, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Take everything back; end the processes here."""
        self._closed = True
        for number in [*self._futures]:
            self.drop(number)
        self._measuring.shutdown(wait=True, cancel_futures=True)
        self._station.close()


class ExecutorMeasurer(ClusterMeasurer):
    """A `ClusterMeasurer` whose only device is this machine's; what an executor builds is measured on it.

    Parameters
    ----------
    executor : Executor
    where : mapping
        GPUs: "device", "backend".
    workload, hardware, threads, more
        As for `ClusterMeasurer`.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        executor: Executor,
        where: Mapping[str, object],
        threads: int = 1,
        **more: Any,
    ) -> None:
        def connect(session: str) -> ExecutorFleet:
            return ExecutorFleet(executor, Device(hardware, where), threads)

        super().__init__(workload, hardware, connect=connect, threads=threads, **more)

    def workers(self) -> tuple[WorkerState, ...]:
        """Return nothing: this machine measures."""
        return ()
