"""Measuring schedules on a GPU: kernels are built here or on another machine, and a runner process times them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from anatune.codegen.cuda.artifact import GpuArtifact
from anatune.codegen.toolchains import entry_of
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError
from anatune.measure.cuda.runner import GPU_PROTOCOL, check_l2
from anatune.measure.run.build_processes import BuildJob, BuildProcesses, Limits
from anatune.measure.run.cores import physical_cores, plan_cores
from anatune.measure.run.measurer import Entries, Measurer, MeasurerSettings
from anatune.measure.run.prebuilt import Prebuilt
from anatune.templates import CUDA

if TYPE_CHECKING:
    from typing import Unpack

GPU_ENTRIES = Entries(
    builder="anatune.codegen.toolchains:build_schedule",
    reference="anatune.codegen.cuda.artifact:build_reference",
    session="anatune.measure.cuda.runner:GpuSession",
    builder_setup="anatune.codegen.cuda.artifact:set_up",
)


def entries_for(template: str) -> Entries:
    """Return the entries for sessions of a template, whose builders set up its toolchain."""
    return GPU_ENTRIES._replace(builder_setup=entry_of(template, "set_up"))


Built = GpuArtifact | Measurement
"""The result of a build: the artifact, or a measurement with the outcome and the message of the failure."""


class GpuMeasurer(Measurer):
    """A measurer for this machine's GPU, see `Measurer`.

    The runner process holds the device. A kernel that hangs or faults ends that process, because a CUDA context does
    not survive a fault; both are outcomes. If a new process finds no device any more, that is an error.

    Parameters
    ----------
    hardware
        The spec of this machine's GPU.
    template : str
        Template of the schedules; other templates are possible, too.
    l2 : str
        "flush": the L2 cache is flushed before each launch, as in a network, where other layers ran since. "warm": it
        holds the data of the previous launch.
    device : int
        The CUDA device number.
    backend : str, optional
        "pycuda" or "cuda-bindings"; by default the one that works.
    settings
        See `MeasurerSettings`; there is one thread, and the memory limit is for builders on the host.

    Raises
    ------
    DeviceError
        The hardware is no GPU, or no GPU can be used.
    SpaceError
        `l2` has another value.
    """

    usual_entries, usual_protocol = GPU_ENTRIES, GPU_PROTOCOL

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec | GpuSpec,
        *,
        template: str = CUDA.name,
        l2: str = "flush",
        device: int = 0,
        backend: str | None = None,
        **settings: Unpack[MeasurerSettings],
    ) -> None:
        if hardware.kind != "gpu":
            raise DeviceError(f"{hardware.name} is no GPU; use anatune.measure.cpu.measurer for CPUs")
        options = {"l2": check_l2(l2), "device": device, "backend": backend}
        if settings.get("entries") is None:
            settings["entries"] = entries_for(template)
        super().__init__(workload, hardware, options, **settings)


class ManifestMeasurer(Prebuilt, GpuMeasurer):
    """A measurer of kernels that were built on another machine, without TVM or a compiler.

    Parameters
    ----------
    workload, hardware, threads, template, limits, seed, protocol, l2, device, backend
        As for `GpuMeasurer`.
    built : mapping of str to Built
        Key of a schedule -> result of its build.
    reference : GpuArtifact
        The reference kernel.
    """


def build_schedules(
    schedules: Sequence[Schedule],
    hardware: GpuSpec,
    folder: Path,
    *,
    limits: Limits | None = None,
    entries: Entries | None = None,
) -> Iterator[GpuArtifact | tuple[Schedule, Built]]:
    """Build GPU schedules in separate processes without measuring them; no GPU is needed.

    Parameters
    ----------
    schedules
        Schedules for `hardware`, of one template.
    folder : Path
        An existing folder for the cubins.
    limits, entries
        As for `GpuMeasurer`.

    Yields
    ------
    GpuArtifact, then (Schedule, Built)
        First the reference kernel; then each schedule with its artifact or the measurement of its failure, in the order
        in which builds end.

    Raises
    ------
    MissingDependencyError
        TVM or NVRTC is not installed.
    RunError
        The processes cannot be started; the reference kernel cannot be built.
    """
    chosen, entries = limits or Limits(), entries or entries_for(schedules[0].template)
    cores = plan_cores(1, physical_cores())
    count = cores.num_builders + cores.overlap  # nothing is timed, so that the runner's core can build as well
    builders = BuildProcesses(entries.builder, [()] * count, chosen, setup=entries.builder_setup)
    try:
        builders.start()
        builders.begin_reference(entries.reference, hardware, folder)
        reference = builders.reference()
        assert isinstance(reference, GpuArtifact)
        yield reference
        for job in builders.finish(BuildJob(schedule, folder) for schedule in schedules):
            yield job.schedule, _outcome(job)
    finally:
        builders.kill()


def _outcome(job: BuildJob) -> Built:
    """Return the result of a job that ended."""
    if isinstance(job.artifact, GpuArtifact):
        return job.artifact
    assert job.measurement is not None
    return msgspec.structs.replace(job.measurement, build_s=job.build_s)
