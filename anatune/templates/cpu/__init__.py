"""The templates "cpu", "fp16_accumulation" and "amx": nests of loops around microkernels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.templates.cpu.dot import dot_note, half_sums_apply, tiles_apply
from anatune.templates.cpu.rules import (
    check_cpu,
    check_formats,
    check_half_sums,
    check_tiled,
    half_sums_accuracy,
    half_sums_error,
    levels_of,
)
from anatune.templates.cpu.template import CpuTemplate

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily

__all__ = ["AMX", "CPU", "FP16_ACCUMULATION"]


class CpuNestTemplate(CpuTemplate):
    """Schedules of one microkernel or a pair, cache tiles, loop orders, packing and a parallel loop."""

    name = folder = "cpu"
    model_name = "model.model:CpuModel"
    has_ranges = True
    learner = "ranked"
    feature_version = 2
    option_meanings: ClassVar[Mapping[str, str]] = {
        "unroll": "steps of the reduction that the microkernel computes without a loop",
        "simd_axis": "axis along which vectors lie",
        "simd_lanes": "elements of a vector",
        "pair": "two microkernels along this axis: calls and size of the first, calls and size of the second",
        "order": "loops of this level, outermost first",
        "packed": "operands that are copied into the order in which the microkernel reads them",
        "packed_ahead": "operands that are packed before the run, because they are constant",
        "parallel": "whether the outer loops are distributed over the cores",
    }
    check = staticmethod(check_cpu)
    supports = staticmethod(check_formats)
    levels = staticmethod(levels_of)

    def family(self, workload: RangedWorkload, hardware: CpuSpec) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent as an argument."""
        from anatune.templates.cpu.model.ranges import CpuFamily

        return CpuFamily(workload, hardware)

    def products_note(self, schedule: Schedule) -> str:
        """Return a note that names the instruction that multiplies narrow elements; "" if there is nothing to say."""
        hardware, options = cast(CpuSpec, schedule.hardware), schedule.options
        simd, extension = str(options["simd_axis"]), str(options.get("extension", ""))
        return dot_note(schedule.workload, hardware, simd, extension=extension)

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that is equal for schedules that become the same program."""
        from anatune.templates.cpu.program.nest import program_key

        return program_key(schedule)


class Fp16AccumulationTemplate(CpuNestTemplate):
    """The nests of "cpu" with sums in half precision within a call (AVX512_FP16), and in float32 across calls."""

    name = "fp16_accumulation"
    model_name = "model.model:HalfSumsModel"
    joins = True
    has_ranges = False
    accuracies = ("relaxed",)
    all_accuracy = "relaxed"
    is_plain_sum = False
    check = staticmethod(check_half_sums)
    takes = staticmethod(half_sums_apply)
    accuracy_of = staticmethod(half_sums_accuracy)
    error_of = staticmethod(half_sums_error)


class AmxTemplate(CpuNestTemplate):
    """The nests of "cpu" with products on AMX tiles."""

    name = "amx"
    model_name = "model.model:AmxModel"
    joins = True
    has_ranges = False
    check = staticmethod(check_tiled)
    takes = staticmethod(tiles_apply)


CPU = CpuNestTemplate()
AMX = AmxTemplate()
FP16_ACCUMULATION = Fp16AccumulationTemplate()
