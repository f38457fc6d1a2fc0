"""Which template an answer is of, in words, and how to get the others."""

from __future__ import annotations

from collections.abc import Sequence

from anatune.core.accuracy import ACCURACIES, admits
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates import templates_of, tuning_template

__all__ = ["joined_text", "template_text"]


def joined_text(templates: Sequence[str], accuracy: str) -> str:
    """Return one sentence about templates that are ranked together: which, at which accuracy, how to get other ones."""
    wider = [f"--accuracy {one}" for one in ACCURACIES if not admits(accuracy, one)]
    more = f", {' and '.join(wider)} admits more" if wider else ""
    return f"templates: {', '.join(templates)}, in one order, accuracy {accuracy}; --template ranks one alone{more}"


def template_text(workload: Workload, hardware: GpuSpec | CpuSpec, template: str) -> str:
    """Return one sentence: the template, what it is the default of, and the device's other ones.

    `anatune plan` takes the narrowest template of CUDA cores by default, `anatune tune` a wider one where it applies.
    """
    known = templates_of(hardware)
    names = [one.name for one in known if one.takes(workload, hardware)]
    tuned = tuning_template(workload, hardware).name
    defaults = {names[0]: " (plan's default)", tuned: " (tune's default)"}
    if names[0] == tuned:
        defaults = {tuned: " (the default)" if len(names) > 1 else ""}
    others = ", ".join(f"{name}{defaults.get(name, '')}" for name in names if name != template)
    return f"template: {template}{defaults.get(template, '')}" + (
        f"; --template names others: {others}" if others else ""
    )
