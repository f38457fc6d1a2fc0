"""Products whose operands have scales, and products of many experts in one launch."""

from __future__ import annotations

from anatune.core.schedule import Schedule
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.family import KernelFamily, lost_error
from anatune.templates.triton.grouped.rules import PROMOTED_DEPTH, check_scaled, check_supported, dot_type
from anatune.templates.triton.rules import LEVELS, loses_sums_of

__all__ = ["ScaledFamily"]


class ScaledFamily(KernelFamily):
    """Products with scales (8-bit or 4-bit operands, or weights only), of one weight or of experts."""

    bodies = frozenset(("scaled_matmul", "grouped_matmul"))
    factors = LEVELS
    model_name, program_name = "grouped.model:GroupedModel", "grouped.program:scaled_program"
    supports = staticmethod(check_supported)
    check = staticmethod(check_scaled)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, relative to the result's scale. 0: sums lose no bits."""
        problem = check_supported(schedule.workload, gpu_of(schedule))
        if not loses_sums_of(dot_type(problem), gpu_of(schedule)):
            return 0.0
        return lost_error(schedule.workload, min(PROMOTED_DEPTH, problem.k))
