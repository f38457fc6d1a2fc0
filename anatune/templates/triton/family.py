"""Families of Triton kernels: one class for each group of workload bodies, which says where its modules are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from anatune.core.accuracy import RELAXED, STANDARD, TRUNCATION, rounding_error
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.named import resolve
from anatune.templates.gpu.rules import gpu_of
from anatune.templates.triton.rules import LEVELS, check_supported, check_triton, loses_sums

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.ranged import Ranged
    from anatune.templates.triton.program import TritonProgram

__all__ = ["KernelFamily", "ProductFamily", "lost_error"]

_SUM_BITS, _DEEP = 13, 32
"""Fraction bits that Hopper's tensor cores keep in sums of 8-bit floats, and products per addition. Source:
[DeepSeek-V3] Sec. 3.3.2."""


class KernelFamily(ABC):
    """The kernels of the template "triton" for workloads with certain bodies; `TritonTemplate` delegates to it.

    Attributes
    ----------
    bodies : frozenset of str
        Values of `Workload.body` that it takes.
    factors : mapping of str to tuple of str
        Axis -> names of its levels, outer to inner.
    model_name, program_name : str
        The class of the analytical model, ``(workload, hardware, accuracy)``, and the function that returns the Triton
        module of a schedule, as ``module:object`` within the folder of the template.
    """

    bodies: ClassVar[frozenset[str]]
    factors: ClassVar[Mapping[str, tuple[str, ...]]]
    model_name: ClassVar[str]
    program_name: ClassVar[str]

    @abstractmethod
    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError if the family does not take the workload or the device."""

    @abstractmethod
    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError unless the schedule is one of this family. The types of its fields are already checked."""

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its levels, outer to inner."""
        return dict(self.factors)

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of the analytical model."""
        model: type[AnalyticalModel] = _import(self.model_name)
        return model

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
        """Return the Triton module of a schedule. SpaceError: it is for a range, and the workload is not a product."""
        if ranged is not None and "multiply_add" not in self.bodies:
            raise SpaceError(f"range: {schedule.workload.operator} has no Triton kernel that takes its {ranged.axis}")
        write = _import(self.program_name)
        program: TritonProgram = write(schedule) if ranged is None else write(schedule, ranged)
        return program

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that must be requested before the family is ranked with other templates."""
        return STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that the arithmetic of a schedule needs, one of `core.accuracy.ACCURACIES`."""
        return STANDARD

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, relative to the result's scale. 0: sums lose no bits."""
        return 0.0


def _import(name: str) -> Any:
    return resolve(f"anatune.templates.triton.{name}")


def lost_error(workload: Workload, depth: int) -> float:
    """Return the largest error of sums whose accumulators keep few bits while `depth` products are added.

    Each addition, one for `_DEEP` products, cuts off all but `_SUM_BITS` fraction bits.
    """
    return 4.0 * TRUNCATION * 2.0**-_SUM_BITS * math.sqrt(depth / _DEEP) + rounding_error(workload, TRUNCATION)


class ProductFamily(KernelFamily):
    """Products of two operands with any loop nest. Its rules also reject the bodies that no family takes."""

    bodies = frozenset(("multiply_add",))
    factors = LEVELS
    model_name, program_name = "model:TritonModel", "program:triton_program"
    supports = staticmethod(check_supported)
    check = staticmethod(check_triton)

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that must be requested: "relaxed" for float32 operands, which lose bits."""
        return RELAXED if workload.dtype == "float32" else STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that a schedule needs: "relaxed" if operands or sums lose bits."""
        loses = loses_sums(schedule.workload, gpu_of(schedule)) and not schedule.options.get("promote")
        return RELAXED if loses else self.least_accuracy(schedule.workload)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, relative to the result's scale. 0: sums lose no bits."""
        workload = schedule.workload
        if not loses_sums(workload, gpu_of(schedule)):
            return 0.0
        promote = schedule.options.get("promote", 0)
        depth = promote if isinstance(promote, int) and promote else workload.num_reduced
        return lost_error(workload, depth)
