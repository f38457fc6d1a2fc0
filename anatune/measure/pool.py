"""Measuring schedules: builders and a runner in processes of their own, outcomes instead of exceptions."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from anatune.codegen.artifact import Artifact
from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload import Workload
from anatune.errors import DeviceError, MissingDependencyError, RunError, SpaceError
from anatune.measure.cores import physical_cores, plan_cores
from anatune.measure.correctness import expected, random_inputs
from anatune.measure.process import Reply, Worker, wait_for
from anatune.measure.runner import RunReport, Setting
from anatune.measure.timing import TimingProtocol

__all__ = ["Limits", "Measurer"]

_GIB = 1 << 30

_KEPT_BUILDS = 8
"""Libraries of the best candidates that stay until the end: comparing them needs no build."""

_INVALID = ("SpaceError", "WorkloadError", "SpecError", "UnknownNameError")
"""Errors of a build that say that the schedule itself is no good."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one candidate may use.

    Attributes
    ----------
    build_s : float
        Wall time of building.
    run_s : float
        Wall time of loading, checking and timing.
    memory_bytes : int
        Data of a builder; of the runner beside the workload's own tensors.
    start_s : float
        Wall time of starting a process and preparing it (importing TVM takes a second, on a cold disk several).
    """

    build_s: float = 20.0
    run_s: float = 10.0
    memory_bytes: int = 4 * _GIB
    start_s: float = 60.0


class _Job:
    """One schedule on its way."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self.schedule = schedule
        self.folder = folder
        self.worker: Worker | None = None
        self.artifact: Artifact | None = None
        self.measurement: Measurement | None = None
        self.build_s = 0.0
        self.repeated = False

    @property
    def settled(self) -> bool:
        """Whether its build ended, well or not."""
        return self.artifact is not None or self.measurement is not None

    @property
    def rank(self) -> float:
        """Time over the reference kernel's; infinite if there is none."""
        relative = self.measurement.relative if self.measurement is not None else None
        return float("inf") if relative is None else relative

    def fail(self, outcome: Outcome, message: str, **numbers: Any) -> None:
        """End with an outcome other than OK."""
        self.measurement = Measurement(outcome, message, build_s=self.build_s, **numbers)


class Measurer:
    """Builds, checks and times schedules of one workload on this machine; a context manager.

    Whatever a schedule does (no program, a build that hangs, a crash, a wrong result) is its outcome. Builders and the
    runner are processes that live until the end and are replaced when one dies. With a core to spare, building
    overlaps timing, each pinned to its own cores; otherwise they take turns. The calling process only waits while a
    kernel is timed. Temporary files are removed at the end, also after an error; not if this process is killed.

    Not safe to share between threads; processes end with the thread that entered it. For a given machine, seed and
    input the outcomes are the same (times are not).

    Parameters
    ----------
    workload, hardware
        What the schedules compute, for which CPU (this one).
    threads : int
        Threads that kernels run with (TVM_NUM_THREADS of the runner).
    limits
        Time and memory of one candidate.
    seed : int
        Of the random operands.
    protocol
        How candidates are timed.
    builder, reference : str
        ``module:function`` that builds a schedule, (schedule, folder, threads=) -> Artifact; that builds the kernel
        timed beside all candidates, (kind, hardware, folder) -> Artifact.

    Attributes
    ----------
    incumbent : float or None
        Best time over the reference kernel's so far: candidates that are clearly slower stop early. May be set, for
        example from the records of an earlier run (`Measurement.relative`).

    Raises
    ------
    DeviceError
        The hardware is no CPU.
    MissingDependencyError
        TVM is not installed.
    RunError
        The processes cannot be started.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        threads: int = 1,
        limits: Limits | None = None,
        seed: int = 0,
        protocol: TimingProtocol | None = None,
        builder: str = "anatune.codegen.cpu:compile_schedule",
        reference: str = "anatune.codegen.probes:compile_probe",
    ) -> None:
        if not isinstance(hardware, CpuSpec):
            raise DeviceError(f"{hardware.name} is no CPU, and only CPUs can be measured; use anatune.hardware('host')")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise SpaceError(f"threads is {threads!r}, expected an integer >= 1")
        self.workload, self.hardware, self.threads = workload, hardware, threads
        self.limits = limits or Limits()
        self.incumbent: float | None = None
        self._seed, self._protocol = seed, protocol or TimingProtocol()
        self._builder_entry, self._reference_entry = builder, reference
        self._cores = plan_cores(threads, physical_cores())
        self._numbers = itertools.count()
        self._kept: dict[str, _Job] = {}
        self._folder: Path | None = None
        self._builders: list[Worker] = []
        self._runner: Worker | None = None

    def __enter__(self) -> Measurer:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="anatune-"))
            self._start(self._folder)
        except OSError as error:
            self.close()
            raise RunError(
                f"{tempfile.gettempdir()}: {error.strerror or error}; free some space or set TMPDIR"
            ) from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and remove the temporary files; may be called twice."""
        for worker in (*self._builders, *([self._runner] if self._runner else [])):
            worker.kill()
        self._builders, self._runner = [], None
        self._kept.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, folder: Path) -> None:
        """Start all processes; compute the expected result while they import TVM."""
        scratch = folder / "tmp"
        scratch.mkdir()
        common = {"TMPDIR": str(scratch), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        limits, cores = self.limits, self._cores
        tensors = (*self.workload.reads, *self.workload.epilogue_reads, self.workload.write)
        own = 48 * sum(access.num_elements for access in tensors)  # copies, packed copies, float64 values
        run_environment = {**common, "TVM_NUM_THREADS": str(self.threads)}
        if len(cores.runner) == self.threads and cores.overlap:
            run_environment["TVM_BIND_THREADS"] = "0"  # the process is pinned to exactly as many cores
        self._builders = [
            Worker(
                "builder",
                memory_bytes=limits.memory_bytes,
                cores=cores.builders,
                environment={**common, "TVM_NUM_THREADS": "1"},
                setup=("anatune.measure.builder:set_up", {}),
                setup_s=limits.start_s,
            )
            for _ in range(cores.num_builders)
        ]
        self._runner = Worker(
            "runner",
            memory_bytes=limits.memory_bytes + own,
            cores=cores.runner,
            environment=run_environment,
            setup=("anatune.measure.runner:set_up", {}),
            setup_s=limits.start_s,
        )
        for worker in (*self._builders, self._runner):
            worker.start()
        first = self._builders[0]
        arguments = {"entry": self._reference_entry, "hardware": self.hardware, "folder": str(folder / "reference")}
        first.submit("anatune.measure.builder:build_reference", arguments, limits.build_s)
        want = expected(self.workload, random_inputs(self.workload, self._seed))
        path = folder / "expected.npy"
        np.save(path, want.result)
        reply = _wait(first, limits.start_s + limits.build_s)
        if reply.kind != "value":
            raise RunError(f"the reference kernel cannot be built: {reply.message}")
        setting = Setting(
            self.workload, self._seed, str(path), want.scale, want.tolerance, reply.value, self.threads, self._protocol
        )
        self._runner.setup = ("anatune.measure.runner:set_up", {"setting": setting})
        self._runner.submit(*self._runner.setup, limit_s=limits.start_s)
        reply = _wait(self._runner, 2 * limits.start_s)
        if reply.kind != "value":
            raise RunError(f"the runner process cannot be set up: {reply.message}")

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure schedules, in order; each result comes as soon as it is there.

        The iterable is pulled a few schedules ahead of the results, as many as keep the builders busy, and only
        between runs: a strategy that computes its next question disturbs no timing.

        Raises
        ------
        SpaceError
            A schedule of another workload.
        RunError
            A process cannot be started.
        MissingDependencyError
            A package is missing.
        """
        runner = self._drained()
        source = iter(schedules)
        ahead = self._cores.num_builders + 2 if self._cores.overlap else 2 * self._cores.num_builders + 2
        jobs: deque[_Job] = deque()
        exhausted = False
        running: _Job | None = None
        while True:
            self._collect_builds(jobs)
            if running is not None and self._collect_run(runner, running):
                running = None
            if running is None:
                while jobs and jobs[0].measurement is not None:
                    job = jobs.popleft()
                    assert job.measurement is not None
                    self._keep(job)
                    yield job.schedule, job.measurement
                while not exhausted and len(jobs) < ahead and (self._cores.overlap or not _any_settled(jobs)):
                    try:
                        jobs.append(self._job(next(source)))
                    except StopIteration:
                        exhausted = True
                if not jobs:
                    if exhausted:
                        return
                    continue
            self._begin_builds(jobs)
            ready = jobs[0].artifact is not None and jobs[0].measurement is None
            if running is None and ready and (self._cores.overlap or all(job.settled for job in jobs)):
                running = jobs[0]
                self._begin_run(runner, running)
            if running is not None or jobs[0].measurement is None:
                wait_for([runner, *self._builders], 1.0)

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Time contenders in turn (A B C A B C ...) until a paired t-test at 95 % decides or `budget_s` has passed.

        Returns
        -------
        list of Measurement
            In the order given. Those that dropped out are `stopped_early`; compare medians of `relative`.

        Raises
        ------
        SpaceError
            A schedule of another workload.
        RunError
            A process cannot be started.
        """
        runner = self._drained()
        jobs = [self._job(schedule) for schedule in schedules]
        for job in jobs:
            if job.schedule.key in self._kept:
                known = self._kept[job.schedule.key]
                job.artifact, job.build_s = known.artifact, known.build_s
        while not all(job.settled for job in jobs):
            self._collect_builds(jobs)
            self._begin_builds(jobs)
            wait_for(self._builders, 1.0)
        built = [job for job in jobs if job.artifact is not None]
        if built:
            arguments = {"artifacts": [job.artifact for job in built], "budget_s": budget_s}
            limit_s = budget_s + self.limits.run_s * len(built)
            started = time.monotonic()
            for _ in range(2):
                runner.submit("anatune.measure.runner:contest", arguments, limit_s)
                reply = _wait(runner, self.limits.start_s + limit_s)
                if reply.kind not in ("died", "memory") or reply.fresh:
                    break
            share = (time.monotonic() - started) / len(built)
            reports = reply.value if reply.kind == "value" else [None] * len(built)
            for job, report in zip(built, reports, strict=True):
                if report is None:
                    self._run_failed(job, reply)
                else:
                    job.measurement = _measurement(report, job.build_s, share)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
        return [job.measurement for job in jobs if job.measurement is not None]

    def _drained(self) -> Worker:
        """Return the runner; wait for what an abandoned `measure` left running."""
        if self._runner is None:
            raise RunError("the measurer is not open; use it in a with statement")
        for worker in (*self._builders, self._runner):
            if worker.busy:
                _wait(worker, self.limits.start_s + max(self.limits.build_s, self.limits.run_s))
        return self._runner

    def _job(self, schedule: Schedule) -> _Job:
        if schedule.workload != self.workload:
            raise SpaceError(
                f"schedule is for {schedule.workload.describe()}, expected {self.workload.describe()}: "
                "a measurer serves one workload"
            )
        assert self._folder is not None
        return _Job(schedule, self._folder / f"build-{next(self._numbers)}")

    def _keep(self, job: _Job) -> None:
        """Keep the build of one of the best candidates, remove any other."""
        assert job.measurement is not None
        out: _Job | None = job
        if job.measurement.relative is not None:
            out = self._kept.pop(job.schedule.key, None)
            self._kept[job.schedule.key] = job
            if len(self._kept) > _KEPT_BUILDS:
                worst = max(self._kept.values(), key=lambda kept: kept.rank)
                out = self._kept.pop(worst.schedule.key)
        if out is not None:
            shutil.rmtree(out.folder, ignore_errors=True)

    def _begin_builds(self, jobs: Iterable[_Job]) -> None:
        idle = [worker for worker in self._builders if not worker.busy]
        for job in jobs:
            if not idle:
                return
            if job.worker is None and not job.settled:
                job.worker = idle.pop()
                arguments = {
                    "entry": self._builder_entry,
                    "schedule": job.schedule,
                    "folder": str(job.folder),
                    "threads": self.threads,
                }
                job.worker.submit("anatune.measure.builder:build", arguments, self.limits.build_s)

    def _collect_builds(self, jobs: Iterable[_Job]) -> None:
        for job in jobs:
            reply = job.worker.poll() if job.worker is not None else None
            if reply is None:
                continue
            job.worker = None
            job.build_s += reply.seconds
            if reply.kind == "value":
                job.artifact = reply.value
            elif reply.kind in ("died", "memory") and not reply.fresh and not job.repeated:
                job.repeated = True  # perhaps an earlier build's fault
            elif reply.kind == "timeout":
                job.fail(Outcome.BUILD_TIMEOUT, f"build: {reply.message}")
            elif reply.error == "MissingDependencyError":
                raise MissingDependencyError(reply.message)
            elif reply.error in _INVALID:
                job.fail(Outcome.INVALID, reply.message)
            else:
                job.fail(Outcome.BUILD_ERROR, reply.message)

    def _begin_run(self, runner: Worker, job: _Job) -> None:
        arguments = {"artifact": job.artifact, "incumbent": self.incumbent}
        runner.submit("anatune.measure.runner:run", arguments, self.limits.run_s)

    def _collect_run(self, runner: Worker, job: _Job) -> bool:
        """Take the runner's reply, if there is one; return whether the job is done."""
        reply = runner.poll()
        if reply is None:
            return False
        if reply.kind == "value":
            job.measurement = _measurement(reply.value, job.build_s, reply.seconds)
            relative = job.measurement.relative
            if relative is not None and not job.measurement.stopped_early:
                self.incumbent = relative if self.incumbent is None else min(self.incumbent, relative)
            return True
        if reply.kind in ("died", "memory") and not reply.fresh and not job.repeated:
            job.repeated = True  # an earlier kernel may have damaged the process: try in a new one
            self._begin_run(runner, job)
            return False
        self._run_failed(job, reply)
        return True

    def _run_failed(self, job: _Job, reply: Reply) -> None:
        if reply.error == "MissingDependencyError":
            raise MissingDependencyError(reply.message)
        if reply.kind == "timeout":
            job.fail(Outcome.RUN_TIMEOUT, f"run: {reply.message}", run_s=reply.seconds)
        else:
            job.fail(Outcome.RUN_ERROR, reply.message, run_s=reply.seconds)


def _measurement(report: RunReport, build_s: float, run_s: float) -> Measurement:
    """Return a run's report as a measurement."""
    return Measurement(
        Outcome.OK if report.ok else Outcome.WRONG_RESULT,
        report.message,
        report.samples.times_s,
        report.samples.reference_times_s,
        None if np.isnan(report.max_rel_error) else report.max_rel_error,
        build_s,
        run_s,
        report.samples.stopped_early,
    )


def _any_settled(jobs: Iterable[_Job]) -> bool:
    return any(job.settled for job in jobs)


def _wait(worker: Worker, timeout_s: float) -> Reply:
    """Return the reply of a busy worker; its own limit ends the wait."""
    reply = worker.poll(timeout_s)
    if reply is None:
        worker.kill()
        return Reply("timeout", message=f"the {worker.name} process did not answer within {timeout_s:g} s")
    return reply
