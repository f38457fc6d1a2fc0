"""Measuring schedules on a GPU: built by processes here, or elsewhere before; checked and timed by a runner process."""

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
    """Return what processes run for sessions of a template: they begin with what its own toolchain needs."""
    return GPU_ENTRIES._replace(builder_setup=entry_of(template, "set_up"))


Built = GpuArtifact | Measurement
"""What became of a build: the artifact, or the outcome and the message that say why there is none."""


class GpuMeasurer(Measurer):
    """Builds, checks and times schedules of one workload on this machine's GPU; see `Measurer`.

    The runner process holds the device. A kernel that hangs costs that process, and so does one that faults: a CUDA
    context does not survive it. Both are outcomes. If the new process finds no device any more, that is an error.

    Parameters
    ----------
    hardware
        A GPU: this machine's.
    template : str
        Of the schedules; others may stand beside it.
    l2 : str
        "flush": the L2 cache holds nothing of the operands when a launch begins, as in a network, where other layers
        ran since. "warm": it holds what the launch before left.
    device : int
        Number of the device, as CUDA counts.
    backend : str, optional
        "pycuda" or "cuda-bindings"; by default the one that works.
    settings
        See `MeasurerSettings`; there is one thread, and the limit of memory is that of builders, on the host.

    Raises
    ------
    DeviceError
        The hardware is no GPU, or there is no GPU that can be used.
    SpaceError
        No such `l2`.
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
            raise DeviceError(f"{hardware.name} is no GPU; anatune.measure.cpu.measurer measures on CPUs")
        options = {"l2": check_l2(l2), "device": device, "backend": backend}
        if settings.get("entries") is None:
            settings["entries"] = entries_for(template)
        super().__init__(workload, hardware, options, **settings)


class ManifestMeasurer(Prebuilt, GpuMeasurer):
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


def build_schedules(
    schedules: Sequence[Schedule],
    hardware: GpuSpec,
    folder: Path,
    *,
    limits: Limits | None = None,
    entries: Entries | None = None,
) -> Iterator[GpuArtifact | tuple[Schedule, Built]]:
    """Build GPU schedules without measuring them, all on their own processes; no GPU is needed.

    Parameters
    ----------
    schedules
        For `hardware`, of one template.
    folder : Path
        Exists; gets the cubins.
    limits, entries
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
    chosen, entries = limits or Limits(), entries or entries_for(schedules[0].template)
    cores = plan_cores(1, physical_cores())
    count = cores.num_builders + cores.overlap  # nothing is timed: the runner's core builds, too
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
    """Return how a job ended."""
    if isinstance(job.artifact, GpuArtifact):
        return job.artifact
    assert job.measurement is not None
    return msgspec.structs.replace(job.measurement, build_s=job.build_s)
