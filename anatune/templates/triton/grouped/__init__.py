"""Products whose operands have scales, and products of many experts in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.triton.family import Family
from anatune.templates.triton.grouped.rules import check_scaled, check_supported
from anatune.templates.triton.rules import LEVELS

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
