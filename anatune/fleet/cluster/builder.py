"""Building kernels for requests: build processes for each kind of device and limits, threads that yield to timing."""

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
from anatune.fleet.cluster.messages import BuildRequest, BuildResult, line_of, pack
from anatune.measure.devices import measurer_of
from anatune.measure.run.build_processes import BuildJob, BuildProcesses
from anatune.measure.run.measurer import Entries

_MOST_KEPT = 2
"""The number of groups of processes that are kept, so that two kinds of sessions do not start new ones in turn."""
_PATIENCE_S = 10.0
"""The seconds after which a waiting build goes before the next timing, so that builds are not delayed forever."""

_Answer = TypeVar("_Answer")


def entries_of(hardware: CpuSpec | GpuSpec) -> Entries:
    """Return the functions that processes run for a kind of device."""
    return measurer_of(hardware).usual_entries


class Builder:
    """Builds one schedule at a time, in processes that live until `close` or until the calling thread ends.

    Parameters
    ----------
    folder : Path, optional
        The folder for temporary files, created when needed; by default that of the system.
    cores : sequence of int
        The logical CPUs to build on; empty means any.
    entries : callable
        The function from the hardware to the functions that processes run.
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

    def build(self, request: BuildRequest) -> BuildResult:
        """Build a schedule or the reference kernel; errors are part of the answer."""
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
                    return BuildResult(failure=msgspec.structs.replace(job.measurement, build_s=job.build_s))
                artifact = job.artifact
            return BuildResult(pack(artifact, request.hardware.kind), build_s=time.monotonic() - started)
        except (AnatuneError, OSError) as error:
            return BuildResult(trouble=trouble_of(error))
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
        self._processes[key] = processes = BuildProcesses(
            entries.builder,
            [self._cores],
            request.limits,
            threads=request.threads,
            environment={} if self._folder is None else {"TMPDIR": str(self._folder)},
            setup=entries.builder_setup,
        )
        return processes

    def close(self) -> None:
        """Stop the processes."""
        for processes in [*self._processes.values()]:
            processes.kill()


def trouble_of(error: Exception) -> str:
    """Return the message of an error in one line, without the path for errors of the system."""
    if isinstance(error, OSError):
        return f"its disk failed: {error.strerror or error}; free some space there"
    return line_of(error)


class _Work(NamedTuple):
    """A call that waits for a thread: the function of the thread's number, its cancellation, and when it was queued."""

    run: Callable[[int], None]
    cancel: Callable[[], object]
    since: float


class BuildSlots:
    """Threads that run submitted calls in order and live until `close`.

    Processes that the threads start end with these threads, not with the submitting thread. The object can be shared
    between threads.

    Parameters
    ----------
    cores : sequence of collections of int
        The logical CPUs on which each thread's work runs. Empty means any CPU; such a thread never waits for timing.
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
        """Queue a call; a thread will pass its own number to it."""
        future: Future[_Answer] = Future()

        def run(slot: int) -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call(slot))
                except BaseException as error:  # noqa: BLE001  the submitter gets the error
                    future.set_exception(error)

        with self._condition:
            self._waiting.append(_Work(run, future.cancel, time.monotonic()))
            self._condition.notify_all()
        return future

    @contextlib.contextmanager
    def keep_free(self, cores: Collection[int]) -> Iterator[None]:
        """Wait until nothing is built on some cores, and let no build start there within the with block.

        There may be one such block at a time.
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
        """Cancel waiting calls, and end each thread after its current call."""
        with self._condition:
            self._closed = True
            for work in self._waiting:
                work.cancel()
            self._waiting.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most `timeout_s` for each."""
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
        """Wait for a call that may run in this slot and return it, or None after `close`."""
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
