"""Processes that build schedules, with limits on time and memory, and the functions that they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from anatune.codegen.compat import import_tvm
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.errors import MissingDependencyError, RunError
from anatune.measure.run.process import Worker, refusal, wait_for
from anatune.named import resolve

_Job = TypeVar("_Job")

_GIB = 1 << 30
_HERE = "anatune.measure.run.build_processes"
SET_UP = f"{_HERE}:set_up"
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

_KEPT_BUILDS = 8
INVALID_ERRORS = ("SpaceError", "WorkloadError", "SpecError", "UnknownNameError")
"""Errors of a build that mean that the schedule is invalid."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the time and memory of one trial.

    Attributes
    ----------
    build_s : float
        Seconds for building.
    run_s : float
        Seconds for loading, checking and timing.
    memory_bytes : int
        Memory of a builder; memory of the runner besides the tensors of the workload.
    start_s : float
        Seconds for starting and preparing a process (importing TVM takes a second, or several from a cold disk).
    """

    build_s: float = 20.0
    run_s: float = 10.0
    memory_bytes: int = 4 * _GIB
    start_s: float = 60.0


class BuildJob:
    """A schedule that is being built and measured: its artifact, or a measurement with the reason why there is none."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self.folder = folder
        self.worker: Worker | None = None
        self.artifact: object | None = None
        self.measurement: Measurement | None = None
        self.build_s = 0.0
        self.repeated = False

    @property
    def settled(self) -> bool:
        """True if its build has ended, successfully or not."""
        return self.artifact is not None or self.measurement is not None

    def fail(self, outcome: Outcome, message: str, run_s: float = 0.0) -> None:
        """End the job with an outcome other than OK."""
        self.measurement = Measurement(outcome, message, build_s=self.build_s, run_s=run_s)


class KeptBuilds(Generic[_Job]):
    """The builds of the best schedules, by key, so that the final comparison need not build them again.

    Parameters
    ----------
    drop : callable
        Deletes the build of a job.
    """

    def __init__(self, drop: Callable[[_Job], None]) -> None:
        self._drop = drop
        self._kept: dict[str, tuple[float, _Job]] = {}

    def get(self, key: str) -> _Job | None:
        """Return the kept job of a schedule; None if there is none."""
        return self._kept[key][1] if key in self._kept else None

    def jobs(self) -> list[_Job]:
        """Return the jobs whose builds are kept."""
        return [job for _, job in self._kept.values()]

    def settle(self, key: str, job: _Job, relative: float | None) -> None:
        """Keep the build of an ended job if it is one of the best; delete that of the worst one.

        Parameters
        ----------
        relative : float or None
            Its time over the reference kernel's; None if it has no time.
        """
        out: _Job | None = job
        if relative is not None:
            out = self._kept.pop(key, (0.0, None))[1]
            self._kept[key] = relative, job
            if len(self._kept) > _KEPT_BUILDS:
                out = self._kept.pop(max(self._kept, key=lambda key: self._kept[key][0]))[1]
        if out is not None:
            self._drop(out)

    def lose(self, key: str) -> None:
        """Delete the build of a schedule."""
        self._drop(self._kept.pop(key)[1])

    def clear(self) -> None:
        """Forget all jobs without deleting their builds."""
        self._kept.clear()


class BuildProcesses:
    """A few processes that build schedules; each lives until the end, and is replaced if it dies.

    Parameters
    ----------
    entry : str
        ``module:function`` that builds a schedule, (schedule, folder, threads=) -> artifact.
    places : sequence of sequences of int
        Cores of each process; all cores if empty.
    limits
        Limits of one build.
    guests : sequence of sequences of int
        Cores of further processes, which run only while nothing else needs these cores, see `yield_cores`.
    threads : int
        Threads that the built kernels run with.
    environment : mapping
        Environment variables, added to those of this process.
    setup : str
        ``module:function`` that each process calls first.
    """

    def __init__(
        self,
        entry: str,
        places: Sequence[Sequence[int]],
        limits: Limits,
        *,
        guests: Sequence[Sequence[int]] = (),
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
        setup: str = SET_UP,
    ) -> None:
        self._entry, self._limits, self._threads = entry, limits, threads
        self.workers = [
            Worker(
                "builder",
                memory_bytes=limits.memory_bytes,
                cores=place,
                environment={**limit_to_one_thread(environment), "TVM_NUM_THREADS": "1"},
                setup=(setup, {}),
                setup_s=limits.start_s,
            )
            for place in (*places, *guests)
        ]
        self._own, self._guests = self.workers[: len(places)], self.workers[len(places) :]
        self._yielding = False

    def start(self) -> None:
        """Start all processes except guests, which start with the first build; return at once."""
        for worker in self._own:
            worker.start()

    def yield_cores(self, others_run: bool) -> None:
        """Pause the guests while others need their cores, and resume them."""
        self._yielding = others_run
        for worker in self._guests:
            worker.pause() if others_run else worker.resume()

    def begin_reference(self, entry: str, hardware: CpuSpec | GpuSpec, folder: Path) -> None:
        """Let the first process build the reference kernel; `reference` returns it."""
        arguments = {"entry": entry, "hardware": hardware, "folder": str(folder)}
        self.workers[0].submit(f"{_HERE}:build_reference", arguments, self._limits.build_s)

    def reference(self) -> object:
        """Wait for the reference kernel that `begin_reference` began, and return its artifact.

        Raises
        ------
        RunError, DeviceError, MissingDependencyError
            It cannot be built.
        """
        reply = self.workers[0].wait(self._limits.start_s + self._limits.build_s)
        if reply.kind != "value":
            raise refusal(reply, "the reference kernel cannot be built")
        return reply.value

    def _idle_guests(self) -> list[Worker]:
        """Start guests and return those that are ready, so that no job waits for one that is still starting."""
        idle = []
        for worker in list(self._guests):
            try:
                worker.start()
                if worker.is_ready() and not worker.busy:
                    idle.append(worker)
            except RunError:  # guests are optional
                self._guests.remove(worker)
                self.workers.remove(worker)
        return idle

    def begin(self, jobs: Iterable[BuildJob]) -> None:
        """Give jobs to idle processes in their order."""
        idle = [worker for worker in self._own if not worker.busy]
        if not self._yielding:
            idle += self._idle_guests()
        for job in jobs:
            if not idle:
                return
            if job.worker is None and not job.settled:
                job.worker = idle.pop(0)
                arguments = {
                    "entry": self._entry,
                    "schedule": job.schedule,
                    "folder": str(job.folder),
                    "threads": self._threads,
                }
                job.worker.submit(f"{_HERE}:build", arguments, self._limits.build_s)

    def collect(self, jobs: Iterable[BuildJob]) -> None:
        """Take the results of finished builds.

        Raises
        ------
        MissingDependencyError
            A package is missing: no schedule could be built.
        RunError
            A process cannot be started.
        """
        for job in jobs:
            reply = job.worker.poll() if job.worker is not None else None
            if reply is None:
                continue
            job.worker = None
            job.build_s += reply.seconds
            if reply.kind == "value":
                job.artifact = reply.value
            elif reply.kind in ("died", "memory") and not reply.fresh and not job.repeated:
                job.repeated = True  # an earlier build may have caused the failure
            elif reply.kind == "timeout":
                job.fail(Outcome.BUILD_TIMEOUT, f"build: {reply.message}")
            elif reply.error == "MissingDependencyError":
                raise MissingDependencyError(reply.message)
            elif reply.error in INVALID_ERRORS:
                job.fail(Outcome.INVALID, reply.message)
            else:
                job.fail(Outcome.BUILD_ERROR, reply.message)

    def finish(self, jobs: Iterable[BuildJob], *, deadline: float = float("inf")) -> Iterator[BuildJob]:
        """Build jobs and yield each when it has ended, until all have or `deadline` (`time.monotonic`) has passed.

        Raises
        ------
        MissingDependencyError, RunError
            As `collect`.
        """
        waiting = list(jobs)
        while waiting and time.monotonic() < deadline:
            self.begin(waiting)
            wait_for(self.workers, min(1.0, max(0.0, deadline - time.monotonic())))
            self.collect(waiting)
            for job in [job for job in waiting if job.settled]:
                waiting.remove(job)
                yield job

    def kill(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.kill()


def limit_to_one_thread(environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return an environment in which the libraries that NumPy uses run with one thread."""
    return {**dict.fromkeys(_ONE_THREAD, "1"), **(environment or {})}


# ---- functions that run in the processes ---------------------------------------------------------------------


def set_up() -> None:
    """Import the modules that every build needs."""
    import_tvm()


def build(entry: str, schedule: Schedule, folder: str, threads: int) -> object:
    """Build `schedule` into the new folder `folder` with the function `entry`; return its artifact."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    artifact: object = resolve(entry)(schedule, Path(folder), threads=threads)
    return artifact


def build_reference(entry: str, hardware: CpuSpec | GpuSpec, folder: str) -> object:
    """Build the reference kernel into the new folder `folder` with the function `entry`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    artifact: object = resolve(entry)(hardware, Path(folder))
    return artifact
