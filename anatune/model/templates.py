"""Which analytical model belongs to a template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.workload import Workload
from anatune.errors import SpaceError

if TYPE_CHECKING:
    from anatune.model.cpu_model import CpuModel
    from anatune.model.gpu_model import GpuModel
    from anatune.model.tensorcore_model import TensorCoreModel

__all__ = ["make_model", "tuning_template"]


def tuning_template(workload: Workload, hardware: GpuSpec | CpuSpec) -> str:
    """Return the template that is tuned where nobody asks for one: with a staging pipeline wherever there can be one.

    It holds all schedules of the template "gpu"; arithmetic stays what the workload's dtype says, so tensor cores,
    which would round float32, have to be asked for.
    """
    if isinstance(hardware, CpuSpec):
        return "cpu"
    staged = bool(workload.reduction_axes)
    return "gpu_pipelined" if staged and hardware.arch.startswith("sm_") else "gpu"


def make_model(
    workload: Workload, hardware: GpuSpec | CpuSpec, template: str | None = None
) -> GpuModel | TensorCoreModel | CpuModel:
    """Return the analytical model of `workload` on `hardware` (with its tile space as ``.space``).

    Parameters
    ----------
    template : {"gpu", "gpu_pipelined", "gpu_tensorcore", "cpu"}, optional
        What the schedules look like; left out: "gpu" (CUDA cores) for GPUs, "cpu" for CPUs.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    known = ("gpu", "gpu_pipelined", "gpu_tensorcore") if isinstance(hardware, GpuSpec) else ("cpu",)
    if template not in (None, *known):
        raise SpaceError(
            f"template is {template!r:.60}, expected one of {', '.join(map(repr, known))} for {hardware.name}"
        )
    if isinstance(hardware, GpuSpec) and template == "gpu_tensorcore":
        from anatune.model.tensorcore_model import TensorCoreModel

        return TensorCoreModel(workload, hardware)
    if isinstance(hardware, GpuSpec) and template == "gpu_pipelined":
        from anatune.model.pipelined_model import PipelinedModel

        return PipelinedModel(workload, hardware)
    if isinstance(hardware, GpuSpec):
        from anatune.model.gpu_model import GpuModel

        return GpuModel(workload, hardware)
    from anatune.model.cpu_model import CpuModel

    return CpuModel(workload, hardware)
