"""Measuring schedules: builders and a runner in processes of their own, outcomes instead of exceptions."""

from __future__ import annotations

import itertools
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.nest import Workload
from anatune.errors import MissingDependencyError, RunError, SpaceError
from anatune.files import no_scratch, scratch_folder
from anatune.measure.run.build_processes import SET_UP, BuildJob, BuildProcesses, Limits, single_threaded
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.correctness import Expected, expected, random_inputs
from anatune.measure.run.process import Reply, Worker, refusal, wait_for
from anatune.measure.run.runner import RunReport, Setting
from anatune.measure.run.timing import TimingProtocol

__all__ = ["Entries", "Limits", "Measurer"]

if TYPE_CHECKING:
    from typing import Self

_RUNNER = "anatune.measure.run.runner"

_LOST = ("LostDeviceError", "DeviceError")
_DEAD = (*_LOST, "KernelFaultError")
"""Errors after which a process can run nothing more: see `anatune.errors`."""

_KEPT_BUILDS = 8
"""Libraries of the best candidates that stay until the end: comparing them needs no build."""


class Entries(NamedTuple):
    """What the processes of a kind of device run, ``module:function`` each.

    Attributes
    ----------
    builder : str
        Builds a schedule: (schedule, folder, threads=) -> artifact.
    reference : str
        Builds the kernel that is timed beside all candidates: (hardware, folder) -> artifact.
    session : str
        Checks and times artifacts: (setting, **options) -> `measure.run.runner.RunSession`.
    builder_setup : str
        What builder processes begin with.
    """

    builder: str
    reference: str
    session: str
    builder_setup: str = SET_UP


class Measurer:
    """Builds, checks and times schedules of one workload; a context manager. Each kind of device has a subclass.

    Whatever a schedule does (no program, a build that hangs, a crash, a wrong result) is its outcome. Builders and the
    runner are processes that live until the end and are replaced when one dies. With a core to spare, building
    overlaps timing, each pinned to its own cores; otherwise they take turns. Where few cores build, builders on the
    runner's cores help between runs. The calling process only waits while a
    kernel is timed. Temporary files are removed at the end, also after an error; not if this process is killed.

    Not safe to share between threads; processes end with the thread that entered it. For a given machine, seed and
    input the outcomes are the same (times are not).

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
    protocol
        How candidates are timed.
    entries : Entries
        What the processes run.
    options : mapping of str to object
        What the session is given beside its setting.

    Attributes
    ----------
    incumbent : float or None
        Best time over the reference kernel's so far: candidates that are clearly slower stop early. May be set, for
        example from the records of an earlier run (`Measurement.relative`).

    Raises
    ------
    MissingDependencyError
        A package that building needs is not installed.
    RunError
        The processes cannot be started.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        threads: int,
        limits: Limits | None,
        seed: int,
        protocol: TimingProtocol,
        entries: Entries,
        options: Mapping[str, object],
    ) -> None:
        self.workload, self.hardware, self.threads = workload, hardware, threads
        self.limits = limits or Limits()
        self.incumbent: float | None = None
        self._seed, self._protocol, self._entries, self._options = seed, protocol, entries, options
        self._cores = plan_cores(threads, physical_cores())
        self._numbers = itertools.count()
        self._kept: dict[str, BuildJob] = {}
        self._folder: Path | None = None
        self._builders: BuildProcesses | None = None
        self._runner: Worker | None = None
        self._built_reference: object = None

    # -- what kinds of devices do differently ---------------------------------------------------------------------

    def _make_builders(self, environment: Mapping[str, str]) -> BuildProcesses:
        """Return the builder processes, not started."""
        return BuildProcesses(
            self._entries.builder,
            self._cores.num_builders,
            self.limits,
            threads=self.threads,
            cores=self._cores.builders,
            guests=self._cores.num_guests,
            guest_cores=self._cores.runner,
            environment=environment,
            setup=self._entries.builder_setup,
        )

    def _make_runner(self, environment: Mapping[str, str]) -> Worker:
        """Return the runner process, not started."""
        # No limit on its memory: drivers of GPUs reserve address space by the size of the device.
        return Worker("runner", cores=self._cores.runner, environment=environment, setup_s=self.limits.start_s)

    def _begin_reference(self, builders: BuildProcesses, folder: Path) -> None:
        """Have the reference kernel built."""
        builders.begin_reference(self._entries.reference, self.hardware, folder)

    def _reference(self, builders: BuildProcesses) -> object:
        """Return its artifact."""
        return builders.reference()

    def _expected(self) -> Expected:
        """Return what kernels have to compute."""
        return expected(self.workload, random_inputs(self.workload, self._seed))

    # -- the order of things --------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._folder = scratch_folder(RunError)
            self._start(self._folder)
        except OSError as error:
            self.close()
            raise RunError(no_scratch(error)) from None
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
        environment = single_threaded({"TMPDIR": str(scratch)})
        self._builders = builders = self._make_builders(environment)
        self._runner = runner = self._make_runner(environment)
        builders.start()
        runner.start()
        self._begin_reference(builders, folder / "reference")
        self._set_up(runner, folder, lambda: self._reference(builders))

    def turn_to(self, workload: Workload) -> None:
        """Measure schedules of `workload` from here on, with the same processes; the incumbent is forgotten.

        Raises
        ------
        RunError
            The runner cannot be set up.
        """
        _, runner = self._drained()
        assert self._folder is not None
        reference = self._built_reference
        self.workload, self.incumbent = workload, None
        self._kept.clear()
        self._set_up(runner, self._folder, lambda: reference)

    def _set_up(self, runner: Worker, folder: Path, reference: Callable[[], object]) -> None:
        """Tell the runner what its kernels have to compute, and which `reference` is timed beside them."""
        limits = self.limits
        want = self._expected()
        path = folder / "expected.npy"
        np.save(path, want.result)
        self._built_reference = reference()
        setting = Setting(
            self._entries.session,
            self._options,
            self.workload,
            self._seed,
            str(path),
            want.scale,
            want.tolerance,
            self._built_reference,
            self._protocol,
        )
        runner.setup = (f"{_RUNNER}:set_up", {"setting": setting})
        runner.submit(*runner.setup, limit_s=limits.start_s)
        reply = runner.wait(2 * limits.start_s)
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
        jobs: deque[BuildJob] = deque()
        exhausted = False
        running: BuildJob | None = None
        while True:
            builders.collect(jobs)
            if running is not None and self._collect_run(runner, running):
                running = None
                builders.yield_cores(False)
            if running is None:
                while jobs and jobs[0].measurement is not None:
                    job = jobs.popleft()
                    assert job.measurement is not None
                    self._keep(job)
                    yield job.schedule, job.measurement
                while not exhausted and len(jobs) < ahead and self._may_build(jobs):
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
                builders.yield_cores(True)
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
        for _ in builders.finish(job for job in jobs if not job.settled):
            pass  # settled jobs know how they ended
        built = [job for job in jobs if job.artifact is not None]
        if built:
            arguments = {"artifacts": [job.artifact for job in built], "budget_s": budget_s}
            limit_s = budget_s + self.limits.run_s * len(built)
            started = time.monotonic()
            for _ in range(2):
                runner.submit(f"{_RUNNER}:contest", arguments, limit_s)
                reply = runner.wait(self.limits.start_s + limit_s)
                if reply.kind not in ("died", "memory") or reply.fresh:
                    break
            share = (time.monotonic() - started) / len(built)
            reports = reply.value if isinstance(reply.value, list) else [None] * len(built)
            for job, report in zip(built, reports, strict=True):
                if report is None:
                    self._run_failed(runner, job, reply)
                else:
                    job.measurement = _measurement(report, job.build_s, share)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
        return [job.measurement for job in jobs if job.measurement is not None]

    def _drained(self) -> tuple[BuildProcesses, Worker]:
        """Return builders and runner; wait for what an abandoned `measure` left running."""
        if self._runner is None or self._builders is None:
            raise RunError("the measurer is not open; use it in a with statement")
        self._builders.yield_cores(False)
        for worker in (*self._builders.workers, self._runner):
            if worker.busy:
                worker.wait(self.limits.start_s + max(self.limits.build_s, self.limits.run_s))
        return self._builders, self._runner

    def _job(self, schedule: Schedule) -> BuildJob:
        if schedule.workload != self.workload:
            raise SpaceError(
                f"schedule is for {schedule.workload.describe()}, expected {self.workload.describe()}: "
                "a measurer serves one workload"
            )
        assert self._folder is not None
        return BuildJob(schedule, self._folder / f"build-{next(self._numbers)}")

    def _may_build(self, jobs: Iterable[BuildJob]) -> bool:
        """Whether another build may begin: without a core to spare, not while a built kernel waits to be timed."""
        return self._cores.overlap or not any(job.settled for job in jobs)

    def _keep(self, job: BuildJob) -> None:
        """Keep the build of one of the best candidates, remove any other."""
        assert job.measurement is not None
        out: BuildJob | None = job
        if job.measurement.relative is not None:
            out = self._kept.pop(job.schedule.key, None)
            self._kept[job.schedule.key] = job
            if len(self._kept) > _KEPT_BUILDS:
                worst = max(self._kept.values(), key=lambda kept: kept.rank)
                out = self._kept.pop(worst.schedule.key)
        if out is not None:
            shutil.rmtree(out.folder, ignore_errors=True)

    def _begin_run(self, runner: Worker, job: BuildJob) -> None:
        arguments = {"artifact": job.artifact, "incumbent": self.incumbent}
        runner.submit(f"{_RUNNER}:run", arguments, self.limits.run_s)

    def _collect_run(self, runner: Worker, job: BuildJob) -> bool:
        """Take the runner's reply, if there is one; return whether the job is done."""
        reply = runner.poll()
        if reply is None:
            return False
        if isinstance(reply.value, RunReport):
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

    def _run_failed(self, runner: Worker, job: BuildJob, reply: Reply) -> None:
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


def _measurement(report: RunReport, build_s: float, run_s: float) -> Measurement:
    """Return a run's report as a measurement."""
    answer, timings = report
    return Measurement(
        Outcome.OK if answer.ok else Outcome.WRONG_RESULT,
        answer.message,
        timings.times_s,
        timings.reference_times_s,
        None if np.isnan(answer.max_rel_error) else answer.max_rel_error,
        build_s,
        run_s,
        timings.stopped_early,
    )
