"""The tile space of the template "fp16_accumulation": `cpu.space`'s, with calls short enough to sum in float16.

Beside the options of the template "cpu" a schedule has "extension": "fp16".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anatune.core.accuracy import RELAXED, rounding_error
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue, Schedule
from anatune.core.templates import HALFSUMS
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.space import LegalityCheck
from anatune.templates.cpu.dot import dot_group, half_additions, half_sums_apply, most_half_terms
from anatune.templates.cpu.space import CpuSpace

__all__ = ["HalfSumsSpace", "largest_error", "needed_accuracy"]


def needed_accuracy(schedule: Schedule) -> str:
    """Return the accuracy that a schedule's arithmetic needs."""
    return RELAXED


def largest_error(schedule: Schedule) -> float:
    """Return the largest error that rounding explains, over the result's scale: that of sums in float16, for a call.

    The two sums of a lane are added in float16, too, before they become float32.
    """
    workload, hardware = schedule.workload, schedule.hardware
    assert isinstance(hardware, CpuSpec)
    dot = dot_group(workload, hardware, str(schedule.options["simd_axis"]), extension="fp16")
    assert dot is not None
    inner = {axis.name: schedule.tiles[axis.name][-2:] for axis in workload.reduction_axes}
    return rounding_error(workload, half_additions=half_additions(workload, dot, inner) + 2)


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

    template = HALFSUMS.name
    own_options: ClassVar[Mapping[str, OptionValue]] = {"extension": "fp16"}

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck) -> None:
        super().__init__(workload, hardware, is_legal)
        if self.dot is None or not half_sums_apply(workload, hardware):
            raise SpaceError(
                f"template {self.template} does not apply to {workload.describe()} on {hardware.name}: it takes "
                f"products of float16 on CPUs with AVX512_FP16 (vfmaddph)"
            )
        self.most_inner = {self.dot.axis: most_half_terms(workload, self.dot)}
