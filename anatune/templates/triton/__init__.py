"""Template "triton": block tiles that Triton makes kernels of, on the matrix units of NVIDIA and AMD."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from anatune.core.accuracy import RELAXED, admits
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.triton.attention import AttentionFamily
from anatune.templates.triton.family import Family, ProductFamily
from anatune.templates.triton.grouped import ScaledFamily
from anatune.templates.triton.instructions import instructions_of, operand_type
from anatune.templates.triton.rows import RowFamily
from anatune.templates.triton.rules import OPTION_MEANINGS

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.ranged import Ranged
    from anatune.templates.triton.program import TritonProgram

__all__ = ["TRITON"]

_PRODUCTS = ProductFamily()
_OTHERS: tuple[Family, ...] = (AttentionFamily(), RowFamily(), ScaledFamily())
_FAMILIES: dict[str, Family] = {body: family for family in _OTHERS for body in family.bodies}
"""Body of a workload -> its family; that of products takes every other one, or says why it does not."""


def _family_of(workload: Workload) -> Family:
    return _FAMILIES.get(workload.body, _PRODUCTS)


class TritonTemplate(GpuTemplate):
    """Kernels written for Triton's compiler: products on matrix units, and families around them."""

    name = folder = toolchain = "triton"
    tensor_cores = True
    joins = is_whole = has_kernels = has_ranges = True
    is_limited = False
    all_accuracy = RELAXED
    option_meanings = MappingProxyType(OPTION_MEANINGS)
    silent = MappingProxyType({"unroll": 0, "waves_per_eu": 0, "matrix_instr_nonkdim": 0})  # the compiler chooses

    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of the template."""
        _family_of(schedule.workload).check(schedule)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its factors, outer to inner."""
        return _family_of(workload).levels(workload)

    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""
        return _family_of(workload).supports(workload, hardware)

    def multiplied(self, dtype: str, hardware: GpuSpec) -> str:
        """Return what operands of a dtype are when matrix units multiply them: emulated types are another one."""
        if dtype == "uint8":  # 4-bit floats
            return "float8_e4m3fn"
        found = instructions_of(hardware.arch, operand_type(dtype))
        return dtype if found is None or dtype == "float32" else found[0].as_dtype

    def reachable_share(self, hardware: GpuSpec) -> float:
        """Return the share of the peak that compiled code reaches: its instructions are the device's fastest."""
        return 1.0

    def joins_default(self, workload: Workload, hardware: GpuSpec, accuracy: str) -> bool:
        """Return whether it is ranked with the default: what loses bits has to be asked for."""
        return super().joins_default(workload, hardware, accuracy) and admits(accuracy, self.least_accuracy(workload))

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that every schedule of a workload needs at least."""
        return _family_of(workload).least_accuracy(workload)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of a workload's analytical model."""
        return _family_of(workload).model_class()

    def family(self, workload: RangedWorkload, hardware: GpuSpec) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent when they are called."""
        from anatune.templates.triton.ranges.family import TritonRanges

        return TritonRanges(workload, hardware)

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that a schedule needs: what loses bits of operands or sums has to be asked for."""
        return _family_of(schedule.workload).accuracy_of(schedule)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, over the result's scale; 0: they are plain ones."""
        return _family_of(schedule.workload).error_of(schedule)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
        """Return the Triton module of a schedule; `ranged`: for a range of extents of which it is the largest one's.

        Raises
        ------
        SpaceError
            It has no kernels for that range: it is no product, or addresses depend on the extent.
        """
        return _family_of(schedule.workload).program(schedule, ranged)


TRITON = TritonTemplate()
