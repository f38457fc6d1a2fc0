"""The analytical model of the template "fp16_accumulation": `CpuModel` on its space."""

from __future__ import annotations

from anatune.core.accuracy import RELAXED, admits
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.cpu.fp16_accumulation import HalfSumsSpace
from anatune.templates.cpu.model.model import CpuModel

__all__ = ["HalfSumsModel"]


class HalfSumsModel(CpuModel):
    """Predicts and ranks schedules whose calls sum in float16.

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    accuracy : {"standard", "relaxed"}
        What is asked for.

    Raises
    ------
    SpaceError
        As `HalfSumsSpace`; the accuracy does not admit it.
    """

    def __init__(self, workload: Workload, hardware: CpuSpec, accuracy: str = RELAXED) -> None:
        if not admits(accuracy, RELAXED):
            raise SpaceError(
                f"template {HalfSumsSpace.template} needs accuracy {RELAXED} (--accuracy {RELAXED}), got {accuracy}"
            )
        super().__init__(workload, hardware, HalfSumsSpace(workload, hardware, self._is_legal))
