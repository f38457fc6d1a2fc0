"""The registry of templates: a template is a family of schedules and the code that they become.

Each template is a folder. ``rules`` says which schedules and workloads are legal, ``space`` lists the schedules that
are tried, ``times`` is the compiled code of the model, ``model`` ranks the space, and ``program`` writes the code of a
schedule. The folder exports a `base.template.Template`, which says where its modules are. ``base`` has what all
templates share, ``gpu`` what those of GPUs share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anatune.arguments import check_choice
from anatune.core.accuracy import STANDARD, admits
from anatune.core.templates import REGISTERED, LateTemplate, TemplateTable, note_removed
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.template import Template as Template

if TYPE_CHECKING:  # for type checkers; Python imports these names through `_LATE`
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.cpu import AMX, CPU, FP16_ACCUMULATION
    from anatune.templates.cuda import CUDA, PIPELINED
    from anatune.templates.scaled import SCALED
    from anatune.templates.thin import THIN
    from anatune.templates.triton import TRITON
    from anatune.templates.winograd import WINOGRAD

__all__ = [
    "AMX",
    "CPU",
    "CUDA",
    "FP16_ACCUMULATION",
    "PIPELINED",
    "SCALED",
    "TEMPLATES",
    "THIN",
    "TRITON",
    "WINOGRAD",
    "Template",
    "check_accuracy",
    "get_template",
    "joined_templates",
    "make_model",
    "template_of",
    "templates_of",
    "tuning_template",
]

_LATE = {
    "cuda": ("gpu", "cuda:CUDA"),
    "pipelined": ("gpu", "cuda:PIPELINED"),
    "thin": ("gpu", "thin:THIN"),
    "triton": ("gpu", "triton:TRITON"),
    "cpu": ("cpu", "cpu:CPU"),
    "winograd": ("cpu", "winograd:WINOGRAD"),
    "scaled": ("cpu", "scaled:SCALED"),
    "fp16_accumulation": ("cpu", "cpu:FP16_ACCUMULATION"),
    "amx": ("cpu", "cpu:AMX"),
}
"""Name of a template -> the kind of its devices, and ``module:object`` of its `Template`. Add a new template here."""
TEMPLATES: TemplateTable = REGISTERED
"""All templates by name. A template is imported when it is first used."""
TEMPLATES.register({name: LateTemplate(kind, f"{__name__}.{place}") for name, (kind, place) in _LATE.items()})


def __getattr__(name: str) -> Template:
    if name.isupper() and name.lower() in _LATE:
        return get_template(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Device(Protocol):
    """The fields of a hardware spec that this module reads."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


def get_template(name: str) -> Template:
    """Return the template called `name`."""
    template: Template = TEMPLATES[name]
    return template


def templates_of(hardware: _Device) -> tuple[Template, ...]:
    """Return the templates for the kind of a device. The first one is the default."""
    return tuple(TEMPLATES[name] for name in TEMPLATES.of_kind(hardware.kind))


def joined_templates(workload: Workload, hardware: _Device, accuracy: str) -> tuple[Template, ...]:
    """Return the templates that are ranked together if the user names none: the default and those that join it.

    Only templates that take the workload are returned, the default first. If no template takes it, the one returned is
    the one whose error explains why: the default, or a template that has kernels for a workload with such a body.

    Parameters
    ----------
    accuracy : str
        One of `core.accuracy.ACCURACIES`. Templates without schedules at this accuracy do not join.
    """
    default, *others = templates_of(hardware)
    joined = [other for other in others if other.joins_default(workload, hardware, accuracy)]
    refusing = next((other for other in others if workload.is_kernel and other.has_kernels), default)
    return (*([default] if default.takes(workload, hardware) else []), *joined) or (refusing,)


def template_of(name: str | None, hardware: _Device) -> Template:
    """Return the template called `name` for a device; None means the default of the device.

    Raises
    ------
    SpaceError
        The device has no template of this name.
    """
    names = TEMPLATES.of_kind(hardware.kind)
    if name is None:
        return get_template(names[0])
    return get_template(check_choice("template", name, names, otherwise=f"for {hardware.name}{note_removed(name)}"))


def check_accuracy(workload: Workload, template: Template, accuracy: str | None) -> None:
    """Raise SpaceError if a named template cannot compute a workload at the requested accuracy.

    An accuracy of None requests nothing, so every template passes.
    """
    least = template.least_accuracy(workload)
    if accuracy is not None and not admits(accuracy, least):
        raise SpaceError(
            f"template {template.name} rounds {workload.dtype} operands of {workload.operator} to tf32, which needs "
            f"accuracy {least}, got {accuracy}; name accuracy {least} (--accuracy {least}) or another template"
        )


def tuning_template(workload: Workload, hardware: _Device) -> Template:
    """Return the template that a session tunes if the user names none: the default, or a wider one.

    A wider template contains all schedules of the default. Arithmetic stays in the dtype of the workload: tensor
    cores round float32 operands, so the user has to ask for them. If the default does not take the workload, the first
    template that joins the default and takes the workload replaces it.
    """
    default, others = joined_templates(workload, hardware, STANDARD)[0], templates_of(hardware)
    wider = (other for other in others if other.widens == default.name and other.takes(workload, hardware))
    return next(wider, default)


def make_model(
    workload: Workload, hardware: _Device, template: str | None = None, accuracy: str | None = None
) -> AnalyticalModel:
    """Return the analytical model of `workload` on `hardware`; its tile space is ``.space``.

    Parameters
    ----------
    template : str, optional
        "cuda", "pipelined", "thin", "triton", "cpu", "winograd", "scaled", "fp16_accumulation" or "amx". Without it,
        the default of the device: "cuda" (CUDA cores) or "cpu". If the default does not take the workload, the first
        template that joins it and takes the workload.
    accuracy : {"standard", "relaxed"}, optional
        The lowest accuracy that schedules of the space may have. Without it, all schedules that give the same results
        each time.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    if template is None:
        return joined_templates(workload, hardware, accuracy or STANDARD)[0].model(workload, hardware, accuracy)
    return template_of(template, hardware).model(workload, hardware, accuracy)
