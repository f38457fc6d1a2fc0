"""Checks of this machine: whether a spec describes it, how many cores can be used, which templates can be built."""

from __future__ import annotations

import logging

from anatune.arguments import quote
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
    """Return the number of threads of a kernel: `threads`, or by default all usable cores of the spec; 1 for GPUs.

    Parameters
    ----------
    usable : int, optional
        Number of usable cores; by default those on which this process may run, and without `threads` also its quota.

    Raises
    ------
    SpaceError
        `threads` is no integer >= 1, or more than the CPU or the process has; or it is given for a GPU.
    """
    if hardware.most_threads is None:
        if threads is not None:
            raise SpaceError(f"threads is {quote(threads)}, but {hardware.name} is a GPU; leave threads out")
        return 1
    cores = hardware.most_threads
    if threads is None:
        return min(cores, usable_cores() if usable is None else usable)
    most = min(cores, allowed_cores() if usable is None else usable)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= most:
        allowed = f", this process may use {most} of them" if most < cores else ""
        raise SpaceError(
            f"threads is {quote(threads)}, expected an integer from 1 to {most}: {hardware.name} has {cores} cores"
            f"{allowed}"
        )
    return threads


def check_cpu(hardware: CpuSpec, host: HardwareSpec | None = None) -> CpuSpec:
    """Return `hardware` if it describes the CPU of this machine.

    Parameters
    ----------
    host : CpuSpec, optional
        The spec of this machine; detected by default.

    Raises
    ------
    DeviceError
        The CPU has another architecture or instruction set.
    """
    if host is None:
        from anatune.measure.cpu.detect import detect_cpu

        host = detect_cpu()
    differs = difference(hardware, host)
    if differs is not None and hardware.name == host.name:
        raise DeviceError(
            f"the saved spec {hardware.name} describes {differs[0]}, but this machine is {differs[1]}: the spec was "
            "written on another machine, or by an older anatune; `anatune hw detect --force` writes a new one"
        )
    if differs is not None:
        raise DeviceError(
            f"the spec {hardware.name} describes {differs[0]}, but this machine is {differs[1]}, and tuning measures "
            "on this machine; use --hw host, or tune on that device"
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
    """Return `hardware` if it describes a GPU of this machine.

    The bandwidth of the memory is compared as well, because an H100 and an H200 differ only in that.

    Parameters
    ----------
    present : GpuSpec, optional
        The spec of that GPU; detected by default.
    device : int
        The CUDA device number.
    backend : str, optional
        The backend, as for `anatune.measure.cuda.driver.open_device`.
    built : bool
        Whether the kernels are built already, for the advice in the message.

    Raises
    ------
    DeviceError
        There is no GPU, or another one.
    """
    if not hardware.arch.startswith("sm_"):
        raise DeviceError(
            f"{hardware.name} ({hardware.arch}) is no NVIDIA GPU, and tuning measures on NVIDIA GPUs and CPUs only; "
            "`anatune plan` and `anatune prune` need no device"
        )
    if present is None:
        from anatune.measure.cuda.detect import gpu_detection

        gpus, why = gpu_detection(backend)
        if device >= len(gpus):
            advice = "`anatune tune --build-only` builds kernels here for a machine with that GPU"
            if built:
                advice = "copy the folder of the manifest to a machine that has it"
            raise DeviceError(
                f"tuning for {hardware.name} needs that GPU: {why}; {advice}"
                if not gpus
                else f"GPU {device} does not exist, expected 0 to {len(gpus) - 1}"
            )
        present = gpus[device]
    differs = difference(hardware, present)
    if differs is None:
        return hardware
    there = f"the GPU of this machine ({present.model}) is {differs[1]}"
    raise DeviceError(
        f"the spec {hardware.name} describes {differs[0]}, but {there}, and tuning measures on this machine; run "
        "`anatune hw detect` and use --hw host_gpu"
    )


def gpu_templates(workload: Workload, hardware: GpuSpec, accuracy: str) -> tuple[Template, ...]:
    """Return the templates that share the trials of a session on a GPU if no template is named.

    These are the template that tuning uses instead of the default, and those that join it, if kernels can be
    generated from them (`core.generation`). Templates left out because Triton is not installed are logged.
    """
    tuned = tuning_template(workload, hardware)
    covered = (templates_of(hardware)[0], tuned)  # the tuning template contains the schedules of the default
    joined = [one for one in joined_templates(workload, hardware, accuracy) if one not in covered]
    sharing = (tuned, *filter(_is_buildable, joined))
    return tuple(one for one in sharing if not generation_limit(workload, hardware, [one.name])) or sharing


def _is_buildable(template: Template) -> bool:
    """Return whether the compiler for a template's kernels is installed; TVM is not checked."""
    from anatune.codegen.toolchains import find_toolchain

    try:
        if template.toolchain == "triton":
            find_toolchain(template.name).compiler_version()
    except MissingDependencyError as error:
        _LOG.warning("the template %s is left out: %s", template.name, error)
        return False
    return True
