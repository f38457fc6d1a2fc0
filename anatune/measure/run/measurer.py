"""Measuring schedules: builders and a runner in processes of their own, outcomes instead of exceptions."""

from __future__ import annotations

import abc
import itertools
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, MissingDependencyError, RunError, SpaceError
from anatune.measure.run.build_processes import Builders, Job, Limits
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.correctness import Expected, expected, random_inputs
from anatune.measure.run.process import Reply, Worker, refusal, wait_for
from anatune.measure.run.runner import RunReport, Setting
from anatune.measure.run.timing import TimingProtocol

__all__ = ["BaseMeasurer", "Limits", "Measurer"]

if TYPE_CHECKING:
    from typing import Self

_LOST = ("LostDeviceError", "DeviceError")
_DEAD = (*_LOST, "KernelFaultError")
"""Errors after which a process can run nothing more: see `anatune.measure.cuda.driver`."""

_KEPT_BUILDS = 8
"""Libraries of the best candidates that stay until the end: comparing them needs no build."""


class BaseMeasurer(abc.ABC):
    """What measurers of CPUs and of GPUs share: builders, a runner, the order of things; a context manager.

    Parameters
    ----------
    workload, hardware
        What the schedules compute, for which device.
    threads : int
        Threads that kernels run with.
    limits
        Time and memory of one candidate.
    seed : int
        Of the random operands.

    Attributes
    ----------
    incumbent : float or None
        Best time over the reference kernel's so far: candidates that are clearly slower stop early. May be set, for
        example from the records of an earlier run (`Measurement.relative`).
    """

    def __init__(
        self, workload: Workload, hardware: CpuSpec | GpuSpec, *, threads: int, limits: Limits | None, seed: int
    ) -> None:
        self.workload, self.hardware, self.threads = workload, hardware, threads
        self.limits = limits or Limits()
        self.incumbent: float | None = None
        self._seed = seed
        self._cores = plan_cores(threads, physical_cores())
        self._numbers = itertools.count()
        self._kept: dict[str, Job] = {}
        self._folder: Path | None = None
        self._builders: Builders | None = None
        self._runner: Worker | None = None

    @abc.abstractmethod
    def _make_builders(self, environment: dict[str, str]) -> Builders:
        """Return the builder processes, not started."""

    @abc.abstractmethod
    def _make_runner(self, environment: dict[str, str]) -> Worker:
        """Return the runner process, not started."""

    @abc.abstractmethod
    def _begin_reference(self, builders: Builders, folder: Path) -> Worker | None:
        """Have the reference kernel built; return the process that does it, if there is something to do."""

    def _expected(self) -> Expected:
        """Return what kernels have to compute."""
        return expected(self.workload, random_inputs(self.workload, self._seed))

    @abc.abstractmethod
    def _setting(self, reference: Any, path: Path, want: Expected) -> Any:
        """Return what the runner needs to know; `reference` is what the builder said, `path` holds what is expected."""

    def __enter__(self) -> Self:
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
        for processes in (self._builders, self._runner):
            if processes is not None:
                processes.kill()
        self._builders = self._runner = None
        self._kept.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, folder: Path) -> None:
        """Start all processes; compute the expected result while they import TVM."""
        scratch = folder / "tmp"
        scratch.mkdir()
        common = {"TMPDIR": str(scratch), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        limits = self.limits
        self._builders = builders = self._make_builders(common)
        self._runner = runner = self._make_runner(common)
        builders.start()
        runner.start()
        first = self._begin_reference(builders, folder / "reference")
        want = self._expected()
        path = folder / "expected.npy"
        np.save(path, want.result)
        reference = None
        if first is not None:
            reply = _wait(first, limits.start_s + limits.build_s)
            if reply.kind != "value":
                raise refusal(reply, "the reference kernel cannot be built")
            reference = reply.value
        runner.setup = ("anatune.measure.run.runner:set_up", {"setting": self._setting(reference, path, want)})
        runner.submit(*runner.setup, limit_s=limits.start_s)
        reply = _wait(runner, 2 * limits.start_s)
        if reply.kind != "value":
            raise refusal(reply, "the runner process cannot be set up")

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
        builders, runner = self._drained()
        source = iter(schedules)
        count = len(builders.workers)
        ahead = count + 2 if self._cores.overlap else 2 * count + 2
        jobs: deque[Job] = deque()
        exhausted = False
        running: Job | None = None
        while True:
            builders.collect(jobs)
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
            builders.begin(jobs)
            ready = jobs[0].artifact is not None and jobs[0].measurement is None
            if running is None and ready and (self._cores.overlap or all(job.settled for job in jobs)):
                running = jobs[0]
                self._begin_run(runner, running)
            if running is not None or jobs[0].measurement is None:
                wait_for([runner, *builders.workers], 1.0)

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
        builders, runner = self._drained()
        jobs = [self._job(schedule) for schedule in schedules]
        for job in jobs:
            if job.schedule.key in self._kept:
                known = self._kept[job.schedule.key]
                job.artifact, job.build_s = known.artifact, known.build_s
        while not all(job.settled for job in jobs):
            builders.collect(jobs)
            builders.begin(jobs)
            wait_for(builders.workers, 1.0)
        built = [job for job in jobs if job.artifact is not None]
        if built:
            arguments = {"artifacts": [job.artifact for job in built], "budget_s": budget_s}
            limit_s = budget_s + self.limits.run_s * len(built)
            started = time.monotonic()
            for _ in range(2):
                runner.submit("anatune.measure.run.runner:contest", arguments, limit_s)
                reply = _wait(runner, self.limits.start_s + limit_s)
                if reply.kind not in ("died", "memory") or reply.fresh:
                    break
            share = (time.monotonic() - started) / len(built)
            reports = reply.value if reply.kind == "value" else [None] * len(built)
            for job, report in zip(built, reports, strict=True):
                if report is None:
                    self._run_failed(runner, job, reply)
                else:
                    job.measurement = _measurement(report, job.build_s, share)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
        return [job.measurement for job in jobs if job.measurement is not None]

    def _drained(self) -> tuple[Builders, Worker]:
        """Return builders and runner; wait for what an abandoned `measure` left running."""
        if self._runner is None or self._builders is None:
            raise RunError("the measurer is not open; use it in a with statement")
        for worker in (*self._builders.workers, self._runner):
            if worker.busy:
                _wait(worker, self.limits.start_s + max(self.limits.build_s, self.limits.run_s))
        return self._builders, self._runner

    def _job(self, schedule: Schedule) -> Job:
        if schedule.workload != self.workload:
            raise SpaceError(
                f"schedule is for {schedule.workload.describe()}, expected {self.workload.describe()}: "
                "a measurer serves one workload"
            )
        assert self._folder is not None
        return Job(schedule, self._folder / f"build-{next(self._numbers)}")

    def _keep(self, job: Job) -> None:
        """Keep the build of one of the best candidates, remove any other."""
        assert job.measurement is not None
        out: Job | None = job
        if job.measurement.relative is not None:
            out = self._kept.pop(job.schedule.key, None)
            self._kept[job.schedule.key] = job
            if len(self._kept) > _KEPT_BUILDS:
                worst = max(self._kept.values(), key=lambda kept: kept.rank)
                out = self._kept.pop(worst.schedule.key)
        if out is not None:
            shutil.rmtree(out.folder, ignore_errors=True)

    def _begin_run(self, runner: Worker, job: Job) -> None:
        arguments = {"artifact": job.artifact, "incumbent": self.incumbent}
        runner.submit("anatune.measure.run.runner:run", arguments, self.limits.run_s)

    def _collect_run(self, runner: Worker, job: Job) -> bool:
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
        self._run_failed(runner, job, reply)
        return True

    def _run_failed(self, runner: Worker, job: Job, reply: Reply) -> None:
        if reply.error == "MissingDependencyError":
            raise MissingDependencyError(reply.message)
        if reply.error in _DEAD:
            runner.kill()  # a new process may find the device again; if not, its set-up says so
        if reply.error in _LOST:
            job.fail(Outcome.LOST_DEVICE, reply.message, run_s=reply.seconds)
        elif reply.kind == "timeout":
            job.fail(Outcome.RUN_TIMEOUT, f"run: {reply.message}", run_s=reply.seconds)
        else:
            job.fail(Outcome.RUN_ERROR, reply.message, run_s=reply.seconds)


class Measurer(BaseMeasurer):
    """Builds, checks and times schedules of one workload on this machine's CPU; a context manager.

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
        builder: str = "anatune.codegen.cpu.lower:compile_schedule",
        reference: str = "anatune.codegen.cpu.probes:compile_probe",
    ) -> None:
        if not isinstance(hardware, CpuSpec):
            raise DeviceError(f"{hardware.name} is no CPU, and only CPUs can be measured; use anatune.hardware('host')")
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise SpaceError(f"threads is {threads!r}, expected an integer >= 1")
        super().__init__(workload, hardware, threads=threads, limits=limits, seed=seed)
        self._protocol = protocol or TimingProtocol()
        self._builder_entry, self._reference_entry = builder, reference

    def _make_builders(self, environment: dict[str, str]) -> Builders:
        cores = self._cores
        return Builders(
            self._builder_entry,
            cores.num_builders,
            self.limits,
            threads=self.threads,
            cores=cores.builders,
            environment=environment,
        )

    def _make_runner(self, environment: dict[str, str]) -> Worker:
        cores, limits = self._cores, self.limits
        tensors = (*self.workload.reads, *self.workload.epilogue_reads, self.workload.write)
        own = 48 * sum(access.num_elements for access in tensors)  # copies, packed copies, float64 values
        environment = {**environment, "TVM_NUM_THREADS": str(self.threads)}
        if len(cores.runner) == self.threads and cores.overlap:
            environment["TVM_BIND_THREADS"] = "0"  # the process is pinned to exactly as many cores
        return Worker(
            "runner",
            memory_bytes=limits.memory_bytes + own,
            cores=cores.runner,
            environment=environment,
            setup=("anatune.measure.run.runner:import_first", {}),
            setup_s=limits.start_s,
        )

    def _begin_reference(self, builders: Builders, folder: Path) -> Worker:
        return builders.begin_reference(self._reference_entry, self.hardware, folder)

    def _setting(self, reference: Any, path: Path, want: Expected) -> Setting:
        return Setting(
            self.workload, self._seed, str(path), want.scale, want.tolerance, reference, self.threads, self._protocol
        )


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


def _any_settled(jobs: Iterable[Job]) -> bool:
    return any(job.settled for job in jobs)


def _wait(worker: Worker, timeout_s: float) -> Reply:
    """Return the reply of a busy worker; its own limit ends the wait."""
    reply = worker.poll(timeout_s)
    if reply is None:
        worker.kill()
        return Reply("timeout", message=f"the {worker.name} process did not answer within {timeout_s:g} s")
    return reply
