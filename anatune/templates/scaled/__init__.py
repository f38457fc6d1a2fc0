"""Template "scaled": products of float32 with weights of 8 or 4 bits that have scales."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.cpu.template import CpuTemplate
from anatune.templates.scaled.rules import LEVELS, applies, check_scaled, digits_error, needed_accuracy

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.cpu.program.program import CpuProgram

__all__ = ["SCALED"]


class ScaledTemplate(CpuTemplate):
    """Products of float32 with weights of 8 or 4 bits, multiplied as integers, on CPUs."""

    name = room = "scaled"
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

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.scaled.model import ScaledModel

        return ScaledModel

    def program(self, schedule: Schedule, **how: Any) -> CpuProgram:
        """Return the program of a schedule."""
        from anatune.templates.scaled.program.program import program_of

        return program_of(schedule, **how)


SCALED = ScaledTemplate()
