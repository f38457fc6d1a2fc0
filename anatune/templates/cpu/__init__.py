"""Template "cpu", with sums in half precision, and on AMX's tiles: microkernels in nests of loops."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.cpu.dot import dot_note, half_sums_apply, tiles_apply
from anatune.templates.cpu.rules import (
    check_cpu,
    check_half_sums,
    check_tiled,
    computes,
    half_sums_accuracy,
    half_sums_error,
    levels_of,
)
from anatune.templates.cpu.template import CpuTemplate

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.cpu.program.program import CpuProgram

__all__ = ["AMX", "CPU", "FP16_ACCUMULATION"]


class NestTemplate(CpuTemplate):
    """A microkernel or a pair of them, cache tiles, loop orders, packing and a parallel loop."""

    name = room = "cpu"
    has_ranges = True
    learner = "ranked"
    feature_version = 2
    check = staticmethod(check_cpu)
    takes = staticmethod(computes)
    levels = staticmethod(levels_of)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.cpu.model.model import CpuModel

        return CpuModel

    def family(self, workload: RangedWorkload, hardware: CpuSpec) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent when they are called."""
        from anatune.templates.cpu.model.ranges import CpuFamily

        return CpuFamily(workload, hardware)

    def products_note(self, schedule: Schedule) -> str:
        """Return by which instruction the kernel multiplies narrow elements; "" where nothing is to be said."""
        hardware, options = cast(CpuSpec, schedule.hardware), schedule.options
        simd, extension = str(options["simd_axis"]), str(options.get("extension", ""))
        return dot_note(schedule.workload, hardware, simd, extension=extension)

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that schedules share if they become the same program."""
        from anatune.templates.cpu.program.nest import program_key

        return program_key(schedule)

    def program(self, schedule: Schedule, **how: Any) -> CpuProgram:
        """Return the program of a schedule."""
        from anatune.templates.cpu.program.program import program_of

        return program_of(schedule, **how)


class Fp16AccumulationTemplate(NestTemplate):
    """The same on float16 with sums of a call in half precision (AVX512_FP16), those of calls in float32."""

    name = "fp16_accumulation"
    joins = True
    has_ranges = False
    accuracies = ("relaxed",)
    all_accuracy = "relaxed"
    is_plain_sum = False
    check = staticmethod(check_half_sums)
    takes = staticmethod(half_sums_apply)
    accuracy_of = staticmethod(half_sums_accuracy)
    error_of = staticmethod(half_sums_error)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.cpu.model.model import HalfSumsModel

        return HalfSumsModel


class TilesTemplate(NestTemplate):
    """The same on AMX's tiles."""

    name = "amx"
    joins = True
    has_ranges = False
    check = staticmethod(check_tiled)
    takes = staticmethod(tiles_apply)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.cpu.model.model import TilesModel

        return TilesModel


CPU = NestTemplate()
AMX = TilesTemplate()
FP16_ACCUMULATION = Fp16AccumulationTemplate()
