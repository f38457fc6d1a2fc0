"""Measuring schedules on a GPU: built by processes here, or elsewhere before; checked and timed by a runner process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.templates import template_named
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, SpaceError
from anatune.measure.cuda.runner import GPU_PROTOCOL, GpuSetting, check_l2
from anatune.measure.run.build_processes import Builders, Job, Limits
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.correctness import Expected, expected, random_inputs
from anatune.measure.run.measurer import BaseMeasurer
from anatune.measure.run.process import Worker, refusal, wait_for
from anatune.measure.run.rounding import operands_used
from anatune.measure.run.timing import TimingProtocol

__all__ = ["Built", "GpuMeasurer", "ManifestMeasurer", "build_schedules"]

_BUILDER = "anatune.codegen.cuda.artifact:build_schedule"
_REFERENCE = "anatune.codegen.cuda.artifact:build_reference"
_SETUP = "anatune.measure.run.build_tasks:set_up_gpu"

_TRUNCATION = 4.0
"""Factor on the allowed error of tensor cores: sums are cut off, not rounded, so that errors add up instead of
cancelling. Source: [Fasi2021] (V100, T4, A100); four times covers sums of some 10,000 products."""

Built = GpuArtifact | Measurement
"""What became of a build: the artifact, or the outcome and the message that say why there is none."""


class GpuMeasurer(BaseMeasurer):
    """Builds, checks and times schedules of one workload on this machine's GPU; a context manager.

    As `measure.run.measurer.Measurer`; the runner process holds the device. A kernel that hangs costs that process, and
    so does one that faults: a CUDA context does not survive it. Both are outcomes. If the new process finds no device
    any more, that is an error.

    Parameters
    ----------
    workload, hardware
        What the schedules compute, for which GPU (this machine's).
    threads : int
        1.
    template : str
        Of the schedules: "cuda", "pipelined" or "tensorcore", which rounds float32 operands to tf32.
    limits
        Time and memory of one candidate; the memory is that of builders, on the host.
    seed : int
        Of the random operands.
    protocol
        How candidates are timed.
    l2 : str
        "flush": the L2 cache holds nothing of the operands when a launch begins, as in a network, where other layers
        ran since. "warm": it holds what the launch before left.
    device : int
        Number of the device, as CUDA counts.
    backend : str, optional
        "pycuda" or "cuda-bindings"; by default the one that works.
    builder, reference : str
        ``module:function`` that builds a schedule, (schedule, folder, threads=) -> GpuArtifact; that builds the kernel
        timed beside all candidates, (kind, hardware, folder) -> GpuArtifact.
    builder_setup : str
        ``module:function`` that builder processes begin with.

    Raises
    ------
    DeviceError
        The hardware is no GPU, or there is no GPU that can be used.
    MissingDependencyError
        TVM or NVRTC is not installed.
    RunError
        The processes cannot be started.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        threads: int = 1,
        template: str = "cuda",
        limits: Limits | None = None,
        seed: int = 0,
        protocol: TimingProtocol | None = None,
        l2: str = "flush",
        device: int = 0,
        backend: str | None = None,
        builder: str = _BUILDER,
        reference: str = _REFERENCE,
        builder_setup: str = _SETUP,
    ) -> None:
        if not isinstance(hardware, GpuSpec):
            raise DeviceError(f"{hardware.name} is no GPU; anatune.measure.run.measurer measures on CPUs")
        super().__init__(workload, hardware, threads=threads, limits=limits, seed=seed)
        self._template = template
        self._protocol, self._l2 = protocol or GPU_PROTOCOL, check_l2(l2)
        self._device, self._backend = device, backend
        self._builder_entry, self._reference_entry, self._builder_setup = builder, reference, builder_setup

    def _make_builders(self, environment: dict[str, str]) -> Builders:
        cores = self._cores
        return Builders(
            self._builder_entry,
            cores.num_builders,
            self.limits,
            cores=cores.builders,
            environment=environment,
            setup=self._builder_setup,
        )

    def _make_runner(self, environment: dict[str, str]) -> Worker:
        # No limit on its memory: drivers reserve address space by the size of the device.
        return Worker("runner", cores=self._cores.runner, environment=environment, setup_s=self.limits.start_s)

    def _begin_reference(self, builders: Builders, folder: Path) -> Worker | None:
        return builders.begin_reference(self._reference_entry, self.hardware, folder)

    def _expected(self) -> Expected:
        sample = Schedule(self.workload, self.hardware, self._template, {})
        want = expected(self.workload, operands_used(sample, random_inputs(self.workload, self._seed)))
        cuts_off = template_named(self._template).tensor_cores
        return want._replace(tolerance=_TRUNCATION * want.tolerance) if cuts_off else want

    def _job(self, schedule: Schedule) -> Job:
        if schedule.template != self._template:
            raise SpaceError(f"schedule is of the template {schedule.template!r}, expected {self._template!r}")
        return super()._job(schedule)

    def _setting(self, reference: Any, path: Path, want: Expected) -> GpuSetting:
        return GpuSetting(
            self.workload,
            self._seed,
            str(path),
            want.scale,
            want.tolerance,
            reference,
            self._protocol,
            self._l2,
            self._device,
            self._backend,
        )


class ManifestMeasurer(GpuMeasurer):
    """Checks and times what was built elsewhere: neither TVM nor a compiler is needed.

    Parameters
    ----------
    workload, hardware, threads, template, limits, seed, protocol, l2, device, backend
        As for `GpuMeasurer`.
    built : mapping of str to Built
        By key of the schedule.
    reference : GpuArtifact
        The kernel timed beside all candidates.
    """

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        built: Mapping[str, Built],
        reference: GpuArtifact,
        **more: Any,
    ) -> None:
        super().__init__(workload, hardware, **more)
        self._built, self._reference_artifact = built, reference

    def _make_builders(self, environment: dict[str, str]) -> Builders:
        return Builders(self._builder_entry, 0, self.limits)

    def _begin_reference(self, builders: Builders, folder: Path) -> None:
        return None

    def _setting(self, reference: Any, path: Path, want: Expected) -> GpuSetting:
        return super()._setting(self._reference_artifact, path, want)

    def _job(self, schedule: Schedule) -> Job:
        job = super()._job(schedule)
        known = self._built.get(schedule.key)
        if known is None:
            raise SpaceError(f"the manifest has no kernel for the schedule {schedule.key}; build it again")
        if isinstance(known, Measurement):
            job.measurement = known
        else:
            job.artifact = known
        return job


def build_schedules(
    schedules: Iterable[Schedule],
    hardware: GpuSpec,
    folder: Path,
    *,
    limits: Limits | None = None,
    builder: str = _BUILDER,
    reference: str = _REFERENCE,
    builder_setup: str = _SETUP,
) -> Iterator[GpuArtifact | tuple[Schedule, Built]]:
    """Build GPU schedules without measuring them, all on their own processes; no GPU is needed.

    Parameters
    ----------
    schedules
        For `hardware`.
    folder : Path
        Exists; gets the cubins.
    limits, builder, reference, builder_setup
        As for `GpuMeasurer`.

    Yields
    ------
    GpuArtifact, then (Schedule, Built)
        First the reference kernel's; then each schedule with its artifact or the measurement that says what went wrong,
        in the order in which they are done.

    Raises
    ------
    MissingDependencyError
        TVM or NVRTC is not installed.
    RunError
        The processes cannot be started; the reference kernel cannot be built.
    """
    chosen = limits or Limits()
    cores = plan_cores(1, physical_cores())
    count = cores.num_builders + cores.overlap  # nothing is timed: the runner's core builds, too
    environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    builders = Builders(builder, count, chosen, environment=environment, setup=builder_setup)
    try:
        builders.start()
        first = builders.begin_reference(reference, hardware, folder)
        while (reply := first.poll(1.0)) is None:
            pass
        if reply.kind != "value":
            raise refusal(reply, "the reference kernel cannot be built")
        yield reply.value
        jobs = [Job(schedule, folder) for schedule in schedules]
        while jobs:
            builders.collect(jobs)
            for job in [job for job in jobs if job.settled]:
                jobs.remove(job)
                yield job.schedule, job.artifact if job.artifact is not None else _failed(job)
            builders.begin(jobs)
            if jobs:
                wait_for(builders.workers, 1.0)
    finally:
        builders.kill()


def _failed(job: Job) -> Measurement:
    assert job.measurement is not None
    return msgspec.structs.replace(job.measurement, build_s=job.build_s)
