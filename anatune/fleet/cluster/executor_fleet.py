"""Building with any `concurrent.futures.Executor`, and measuring on this machine."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.fleet.cluster.builder import Builder
from anatune.fleet.cluster.fleet import Event, Kind, SeenWorker, Snapshot, TaskEnd
from anatune.fleet.cluster.measurer import ClusterMeasurer
from anatune.fleet.cluster.messages import (
    BuildRequest,
    BuildResult,
    WorkerDescription,
    code_digest,
    decode,
    encode,
    line_of,
)
from anatune.fleet.cluster.station import Device, Station
from anatune.fleet.cluster.tasks import RequestHandler
from anatune.measure.place import WorkerState
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.records.environment import environment

_BUILDS, _THIS_MACHINE = "executor", ""
"""The names of the two workers: the executor, and this machine, which is an empty text in records."""

_UNKNOWN_WORKERS = 4
"""The number of simultaneous builds of an executor that does not state its number of workers."""

_thread_data = threading.local()


def build_anywhere(request: bytes, cores: Sequence[int] = ()) -> bytes:
    """Build an encoded `BuildRequest` and return an encoded `Built`; an executor runs this.

    The build process ends with the calling thread.
    """
    builders = _thread_data.__dict__.setdefault("builders", {})
    key = tuple(cores)
    if key not in builders:
        builders[key] = Builder(cores=key)
    built: BuildResult = builders[key].build(decode(request, BuildRequest))
    return encode(built)


class ExecutorFleet:
    """The `Fleet` of an executor that builds and of this machine's device.

    Thread and process pools of this machine build on the cores on which no kernel is timed, if there are any. Other
    executors build wherever they run.

    Parameters
    ----------
    executor : Executor
        The executor; it is not shut down here.
    device : Device
        The device of this machine.
    threads : int
        The threads of kernels.
    """

    def __init__(self, executor: Executor, device: Device, threads: int) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._executor = executor
        self._station = Station(_THIS_MACHINE, device, 0, compared=False)
        self._desk = RequestHandler(self._station)
        self._measuring = ThreadPoolExecutor(1, thread_name_prefix="executor-fleet")
        self._futures: dict[int, Future[bytes]] = {}
        is_local = isinstance(executor, ThreadPoolExecutor | ProcessPoolExecutor)
        self._cores = plan_cores(threads, physical_cores()).builders if is_local else ()
        most = getattr(executor, "_max_workers", None)
        self._count = most if isinstance(most, int) and most > 0 else _UNKNOWN_WORKERS
        self._closed = False

    def look(self) -> Snapshot:
        """Return the executor and this machine."""
        builds = WorkerDescription(_BUILDS, code_digest(), environment(), self._count)
        return Snapshot(
            {
                _BUILDS: SeenWorker(builds),
                _THIS_MACHINE: SeenWorker(self._station.description, 0.0, self._station.standing()),
            }
        )

    def watch(self) -> None:
        """Do nothing, because the two workers never change."""

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Submit a build to the executor, and anything else to this machine."""

        def measure_here() -> bytes:
            return self._desk.answer(kind, request, *(self._futures[need].result() for need in needs))

        try:
            if kind == "build":
                future = self._executor.submit(build_anywhere, request, self._cores)
            else:
                future = self._measuring.submit(measure_here)
        except RuntimeError as error:  # the executor was shut down, or its processes died
            self.events.put(TaskEnd(number, error=line_of(error)))
            return
        self._futures[number] = future
        future.add_done_callback(lambda done: self._report_end(kind, number, done))

    def _report_end(self, kind: Kind, number: int, future: Future[bytes]) -> None:
        if future.cancelled() or self._closed:
            return
        error = future.exception()
        if error is not None:
            self.events.put(TaskEnd(number, error=line_of(error)))
        else:
            self.events.put(TaskEnd(number, None if kind == "build" else future.result()))

    def drop(self, number: int) -> None:
        """Cancel a task."""
        future = self._futures.pop(number, None)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """Cancel all tasks and end the processes on this machine."""
        self._closed = True
        for number in [*self._futures]:
            self.drop(number)
        self._measuring.shutdown(wait=True, cancel_futures=True)
        self._station.close()


class ExecutorMeasurer(ClusterMeasurer):
    """The `ClusterMeasurer` that measures on this machine's device the kernels that an executor builds.

    Parameters
    ----------
    executor : Executor
        The executor that builds.
    where : mapping
        The options "device" and "backend" of GPUs.
    workload, hardware, threads, more
        The same as in `ClusterMeasurer`.
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
        """Return no states, because this machine measures."""
        return ()
