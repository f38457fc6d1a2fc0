"""Templates as models know them: which analytical model belongs to one, which one is tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import Template, template_of, templates_of
from anatune.core.workload.nest import Workload

if TYPE_CHECKING:
    from anatune.templates.cpu.model.model import CpuModel
    from anatune.templates.cuda.model.model import GpuModel
    from anatune.templates.tensorcore.model import TensorCoreModel

__all__ = ["make_model", "tuning_template"]


def tuning_template(workload: Workload, hardware: GpuSpec | CpuSpec) -> Template:
    """Return the template that is tuned where nobody asks for one: the default, or a wider one wherever one applies.

    A wider one holds all schedules of the default; arithmetic stays what the workload's dtype says, so tensor cores,
    which would round float32, have to be asked for.
    """
    default, *others = templates_of(hardware)
    wider = (one for one in others if one.widens == default.name and one.takes(workload, hardware))
    return next(wider, default)


def make_model(
    workload: Workload, hardware: GpuSpec | CpuSpec, template: str | None = None, accuracy: str | None = None
) -> GpuModel | TensorCoreModel | CpuModel:
    """Return the analytical model of `workload` on `hardware` (with its tile space as ``.space``).

    Parameters
    ----------
    template : {"cuda", "pipelined", "tensorcore", "thin", "cpu"}, optional
        What the schedules look like; left out: the device's default, "cuda" (CUDA cores) or "cpu".
    accuracy : {"standard", "relaxed"}, optional
        What the arithmetic of the space's schedules may need; left out: all that gives the same results each time.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    record = template_of(template, hardware)
    limits = {} if record.accuracy is None else {"accuracy": accuracy or record.all_accuracy}
    made: GpuModel | TensorCoreModel | CpuModel = record.part("model")(workload, hardware, **limits)
    return made
