"""Template "scaled": products of float32 with weights of 8 or 4 bits that have scales."""

from __future__ import annotations

from anatune.core.workload.nest import Workload
from anatune.templates.cpu.template import CpuTemplate
from anatune.templates.scaled.rules import LEVELS, applies, check_scaled, digits_error, needed_accuracy

__all__ = ["SCALED"]


class ScaledTemplate(CpuTemplate):
    """Products of float32 with weights of 8 or 4 bits, multiplied as integers, on CPUs."""

    name = folder = "scaled"
    model_name = "model:ScaledModel"
    joins = True
    is_whole = True
    all_accuracy = "relaxed"
    check = staticmethod(check_scaled)
    takes = staticmethod(applies)
    accuracy_of = staticmethod(needed_accuracy)
    error_of = staticmethod(digits_error)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its factors, outer to inner."""
        return dict(LEVELS)


SCALED = ScaledTemplate()
