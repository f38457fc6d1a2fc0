"""Measuring schedules with builder processes and a runner process; failures become outcomes, not exceptions."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypedDict

import msgspec
import numpy as np

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.errors import AnatuneError, DeviceError, RunError, no_scratch
from anatune.files import scratch_folder
from anatune.measure.place import Ask, WorkerState, asking, check_workload
from anatune.measure.run.build_processes import (
    SET_UP,
    BuildJob,
    BuildProcesses,
    KeptBuilds,
    Limits,
    limit_to_one_thread,
)
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.correctness import Expected, compute_expected, random_inputs
from anatune.measure.run.process import Worker, wait_for
from anatune.measure.run.runner import Setting
from anatune.measure.run.runner_process import RunnerProcess
from anatune.measure.run.timing import TimingProtocol

__all__ = ["Entries", "Limits", "Measurer", "MeasurerSettings"]

if TYPE_CHECKING:
    from typing import Self, Unpack


class Entries(NamedTuple):
    """The functions that the processes for a kind of device run, each as ``module:function``.

    Attributes
    ----------
    builder : str
        Builds a schedule: (schedule, folder, threads=) -> artifact.
    reference : str
        Builds the reference kernel: (hardware, folder) -> artifact.
    session : str
        Checks and times artifacts: (setting, **options) -> `measure.run.runner.RunSession`.
    builder_setup : str
        The function that builder processes call first.
    """

    builder: str
    reference: str
    session: str
    builder_setup: str = SET_UP


class MeasurerSettings(TypedDict, total=False):
    """Settings of every measurer, besides the workload, the device and the settings of its kind of device.

    Attributes
    ----------
    threads : int
        Number of threads of a kernel; 1 by default.
    limits : Limits or None
        Limits on the time and memory of one trial.
    seed : int
        Seed of the random operands.
    protocol : TimingProtocol or None
        The timing protocol; by default that of the kind of device.
    entries : Entries or None
        The functions that the processes run; by default those of the kind of device.
    least_samples : int
        Fewest samples of every schedule, see `TimingProtocol.needed_samples`; 1 by default.
    """

    threads: int
    limits: Limits | None
    seed: int
    protocol: TimingProtocol | None
    entries: Entries | None
    least_samples: int


class Measurer:
    """Builds, checks and times schedules of one workload; a context manager. Each kind of device has a subclass.

    A failure of a schedule (no program, a build that hangs, a crash, a wrong result) is its outcome. Builders and the
    runner are processes that live until the end, and are replaced if they die. If there are enough cores, building
    overlaps timing, each pinned to its own cores; otherwise they take turns. If few cores build, builders on the
    runner's cores help between runs. The calling process only waits while a kernel is timed. Temporary files are
    removed at the end, also after an error, but not if this process is killed.

    Not safe to share between threads; processes end with the thread that entered it. For a given machine, seed and
    input the outcomes are the same (times are not).

    Parameters
    ----------
    workload, hardware
        The workload and the device of the schedules.
    options : mapping of str to object
        Arguments of the session besides its setting.
    settings
        See `MeasurerSettings`.

    Attributes
    ----------
    usual_entries, usual_protocol
        Defaults for the kind of device.
    incumbent : float or None
        Best time over the reference kernel's so far; timing stops early for clearly slower schedules. It may be set,
        for example from records (`Measurement.relative`).

    Raises
    ------
    MissingDependencyError
        A package that building needs is not installed.
    RunError
        The processes cannot be started.
    """

    usual_entries: ClassVar[Entries]
    usual_protocol: ClassVar[TimingProtocol]

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        options: Mapping[str, object],
        **settings: Unpack[MeasurerSettings],
    ) -> None:
        threads = settings.get("threads", 1)
        self.workload, self.hardware, self.threads = workload, hardware, threads
        self.limits = settings.get("limits") or Limits()
        self.incumbent: float | None = None
        self._seed, self._options = settings.get("seed", 0), options
        protocol = settings.get("protocol") or self.usual_protocol
        needed = max(protocol.needed_samples, settings.get("least_samples", 1))
        self._protocol = msgspec.structs.replace(protocol, needed_samples=needed)
        self._entries = settings.get("entries") or self.usual_entries
        self._cores = plan_cores(threads, physical_cores())
        self._numbers = itertools.count()
        self._kept: KeptBuilds[BuildJob] = KeptBuilds(lambda job: shutil.rmtree(job.folder, ignore_errors=True))
        self._folder: Path | None = None
        self._builders: BuildProcesses | None = None
        self._runners: list[RunnerProcess] = []
        self._built_reference: object = None

    # -- methods that subclasses override -------------------------------------------------------------------------

    def _make_builders(self, environment: Mapping[str, str]) -> BuildProcesses:
        """Return the builder processes, not started."""
        return BuildProcesses(
            self._entries.builder,
            [self._cores.builders] * self._cores.num_builders,
            self.limits,
            guests=[self._cores.runner] * self._cores.num_guests,
            threads=self.threads,
            environment=environment,
            setup=self._entries.builder_setup,
        )

    def _make_runner(self, environment: Mapping[str, str]) -> Worker:
        """Return the runner process, not started."""
        # No limit on its memory, because GPU drivers reserve address space of the size of the device.
        return Worker("runner", cores=self._cores.runner, environment=environment, setup_s=self.limits.start_s)

    def _make_runners(self, environment: Mapping[str, str]) -> list[RunnerProcess]:
        """Return a runner process for each device, not started."""
        return [RunnerProcess(self._make_runner(environment), self.limits)]

    def _handle_refusal(self, runner: RunnerProcess, error: AnatuneError) -> None:
        """Continue without a runner whose device cannot be used, or raise the error."""
        raise error

    def _begin_reference(self, builders: BuildProcesses, folder: Path) -> None:
        """Begin to build the reference kernel."""
        builders.begin_reference(self._entries.reference, self.hardware, folder)

    def _reference(self, builders: BuildProcesses) -> object:
        """Return the artifact of the reference kernel."""
        return builders.reference()

    def _expected_result(self) -> Expected:
        """Return the expected result of kernels."""
        return compute_expected(self.workload, random_inputs(self.workload, self._seed))

    # -- measuring ------------------------------------------------------------------------------------------------

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and remove the temporary files; may be called twice."""
        if self._builders is not None:
            self._builders.kill()
        for runner in self._runners:
            runner.worker.kill()
        self._builders, self._runners = None, []
        self._kept.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _start(self, folder: Path) -> None:
        """Start all processes; compute the expected result while they import TVM."""
        scratch = folder / "tmp"
        scratch.mkdir()
        environment = limit_to_one_thread({"TMPDIR": str(scratch)})
        self._builders = builders = self._make_builders(environment)
        self._runners = self._make_runners(environment)
        builders.start()
        for runner in self._runners:
            runner.worker.start()
        self._begin_reference(builders, folder / "reference")
        self._set_up(folder, lambda: self._reference(builders))

    def turn_to(self, workload: Workload) -> None:
        """Measure schedules of `workload` from now on with the same processes, and forget the incumbent.

        Raises
        ------
        RunError
            The runner cannot be set up.
        """
        self._drain()
        assert self._folder is not None
        reference = self._built_reference
        self.workload, self.incumbent = workload, None
        self._kept.clear()
        self._set_up(self._folder, lambda: reference)

    def _set_up(self, folder: Path, reference: Callable[[], object]) -> None:
        """Send the runners the expected result and the `reference` kernel."""
        want = self._expected_result()
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
        for runner in self._runners:
            runner.begin_set_up(setting)
        for runner in list(self._runners):
            try:
                runner.finish_set_up()
            except (RunError, DeviceError) as error:
                self._give_up(runner, error)

    def measure(self, schedules: Iterable[Schedule]) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure schedules as `serve` does."""
        return self.serve(asking(schedules))

    def serve(self, ask: Ask) -> Iterator[tuple[Schedule, Measurement]]:
        """Measure the schedules that `ask` returns, and yield each result as soon as it is ready.

        With one device the results are in the order of the schedules. `ask` is called a few schedules ahead, so that
        the builders are busy, and only between runs, so that a strategy disturbs no timing. `ask` returns None if it
        has no schedule before the next result is taken.

        Raises
        ------
        SpaceError
            A schedule of another workload.
        RunError
            A process cannot be started.
        MissingDependencyError
            A package is missing.
        """
        builders = self._drain()
        count = len(builders.workers)
        ahead = count + 2 if self._cores.overlap else 2 * count + 2
        jobs: list[BuildJob] = []
        may_ask = True
        while True:
            builders.collect(jobs)
            self._collect_runs()
            running = self._num_running()
            if not running:
                builders.yield_cores(False)
            if running < len(self._runners):
                while (job := self._next_job(jobs)) is not None:
                    jobs.remove(job)
                    assert job.measurement is not None
                    self._keep(job)
                    yield job.schedule, job.measurement
                    may_ask = True
                while may_ask and len(jobs) < ahead + running and self._may_build(jobs):
                    schedule = ask()
                    if schedule is None:
                        may_ask = False
                    else:
                        jobs.append(self._job(schedule))
                if not jobs:
                    return
            builders.begin(jobs)
            self._begin_runs(builders, jobs)
            if self._next_job(jobs) is None or self._num_running() == len(self._runners):
                wait_for([*(runner.worker for runner in self._runners), *builders.workers], 1.0)

    def _give_up(self, runner: RunnerProcess, error: AnatuneError) -> None:
        """Continue without a runner; raise the error if it was the last one."""
        self._handle_refusal(runner, error)
        self._runners.remove(runner)
        runner.worker.kill()
        if not self._runners:
            raise error

    def _num_running(self) -> int:
        return sum(runner.job is not None for runner in self._runners)

    @property
    def _in_order(self) -> bool:
        """Return whether results must be in the order of the schedules, which is so with one device."""
        return len(self._runners) < 2

    def _next_job(self, jobs: Sequence[BuildJob]) -> BuildJob | None:
        """Return the next job whose result can be yielded."""
        return next((job for job in jobs[: 1 if self._in_order else None] if job.measurement is not None), None)

    def _collect_runs(self) -> None:
        for runner in list(self._runners):
            try:
                job = runner.collect(self.incumbent)
            except (RunError, DeviceError) as error:
                self._give_up(runner, error)  # another runner takes its jobs
                continue
            if job is None or job.measurement is None:
                continue
            relative = job.measurement.relative
            if relative is not None and not job.measurement.stopped_early:
                self.incumbent = relative if self.incumbent is None else min(self.incumbent, relative)

    def _begin_runs(self, builders: BuildProcesses, jobs: Sequence[BuildJob]) -> None:
        """Give built jobs to idle devices; if building and timing share cores, only while nothing is built."""
        if not (self._cores.overlap or all(job.settled for job in jobs)):
            return
        running = [runner.job for runner in self._runners]
        ready = [
            job
            for job in jobs[: 1 if self._in_order else None]
            if job.artifact is not None and job.measurement is None and job not in running
        ]
        idle = [runner for runner in self._runners if runner.job is None]
        for runner, job in zip(idle, ready, strict=False):
            builders.yield_cores(True)
            runner.begin(job, self.incumbent)

    def workers(self) -> tuple[WorkerState, ...]:
        """Return no workers, because this machine measures."""
        return ()

    def compare(self, schedules: Sequence[Schedule], budget_s: float) -> list[Measurement]:
        """Time schedules in turn (A B C A B C ...) until a paired t-test at 95 % decides or `budget_s` has passed.

        Returns
        -------
        list of Measurement
            Measurements in the given order. Schedules that dropped out are `stopped_early`; compare medians of
            `relative`.

        Raises
        ------
        SpaceError
            A schedule of another workload.
        RunError
            A process cannot be started.
        """
        builders = self._drain()
        jobs = [self._job(schedule) for schedule in schedules]
        for job in jobs:
            kept_job = self._kept.get(job.schedule.key)
            if kept_job is not None:
                job.artifact, job.build_s = kept_job.artifact, kept_job.build_s
        for _ in builders.finish(job for job in jobs if not job.settled):
            pass  # ended jobs hold their outcome
        built = [job for job in jobs if job.artifact is not None]
        while any(job.measurement is None for job in built):
            try:
                self._runners[0].contest(built, budget_s)
            except (RunError, DeviceError) as error:
                self._give_up(self._runners[0], error)
        for job in jobs:
            shutil.rmtree(job.folder, ignore_errors=True)
        return [job.measurement for job in jobs if job.measurement is not None]

    def _drain(self) -> BuildProcesses:
        """Return the builders, after waiting for runs of an abandoned `serve`."""
        if not self._runners or self._builders is None:
            raise RunError("the measurer is not open; use it in a with statement")
        self._builders.yield_cores(False)
        for worker in self._builders.workers:
            if worker.busy:
                worker.wait(self.limits.start_s + max(self.limits.build_s, self.limits.run_s))
        for runner in self._runners:
            runner.drain()
        return self._builders

    def _job(self, schedule: Schedule) -> BuildJob:
        assert self._folder is not None
        return BuildJob(check_workload(self.workload, schedule), self._folder / f"build-{next(self._numbers)}")

    def _may_build(self, jobs: Iterable[BuildJob]) -> bool:
        """Return whether another build may begin; if cores are shared, not while a built kernel waits for timing."""
        return self._cores.overlap or not any(job.settled for job in jobs)

    def _keep(self, job: BuildJob) -> None:
        """Keep the build of a job if it is one of the best; remove it otherwise."""
        assert job.measurement is not None
        self._kept.settle(job.schedule.key, job, job.measurement.relative)
