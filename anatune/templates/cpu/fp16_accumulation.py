"""The tile space of the template "fp16_accumulation": `cpu.space`'s, with calls short enough to sum in float16.

Beside the options of the template "cpu" a schedule has "extension": "fp16".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck
from anatune.templates.cpu.dot import half_sums_apply, most_half_terms
from anatune.templates.cpu.space import CpuSpace

__all__ = ["HalfSumsSpace"]


class HalfSumsSpace(CpuSpace):
    """All schedules of one workload on one CPU whose calls sum in float16.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable
        (num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer.

    Raises
    ------
    SpaceError
        The CPU has no instruction for it, or none that fits the workload.
    """

    template = "fp16_accumulation"
    own_options: ClassVar[Mapping[str, OptionValue]] = {"extension": "fp16"}

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck) -> None:
        super().__init__(workload, hardware, is_legal)
        if self.dot is None or not half_sums_apply(workload, hardware):
            raise SpaceError(
                f"template {self.template} does not apply to {workload.describe()} on {hardware.name}: it takes "
                f"products of float16 on CPUs with AVX512_FP16 (vfmaddph)"
            )
        self.most_inner = {self.dot.axis: most_half_terms(workload, self.dot)}
