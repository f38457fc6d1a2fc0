"""Builds what requests ask for: processes for each kind of device and limits, threads that stand back for kernels."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import AnatuneError, RunError
from anatune.files import scratch_folder
from anatune.fleet.cluster.messages import BuildRequest, Built, line_of, pack
from anatune.measure.devices import measurer_of
from anatune.measure.run.build_processes import BuildJob, BuildProcesses
from anatune.measure.run.measurer import Entries

_MOST_KEPT = 2
"""Processes that stay: sessions of two kinds take turns without starting new ones."""
_PATIENCE_S = 10.0
"""A build that waited so long goes before the next kernel: where every core times, sessions still get built."""

_Answer = TypeVar("_Answer")


def entries_of(hardware: CpuSpec | GpuSpec) -> Entries:
    """Return what processes run for a kind of device."""
    return measurer_of(hardware).usual_entries


class Builder:
    """Builds one schedule at a time in processes that live until `close`, or until the thread that builds ends.

    Parameters
    ----------
    folder : Path, optional
        For temporary files, made when it is needed; by default the system's.
    cores : sequence of int
        Logical CPUs; empty: any.
    entries : callable
        Hardware -> what processes run.
    """

    def __init__(
        self,
        folder: Path | None = None,
        cores: Sequence[int] = (),
        entries: Callable[[CpuSpec | GpuSpec], Entries] = entries_of,
    ) -> None:
        self._folder, self._cores, self._entries = folder, cores, entries
        self._processes: OrderedDict[object, BuildProcesses] = OrderedDict()
        self._numbers = itertools.count()

    def build(self, request: BuildRequest) -> Built:
        """Build a schedule, or the reference kernel; whatever goes wrong is in the answer."""
        started = time.monotonic()
        folder: Path | None = None
        try:
            if self._folder is None:
                folder = scratch_folder(RunError)
            else:
                folder = self._folder / str(next(self._numbers))
                folder.mkdir(parents=True)
            processes = self._processes_for(request)
            if request.schedule is None:
                processes.begin_reference(self._entries(request.hardware).reference, request.hardware, folder)
                artifact: object = processes.reference()
            else:
                job = next(iter(processes.finish([BuildJob(request.schedule, folder)])))
                if job.measurement is not None:
                    return Built(failure=msgspec.structs.replace(job.measurement, build_s=job.build_s))
                artifact = job.artifact
            return Built(pack(artifact, request.hardware.kind), build_s=time.monotonic() - started)
        except (AnatuneError, OSError) as error:
            return Built(trouble=trouble_of(error))
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _processes_for(self, request: BuildRequest) -> BuildProcesses:
        entries = self._entries(request.hardware)
        key = (entries, request.limits, request.threads)
        if key in self._processes:
            self._processes.move_to_end(key)
            return self._processes[key]
        while len(self._processes) >= _MOST_KEPT:
            self._processes.popitem(last=False)[1].kill()
        self._processes[key] = made = BuildProcesses(
            entries.builder,
            [self._cores],
            request.limits,
            threads=request.threads,
            environment={} if self._folder is None else {"TMPDIR": str(self._folder)},
            setup=entries.builder_setup,
        )
        return made

    def close(self) -> None:
        """End the processes."""
        for processes in [*self._processes.values()]:
            processes.kill()


def trouble_of(error: Exception) -> str:
    """Return what an error says, in one line; of the system's, without the path."""
    if isinstance(error, OSError):
        return f"its disk: {error.strerror or error}; free some space there"
    return line_of(error)


class _Work(NamedTuple):
    """What waits for a thread: a call with the thread's number, what takes it back, and since when it waits."""

    run: Callable[[int], None]
    cancel: Callable[[], object]
    since: float


class BuildSlots:
    """A few threads that run what is submitted, first come, first served; they live until `close`.

    Processes that they start end with them, not with the thread that submits. Safe to share between threads.

    Parameters
    ----------
    cores : sequence of collections of int
        For each thread the logical CPUs that its work runs on; empty: anywhere, and nothing is in its way.
    """

    def __init__(self, cores: Sequence[Collection[int]]) -> None:
        self._cores = [frozenset(place) for place in cores]
        self._condition = threading.Condition()
        self._waiting: deque[_Work] = deque()
        self._busy: set[int] = set()
        self._wanted: list[frozenset[int]] = []
        self._timed: frozenset[int] = frozenset()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(slot,), name=f"build-{slot}", daemon=True)
            for slot in range(len(self._cores))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[int], _Answer]) -> Future[_Answer]:
        """Have a thread call `call` with its own number."""
        future: Future[_Answer] = Future()

        def run(slot: int) -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(slot))
                except BaseException as error:  # noqa: BLE001  it is whose work it is that hears of it
                    future.set_exception(error)

        with self._condition:
            self._waiting.append(_Work(run, future.cancel, time.monotonic()))
            self._condition.notify_all()
        return future

    @contextlib.contextmanager
    def apart(self, cores: Collection[int]) -> Iterator[None]:
        """Return when nothing is built on some cores, and let nothing begin there until the block ends.

        One block at a time.
        """
        wanted = frozenset(cores)
        with self._condition:
            self._wanted.append(wanted)
            self._condition.wait_for(lambda: not any(self._cores[slot] & wanted for slot in self._busy))
            self._wanted.remove(wanted)
            self._timed = wanted
        try:
            yield
        finally:
            with self._condition:
                self._timed = frozenset()
                self._condition.notify_all()

    def close(self) -> None:
        """End the threads when what they are at is done; what waits is cancelled."""
        with self._condition:
            self._closed = True
            for work in self._waiting:
                work.cancel()
            self._waiting.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most so long each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _serve(self, slot: int) -> None:
        while (work := self._next(slot)) is not None:
            work.run(slot)
            del work
            with self._condition:
                self._busy.discard(slot)
                self._condition.notify_all()

    def _next(self, slot: int) -> _Work | None:
        """Wait for work that may begin here, and return it; None at the end."""
        with self._condition:
            while not self._closed:
                pause: float | None = None
                if self._waiting and not self._cores[slot] & self._timed:
                    pause = self._waiting[0].since + _PATIENCE_S - time.monotonic()
                    if pause <= 0 or not any(self._cores[slot] & wanted for wanted in self._wanted):
                        self._busy.add(slot)
                        return self._waiting.popleft()
                self._condition.wait(pause)
            return None
