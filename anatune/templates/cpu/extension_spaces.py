"""Spaces of schedules for an extension of a CPU: sums in half precision, and products on AMX tiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import OptionValue
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import factorisations
from anatune.templates.base.space import LegalityCheck, SpacePart, table_part
from anatune.templates.cpu.dot import half_sums_apply, most_half_terms, tile_depths, tiles_apply
from anatune.templates.cpu.space import CpuSpace

__all__ = ["AmxSpace", "HalfSumsSpace"]


class HalfSumsSpace(CpuSpace):
    """All schedules of one workload on one CPU with sums in float16 within a call; see `CpuSpace`.

    In addition to the options of the template "cpu", a schedule has "extension": "fp16". Calls are short enough for the
    accuracy.

    Raises
    ------
    SpaceError
        The CPU has no such instruction, or none that fits the workload.
    """

    template = "fp16_accumulation"
    fixed_options: ClassVar[Mapping[str, OptionValue]] = {"extension": "fp16"}

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck) -> None:
        super().__init__(workload, hardware, is_legal)
        if self.dot is None or not half_sums_apply(workload, hardware):
            raise SpaceError(
                f"template {self.template} does not apply to {workload.describe()} on {hardware.name}: it takes "
                f"products of float16 on CPUs with AVX512_FP16 (vfmaddph)"
            )
        self.most_inner = {self.dot.axis: most_half_terms(workload, self.dot)}


class AmxSpace(CpuSpace):
    """All schedules of one workload on AMX tiles; see `CpuSpace`.

    In addition to the options of the template "cpu", a schedule has "extension": "amx". The rows of a register tile are
    equally far apart: they run along one axis. All products of the unrolled steps have one depth.

    Raises
    ------
    SpaceError
        The CPU has no AMX, or its tiles do not multiply the operands.
    """

    template = "amx"
    fixed_options: ClassVar[Mapping[str, OptionValue]] = {"extension": "amx"}
    _most_steps = 64

    def __init__(self, workload: Workload, hardware: CpuSpec, is_legal: LegalityCheck) -> None:
        super().__init__(workload, hardware, is_legal)
        if self.dot is None or not tiles_apply(workload, hardware):
            raise SpaceError(
                f"template {self.template} does not apply to {workload.describe()} on {hardware.name}: it takes "
                "products of bfloat16, float16 or of 8 bits on CPUs whose AMX multiplies them"
            )
        vector_operand = workload.tensor(self.dot.vectors)
        rows = [a.name for a in workload.spatial_axes if a.name != self.simd_axis and not vector_operand.uses(a.name)]
        self._row_axis = max(reversed(rows), key=lambda name: self.extents[name], default="")
        self.pairable = tuple(axis for axis in self.pairable if axis in (self._row_axis, self.simd_axis))

    def in_call(self, axis: str, kernel: int) -> bool:
        """Return whether a microkernel may cover (or unroll) `kernel` elements of an axis."""
        assert self.dot is not None
        if axis == self.dot.axis:
            size = self.dot.size
            depths = tile_depths(-(-kernel // size))
            is_whole = kernel % size == 0 or kernel == self.extents[axis]
            return is_whole and len(set(depths)) == 1 and sum(depths) <= self._most_steps
        return kernel == 1 or axis in (self._row_axis, self.simd_axis)

    def _axis(self, axis: str) -> SpacePart:
        """Return the tilings of `axis` that AMX tiles can have."""
        if axis in (self._row_axis, self.simd_axis):
            return super()._axis(axis)
        levels, extent = self.levels[axis], self.extents[axis]
        table = factorisations(extent, len(levels))
        keeps = [self.in_call(axis, int(kernel)) for kernel in table[:, -1]]
        expected = f"factors whose product is {extent}; a call covers whole groups, in products of one depth"
        return table_part(axis, [f"{axis}.{level}" for level in levels], table[keeps], expected)
