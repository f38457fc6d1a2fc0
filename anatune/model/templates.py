"""What people call templates, and which analytical model belongs to one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware import CpuSpec, GpuSpec
from anatune.core.workload import Workload
from anatune.errors import SpaceError

if TYPE_CHECKING:
    from anatune.model.cpu_model import CpuModel
    from anatune.model.gpu_model import GpuModel
    from anatune.model.tensorcore_model import TensorCoreModel

__all__ = ["TEMPLATES", "make_model", "template_of", "tuning_template"]

TEMPLATES = {"cuda": "gpu", "pipelined": "gpu_pipelined", "tensorcore": "gpu_tensorcore", "cpu": "cpu"}
"""Word -> template, as schedules name it. Whoever asks for a template may use either; messages have the words."""


def template_of(name: str, hardware: GpuSpec | CpuSpec) -> str:
    """Return the template that a word or a template's own name means on a device.

    Raises
    ------
    SpaceError
        There is none of that name for the device.
    """
    words = tuple(TEMPLATES)[:3] if isinstance(hardware, GpuSpec) else ("cpu",)
    known = {word: TEMPLATES[word] for word in words}
    template = known.get(name, name) if isinstance(name, str) else None
    if template not in known.values():
        word = next((word for word, own in TEMPLATES.items() if own == name), name)
        raise SpaceError(f"template is {word!r:.60}, expected one of {', '.join(words)} for {hardware.name}")
    return str(template)


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
    template : {"cuda", "pipelined", "tensorcore", "cpu"}, optional
        What the schedules look like, or its name in schedules ("gpu", "gpu_pipelined", "gpu_tensorcore", "cpu"); left
        out: "cuda" (CUDA cores) for GPUs, "cpu" for CPUs.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    template = None if template is None else template_of(template, hardware)
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
