"""Template "tensorcore": matrix products on matrix units."""

from __future__ import annotations

from anatune.core.accuracy import RELAXED, STANDARD
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.split import needed_accuracy
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.tensorcore.rules import check_supported, check_tensorcore, levels_of

__all__ = ["TENSORCORE"]


class TensorCoreTemplate(GpuTemplate):
    """Block, warp and instruction tiles of the matrix product behind a workload, on tensor cores."""

    name = room = "tensorcore"
    model_name = "model:TensorCoreModel"
    writer_name = "program.program:TensorCoreWriter"
    tensor_cores = True
    all_accuracy = "standard"
    check = staticmethod(check_tensorcore)
    levels = staticmethod(levels_of)
    supports = staticmethod(check_supported)
    accuracy_of = staticmethod(needed_accuracy)

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that every schedule of a workload needs at least: float32 operands are rounded."""
        return RELAXED if workload.dtype == "float32" else STANDARD


TENSORCORE = TensorCoreTemplate()
