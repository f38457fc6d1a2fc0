"""Templates are kinds of schedules; each has a folder.

A folder holds all of a template: ``rules`` (what is a schedule of it), ``space`` (which of them are tried), ``times``
(compiled code of its model), ``model`` and ``program`` (its code), and exports the `base.template.Template` that tells
where they are. Templates share what ``base`` and ``gpu`` have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anatune.arguments import checked_choice
from anatune.core.accuracy import STANDARD, admits
from anatune.core.templates import REGISTERED, LateTemplate, TemplateTable, note_removed
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.template import Template as Template

if TYPE_CHECKING:  # type checkers follow these imports; `_LATE` says the same to Python
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
    "joined_templates",
    "make_model",
    "template_named",
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
"""Name of a template -> the kind of its devices, and where it is. A new one stands in the next line."""
TEMPLATES: TemplateTable = REGISTERED
"""Every template by its name: those of other kinds of devices are not imported."""
TEMPLATES.register({name: LateTemplate(kind, f"{__name__}.{place}") for name, (kind, place) in _LATE.items()})


def __getattr__(name: str) -> Template:
    if name.isupper() and name.lower() in _LATE:
        return template_named(name.lower())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Device(Protocol):
    """What is asked of a hardware spec here."""

    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...


def template_named(name: str) -> Template:
    """Return the template of that name."""
    template: Template = TEMPLATES[name]
    return template


def templates_of(hardware: _Device) -> tuple[Template, ...]:
    """Return the templates of a device's kind, its default first."""
    return tuple(TEMPLATES[name] for name in TEMPLATES.of_kind(hardware.kind))


def joined_templates(workload: Workload, hardware: _Device, accuracy: str) -> tuple[Template, ...]:
    """Return the templates that are ranked together where nobody names one: the default, and those that join it.

    Those that take the workload, the default first; where none does, one that says why not: the default, or the one
    that has kernels of such a body.

    Parameters
    ----------
    accuracy : str
        One of `core.accuracy.ACCURACIES`: those that have no schedule at it do not join.
    """
    default, *others = templates_of(hardware)
    joined = [other for other in others if other.joins_default(workload, hardware, accuracy)]
    refuses = next((other for other in others if workload.is_kernel and other.has_kernels), default)
    return (*([default] if default.takes(workload, hardware) else []), *joined) or (refuses,)


def template_of(name: str | None, hardware: _Device) -> Template:
    """Return the template of a device that is asked for by its name; None: its default.

    Raises
    ------
    SpaceError
        There is none of that name for the device.
    """
    names = TEMPLATES.of_kind(hardware.kind)
    if name is None:
        return template_named(names[0])
    return template_named(checked_choice("template", name, names, otherwise=f"for {hardware.name}{note_removed(name)}"))


def check_accuracy(workload: Workload, template: Template, accuracy: str | None) -> None:
    """Raise SpaceError if the accuracy that somebody asks for does not admit a template that is named for a workload.

    None: nobody asks for one.
    """
    least = template.least_accuracy(workload)
    if accuracy is not None and not admits(accuracy, least):
        raise SpaceError(
            f"template {template.name} rounds {workload.dtype} operands of {workload.operator} to tf32, which needs "
            f"accuracy {least}, got {accuracy}; name accuracy {least} (--accuracy {least}) or another template"
        )


def tuning_template(workload: Workload, hardware: _Device) -> Template:
    """Return the template that is tuned where nobody asks for one: the default, or a wider one wherever one applies.

    A wider one holds all schedules of the default; arithmetic stays what the workload's dtype says, so tensor cores,
    which would round float32, have to be asked for. Where the default does not take the workload, the first that joins
    it and does takes its place.
    """
    default, others = joined_templates(workload, hardware, STANDARD)[0], templates_of(hardware)
    wider = (other for other in others if other.widens == default.name and other.takes(workload, hardware))
    return next(wider, default)


def make_model(
    workload: Workload, hardware: _Device, template: str | None = None, accuracy: str | None = None
) -> AnalyticalModel:
    """Return the analytical model of `workload` on `hardware` (with its tile space as ``.space``).

    Parameters
    ----------
    template : str, optional
        "cuda", "pipelined", "thin", "triton", "cpu", "winograd", "scaled", "fp16_accumulation" or "amx".
        What the schedules look like; left out: the device's default, "cuda" (CUDA cores) or "cpu", or where that does
        not take the workload the first that joins it and does.
    accuracy : {"standard", "relaxed"}, optional
        What the arithmetic of the space's schedules may need; left out: all that gives the same results each time.

    Raises
    ------
    SpaceError
        The template does not apply to the workload or the hardware.
    """
    if template is None:
        return joined_templates(workload, hardware, accuracy or STANDARD)[0].model(workload, hardware, accuracy)
    return template_of(template, hardware).model(workload, hardware, accuracy)
