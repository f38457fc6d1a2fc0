"""Builds through any `concurrent.futures.Executor`, measurements on this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.measure.cluster.builder import Builder
from anatune.measure.cluster.description import WorkerDescription, code_digest
from anatune.measure.cluster.fleet import Done, Event, Seen, Snapshot
from anatune.measure.cluster.measurer import ClusterMeasurer
from anatune.measure.cluster.messages import BuildRequest, Built, decode, encode
from anatune.measure.cluster.station import Device, LocalStation
from anatune.measure.cluster.tasks import Desk
from anatune.measure.place import WorkerState
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.records.environment import environment

__all__ = ["ExecutorFleet", "ExecutorMeasurer", "build_anywhere"]

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
        self._station = LocalStation(_HERE, device, 0, compared=False)
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

    def build(self, worker: str, number: int, request: bytes) -> None:
        """Have the executor build."""
        try:
            future = self._executor.submit(build_anywhere, request, self._cores)
        except RuntimeError as error:  # it was shut down, or its processes died
            self.events.put(Done(number, error=_line(error)))
            return
        self._note(number, future, fetched=False)

    def lease(self, worker: str, number: int, setting: bytes, reference: int) -> None:
        """Get ready here."""
        self._here(number, lambda: self._desk.lease(setting, self._value(reference)))

    def measure(self, worker: str, number: int, request: bytes, built: int, leased: int) -> None:
        """Measure here."""
        self._here(number, lambda: self._desk.measure(request, self._value(built), self._value(leased)))

    def compare(self, worker: str, number: int, request: bytes, built: Sequence[int], leased: int) -> None:
        """Compare here."""
        self._here(
            number, lambda: self._desk.compare(request, [self._value(one) for one in built], self._value(leased))
        )

    def _value(self, number: int) -> bytes:
        return self._futures[number].result()

    def _here(self, number: int, call: Callable[[], bytes]) -> None:
        self._note(number, self._measuring.submit(call), fetched=True)

    def _note(self, number: int, future: Future[bytes], *, fetched: bool) -> None:
        self._futures[number] = future

        def ended(done: Future[bytes]) -> None:
            if done.cancelled() or self._closed:
                return
            error = done.exception()
            if error is not None:
                self.events.put(Done(number, error=_line(error)))
            else:
                self.events.put(Done(number, done.result() if fetched else None))

        future.add_done_callback(ended)

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
        workload: Any,
        hardware: CpuSpec | GpuSpec,
        *,
        executor: Executor,
        where: Mapping[str, Any],
        threads: int = 1,
        **more: Any,
    ) -> None:
        def connect(session: str) -> ExecutorFleet:
            return ExecutorFleet(executor, Device(hardware, where), threads)

        super().__init__(workload, hardware, connect=connect, threads=threads, **more)

    def workers(self) -> tuple[WorkerState, ...]:
        """Return nothing: this machine measures."""
        return ()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
