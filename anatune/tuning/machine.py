"""The present machine: whether it is the one a spec describes, how many of its cores may be used, what it builds."""

from __future__ import annotations

import logging

from anatune.arguments import shown
from anatune.core.generation import generation_limit
from anatune.core.hardware.changed import difference
from anatune.core.hardware.spec import CpuSpec, GpuSpec, HardwareSpec
from anatune.core.workload.nest import Workload
from anatune.errors import DeviceError, MissingDependencyError, SpaceError
from anatune.resources import allowed_cores, usable_cores
from anatune.templates import Template, joined_templates, templates_of, tuning_template

__all__ = ["check_cpu", "check_gpu", "choose_threads", "gpu_templates", "usable_cores"]

_LOG = logging.getLogger(__name__)


def choose_threads(hardware: CpuSpec | GpuSpec, threads: int | None, usable: int | None = None) -> int:
    """Return the number of threads to plan or tune for: `threads`, by default all cores of the spec that can be used.

    1 for GPUs: their kernels have no threads on the host.

    Parameters
    ----------
    usable : int, optional
        Cores that can be used; by default those that this process may run on, without a choice within its quota.

    Raises
    ------
    SpaceError
        `threads` is no integer >= 1, or more than the CPU or the process has; or it is given for a GPU.
    """
    if hardware.most_threads is None:
        if threads is not None:
            raise SpaceError(f"threads is {shown(threads)}, but {hardware.name} is a GPU: leave threads out")
        return 1
    cores = hardware.most_threads
    if threads is None:
        return min(cores, usable_cores() if usable is None else usable)
    most = min(cores, allowed_cores() if usable is None else usable)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
        allowed = f", this process may use {most} of them" if most < cores else ""
        raise SpaceError(
            f"threads is {shown(threads)}, expected an integer from 1 to {most}: {hardware.name} has {cores} cores"
            f"{allowed}"
        )
    return threads


def check_cpu(hardware: CpuSpec, host: HardwareSpec | None = None) -> CpuSpec:
    """Return `hardware` if it describes the present machine's CPU.

    Parameters
    ----------
    host : CpuSpec, optional
        The present machine's; detected by default.

    Raises
    ------
    DeviceError
        It is of another architecture or instruction set.
    """
    if host is None:
        from anatune.measure.cpu.detect import detect_cpu

        host = detect_cpu()
    differs = difference(hardware, host)
    if differs is not None and hardware.name == host.name:
        raise DeviceError(
            f"the saved spec of {hardware.name} is {differs[0]}, this machine {differs[1]}: another machine, or "
            "an older anatune, wrote it; `anatune hw detect --force` writes it anew"
        )
    if differs is not None:
        raise DeviceError(
            f"{hardware.name} is {differs[0]}, this machine {differs[1]}: tuning measures on the present machine only; "
            "use --hw host, or tune there"
        )
    return hardware


def check_gpu(
    hardware: GpuSpec,
    present: HardwareSpec | None = None,
    *,
    device: int = 0,
    backend: str | None = None,
    built: bool = False,
) -> GpuSpec:
    """Return `hardware` if it describes the present machine's GPU.

    An H100 and an H200 differ in their memory only: its bandwidth, by clock and width, is compared, too.

    Parameters
    ----------
    present : GpuSpec, optional
        What is there; detected by default.
    device : int
        Number of the device, as CUDA counts.
    backend : str, optional
        As `anatune.measure.cuda.driver.open_device` takes it.
    built : bool
        Whether the kernels are built already, for the advice.

    Raises
    ------
    DeviceError
        There is no GPU, or another one.
    """
    if not hardware.arch.startswith("sm_"):
        raise DeviceError(
            f"{hardware.name} ({hardware.arch}) is no NVIDIA GPU, and only those can be measured on; `anatune plan` "
            "and `anatune prune` need no device"
        )
    if present is None:
        from anatune.measure.cuda.detect import gpu_detection

        gpus, why = gpu_detection(backend)
        if device >= len(gpus):
            advice = "`anatune tune --build-only` builds here what a machine with the GPU can measure"
            if built:
                advice = "take the folder of the manifest to a machine that has it"
            raise DeviceError(
                f"tuning for {hardware.name} needs that GPU: {why}; {advice}"
                if not gpus
                else f"GPU {device} does not exist, expected 0 to {len(gpus) - 1}"
            )
        present = gpus[device]
    differs = difference(hardware, present)
    if differs is None:
        return hardware
    there = f"this machine's GPU ({present.model}) is {differs[1]}"
    raise DeviceError(
        f"{hardware.name} is {differs[0]}, {there}: tuning measures on the present machine only; `anatune hw detect` "
        "writes a spec for --hw host_gpu"
    )


def gpu_templates(workload: Workload, hardware: GpuSpec, accuracy: str) -> tuple[Template, ...]:
    """Return the templates whose schedules are built for a GPU where nobody names one: they share the trials.

    The one that is tuned in the default's place, and those that join it; of these those alone that have kernels, where
    others can only be planned (`core.generation`). The log tells what was left out because Triton is not installed.
    """
    tuned = tuning_template(workload, hardware)
    known = (templates_of(hardware)[0], tuned)  # the default is part of what is wider
    joined = [one for one in joined_templates(workload, hardware, accuracy) if one not in known]
    found = (tuned, *filter(_is_buildable, joined))
    return tuple(one for one in found if not generation_limit(workload, hardware, [one.name])) or found


def _is_buildable(template: Template) -> bool:
    """Return whether a template's kernels can be built here, unless it is TVM that is missing."""
    from anatune.codegen.toolchains import toolchain_of

    try:
        if template.toolchain == "triton":
            toolchain_of(template.name).compiler_version()
    except MissingDependencyError as error:
        _LOG.warning("the schedules of the template %s are left out: %s", template.name, error)
        return False
    return True
