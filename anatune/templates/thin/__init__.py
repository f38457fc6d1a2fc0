"""Template "thin": streams of one large operand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.thin.rules import check_supported, check_thin, levels_of

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.kernel import KernelProgram
    from anatune.templates.gpu.ranged import Ranged

__all__ = ["THIN"]


class ThinTemplate(GpuTemplate):
    """Products with a vector or few rows, and long reductions: one operand is streamed once, threads share its sums."""

    name = room = "thin"
    joins = True
    check = staticmethod(check_thin)
    levels = staticmethod(levels_of)
    supports = staticmethod(check_supported)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.thin.model import ThinModel

        return ThinModel

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> KernelProgram:
        """Return the kernel of a schedule."""
        from anatune.templates.thin.program.program import ThinWriter

        return ThinWriter(schedule, ranged).program()


THIN = ThinTemplate()
