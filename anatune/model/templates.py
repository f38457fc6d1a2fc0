"""Which templates a device has, and which analytical model belongs to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.arguments import checked_choice
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.template_names import CPU, CUDA, GPU_TEMPLATES, PIPELINED, TENSORCORE, template_name
from anatune.core.workload.nest import Workload

if TYPE_CHECKING:
    from anatune.model.cpu.model import CpuModel
    from anatune.model.cuda.model import GpuModel
    from anatune.model.tensorcore.model import TensorCoreModel

__all__ = ["make_model", "template_of", "tuning_template"]


def template_of(name: str, hardware: GpuSpec | CpuSpec) -> str:
    """Return the template of a device that is asked for by its name, or by its former one.

    Raises
    ------
    SpaceError
        There is none of that name for the device.
    """
    known = GPU_TEMPLATES if isinstance(hardware, GpuSpec) else (CPU,)
    return checked_choice("template", template_name(name), known, otherwise=f"for {hardware.name}")


def tuning_template(workload: Workload, hardware: GpuSpec | CpuSpec) -> str:
    """Return the template that is tuned where nobody asks for one: with a staging pipeline wherever there can be one.

    It holds all schedules of the template "cuda"; arithmetic stays what the workload's dtype says, so tensor cores,
    which would round float32, have to be asked for.
    """
    if isinstance(hardware, CpuSpec):
        return CPU
    staged = bool(workload.reduction_axes)
    return PIPELINED if staged and hardware.arch.startswith("sm_") else CUDA


def make_model(
    workload: Workload, hardware: GpuSpec | CpuSpec, template: str | None = None
) -> GpuModel | TensorCoreModel | CpuModel:
    """Return the analytical model of `workload` on `hardware` (with its tile space as ``.space``).

    Parameters
    ----------
    template : {"cuda", "pipelined", "tensorcore", "cpu"}, optional
        What the schedules look like; left out: "cuda" (CUDA cores) for GPUs, "cpu" for CPUs.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    template = None if template is None else template_of(template, hardware)
    if isinstance(hardware, GpuSpec) and template == TENSORCORE:
        from anatune.model.tensorcore.model import TensorCoreModel

        return TensorCoreModel(workload, hardware)
    if isinstance(hardware, GpuSpec) and template == PIPELINED:
        from anatune.model.cuda.pipelined import PipelinedModel

        return PipelinedModel(workload, hardware)
    if isinstance(hardware, GpuSpec):
        from anatune.model.cuda.model import GpuModel

        return GpuModel(workload, hardware)
    from anatune.model.cpu.model import CpuModel

    return CpuModel(workload, hardware)
