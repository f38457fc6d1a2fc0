"""Template "tensorcore": matrix products on matrix units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.split import needed_accuracy
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.tensorcore.rules import check_supported, check_tensorcore, levels_of

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.kernel import KernelProgram
    from anatune.templates.gpu.ranged import Ranged

__all__ = ["TENSORCORE"]


class TensorCoreTemplate(GpuTemplate):
    """Block, warp and instruction tiles of the matrix product behind a workload, on tensor cores."""

    name = room = "tensorcore"
    tensor_cores = True
    all_accuracy = "standard"
    check = staticmethod(check_tensorcore)
    levels = staticmethod(levels_of)
    supports = staticmethod(check_supported)
    accuracy_of = staticmethod(needed_accuracy)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.tensorcore.model import TensorCoreModel

        return TensorCoreModel

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> KernelProgram:
        """Return the kernel of a schedule."""
        from anatune.templates.tensorcore.program.program import TensorCoreWriter

        return TensorCoreWriter(schedule, ranged).program()


TENSORCORE = TensorCoreTemplate()
