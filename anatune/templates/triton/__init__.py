"""Template "triton": block tiles that Triton makes kernels of, on the matrix units of NVIDIA and AMD."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING

from anatune.core.accuracy import RELAXED, STANDARD, TRUNCATION, rounding_error
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.triton.instructions import instructions_of, operand_type
from anatune.templates.triton.rules import check_supported, check_triton, levels_of, loses_sums

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.ranged import Ranged
    from anatune.templates.triton.program import TritonProgram

__all__ = ["TRITON"]

_SUM_BITS, _DEEP = 13, 32
"""Bits behind the point that Hopper's tensor cores keep of sums of 8-bit floats; products of an addition. Source:
[DeepSeek-V3] Sec. 3.3.2."""


class TritonTemplate(GpuTemplate):
    """Products on matrix units, written for Triton's compiler."""

    name = room = toolchain = "triton"
    tensor_cores = True
    joins = is_whole = True
    is_limited = False
    all_accuracy = RELAXED
    silent = MappingProxyType({"unroll": 0, "waves_per_eu": 0, "matrix_instr_nonkdim": 0})  # the compiler chooses
    check = staticmethod(check_triton)
    levels = staticmethod(levels_of)
    supports = staticmethod(check_supported)

    def multiplied(self, dtype: str, hardware: GpuSpec) -> str:
        """Return what operands of a dtype are when matrix units multiply them: emulated types are another one."""
        found = instructions_of(hardware.arch, operand_type(dtype))
        return dtype if found is None or dtype == "float32" else found[0].as_dtype

    def reachable_share(self, hardware: GpuSpec) -> float:
        """Return the share of the peak that compiled code reaches: its instructions are the device's fastest."""
        return 1.0

    def joins_default(self, workload: Workload, hardware: GpuSpec, accuracy: str) -> bool:
        """Return whether it is ranked with the default: what loses bits has to be asked for."""
        return super().joins_default(workload, hardware, accuracy) and (
            workload.dtype != "float32" or accuracy == RELAXED
        )

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.triton.model import TritonModel

        return TritonModel

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that a schedule needs: what loses bits of operands or sums has to be asked for."""
        loses = loses_sums(schedule.workload, gpu_of(schedule)) and not schedule.options.get("promote")
        return RELAXED if loses or schedule.workload.dtype == "float32" else STANDARD

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, over the result's scale; 0: they are plain ones.

        Each of the additions of a part, one for `_DEEP` steps of k, cuts off what is behind `_SUM_BITS` bits.
        """
        workload = schedule.workload
        if not loses_sums(workload, gpu_of(schedule)):
            return 0.0
        promote = schedule.options.get("promote", 0)
        depth = promote if isinstance(promote, int) and promote else workload.num_reduced
        return 4.0 * TRUNCATION * 2.0**-_SUM_BITS * math.sqrt(depth / _DEEP) + rounding_error(workload, TRUNCATION)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
        """Return the Triton module of a schedule."""
        from anatune.templates.triton.program import triton_program

        return triton_program(schedule)


TRITON = TritonTemplate()
