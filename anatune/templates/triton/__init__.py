"""The template "triton": kernels that Triton compiles, for the matrix units of NVIDIA and AMD GPUs.

Workloads belong to a *family* by their body: products (this folder and `program`), `attention`, `rows`, `grouped`. What
follows is the same in all of them. A schedule passes through these modules in this order:

1. `rules` says which workloads the template takes and what a legal schedule is; `space` lists the schedules.
2. `model` turns points into `tiles` and predicts their time (`times`) from what a block needs (`resources`, `shared`,
   `layouts`, `cdna`), the bytes that it moves (`memory`) and the work of one stage (`work`).
3. `program` writes the schedule as a Triton module.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from anatune.core.accuracy import RELAXED, admits
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.gpu.template import GpuTemplate
from anatune.templates.triton.attention import AttentionFamily
from anatune.templates.triton.family import KernelFamily, ProductFamily
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
_OTHERS: tuple[KernelFamily, ...] = (AttentionFamily(), RowFamily(), ScaledFamily())
_FAMILIES: dict[str, KernelFamily] = {body: family for family in _OTHERS for body in family.bodies}
"""Body of a workload -> its family. Products are the family of all other bodies; its rules reject those it cannot
take."""


def _family_of(workload: Workload) -> KernelFamily:
    return _FAMILIES.get(workload.body, _PRODUCTS)


class TritonTemplate(GpuTemplate):
    """The template "triton": products on matrix units, attention, operators on rows, products with scaled operands."""

    name = folder = toolchain = "triton"
    tensor_cores = True
    joins = is_whole = has_kernels = has_ranges = True
    is_limited = False
    all_accuracy = RELAXED
    option_meanings = MappingProxyType(OPTION_MEANINGS)
    silent = MappingProxyType({"unroll": 0, "waves_per_eu": 0, "matrix_instr_nonkdim": 0})  # 0: the compiler chooses

    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError unless the schedule is one of this template."""
        _family_of(schedule.workload).check(schedule)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its levels, outer to inner."""
        return _family_of(workload).levels(workload)

    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError if the template does not take the workload or the device."""
        return _family_of(workload).supports(workload, hardware)

    def multiplied_dtype(self, dtype: str, hardware: GpuSpec) -> str:
        """Return the dtype to which operands are converted before matrix units multiply them, often their own."""
        if dtype == "uint8":  # 4-bit floats
            return "float8_e4m3fn"
        instructions = instructions_of(hardware.arch, operand_type(dtype))
        return dtype if instructions is None or dtype == "float32" else instructions[0].as_dtype

    def reachable_share(self, hardware: GpuSpec) -> float:
        """Return 1: the rates of the device's fastest instructions are those that compiled code uses."""
        return 1.0

    def joins_default(self, workload: Workload, hardware: GpuSpec, accuracy: str) -> bool:
        """Return whether the template is ranked beside the default: it is not if the accuracy forbids its rounding."""
        return super().joins_default(workload, hardware, accuracy) and admits(accuracy, self.least_accuracy(workload))

    def least_accuracy(self, workload: Workload) -> str:
        """Return the least accuracy that the schedules of a workload need."""
        return _family_of(workload).least_accuracy(workload)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of a workload's analytical model."""
        return _family_of(workload).model_class()

    def family(self, workload: RangedWorkload, hardware: GpuSpec) -> ProgramFamily:
        """Return the family of programs for a ranged workload. Each takes the extent when it is called."""
        from anatune.templates.triton.ranges.family import TritonRanges

        return TritonRanges(workload, hardware)

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that a schedule needs: "relaxed" if operands or sums lose bits."""
        return _family_of(schedule.workload).accuracy_of(schedule)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, relative to the result's scale. 0: sums lose no bits."""
        return _family_of(schedule.workload).error_of(schedule)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
        """Return the Triton module of a schedule, or with `ranged` that of a range with the schedule's largest extent.

        Raises
        ------
        SpaceError
            There are no kernels for that range: the workload is not a product, or addresses depend on the extent.
        """
        return _family_of(schedule.workload).program(schedule, ranged)


TRITON = TritonTemplate()
