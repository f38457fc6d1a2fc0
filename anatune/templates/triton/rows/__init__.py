"""Kernels on rows of activations: softmax, norms, rotary embeddings, gates, quantisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.triton.family import Family
from anatune.templates.triton.rows.rules import BODIES, LEVELS, check_rows, check_supported

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.triton.program import TritonProgram

__all__ = ["RowFamily"]


class RowFamily(Family):
    """Kernels that read rows, and write rows."""

    bodies = frozenset(BODIES)

    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""
        return check_supported(workload, hardware)

    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of it."""
        check_rows(schedule)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return fused index -> names of its factors, outer to inner."""
        return dict(LEVELS)

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.triton.rows.model import RowModel

        return RowModel

    def program(self, schedule: Schedule) -> TritonProgram:
        """Return the Triton module of a schedule."""
        from anatune.templates.triton.rows.program import row_program

        return row_program(schedule)
