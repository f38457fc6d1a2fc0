"""Products whose operands have scales, and products of many experts in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.family import Family, lost_error
from anatune.templates.triton.grouped.rules import PROMOTED_DEPTH, check_scaled, check_supported, multiplied
from anatune.templates.triton.rules import LEVELS, loses_sums_of

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.triton.program import TritonProgram

__all__ = ["ScaledFamily"]


class ScaledFamily(Family):
    """Products with scales (8 and 4 bits, weights only), plain or of experts."""

    bodies = frozenset(("scaled_matmul", "grouped_matmul"))

    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""
        return check_supported(workload, hardware)

    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of it."""
        check_scaled(schedule)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return "m", "n" and "k" -> names of their factors, outer to inner."""
        return dict(LEVELS)

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.triton.grouped.model import ScaledModel

        return ScaledModel

    def program(self, schedule: Schedule) -> TritonProgram:
        """Return the Triton module of a schedule."""
        from anatune.templates.triton.grouped.program import scaled_program

        return scaled_program(schedule)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits in parts, over the result's scale; 0: they are plain ones."""
        problem = check_supported(schedule.workload, gpu_of(schedule))
        if not loses_sums_of(multiplied(problem), gpu_of(schedule)):
            return 0.0
        return lost_error(schedule.workload, min(PROMOTED_DEPTH, problem.k))
