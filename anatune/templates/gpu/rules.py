"""What the rules of all templates for GPUs share."""

from __future__ import annotations

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError

__all__ = ["check_formats", "gpu_of"]


def gpu_of(schedule: Schedule) -> GpuSpec:
    """Return the device of a schedule of a template for GPUs."""
    hardware = schedule.hardware
    assert isinstance(hardware, GpuSpec)  # of the template's kind: `core.schedule`
    return hardware


def check_formats(workload: Workload) -> None:
    """Raise SpaceError for what no GPU template computes: 8-bit steps and zero points, results wider than operands.

    Raises
    ------
    SpaceError
        The workload has number formats that kernels of CPUs alone take.
    """
    if workload.is_quantised or workload.formats != workload.dtype:
        raise SpaceError(
            f"{workload.operator}: {workload.formats} with the steps ({', '.join(workload.epilogue)}) and its zero "
            "points is for CPUs; expected on a GPU one dtype for operands and result (int8: summed in int32) with the "
            "steps bias, add, relu; change the dtype or take a CPU's --hw"
        )
