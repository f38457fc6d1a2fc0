"""Families of kernels that Triton makes: products, and what surrounds them in language models."""

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

__all__ = ["Family", "ProductFamily", "lost_error"]

_SUM_BITS, _DEEP = 13, 32
"""Bits behind the point that Hopper's tensor cores keep of sums of 8-bit floats; products of an addition. Source:
[DeepSeek-V3] Sec. 3.3.2."""


class Family(ABC):
    """What the template "triton" is for workloads of some bodies: it passes on what `base.template` asks of it.

    Attributes
    ----------
    bodies : frozenset of str
        Those of `Workload.body` that it takes.
    factors : mapping of str to tuple of str
        Axis -> names of its factors, outer to inner.
    model_name, program_name : str
        Its analytical model, ``(workload, hardware, accuracy)``, and what makes a Triton module of a schedule, as
        ``module:object`` within the folder of the template "triton".
    """

    bodies: ClassVar[frozenset[str]]
    factors: ClassVar[Mapping[str, tuple[str, ...]]]
    model_name: ClassVar[str]
    program_name: ClassVar[str]

    @abstractmethod
    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""

    @abstractmethod
    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of it; its fields are of the right types already."""

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return axis -> names of its factors, outer to inner."""
        return dict(self.factors)

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        model: type[AnalyticalModel] = _import(self.model_name)
        return model

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> TritonProgram:
        """Return the Triton module of a schedule; SpaceError for a range: products alone have kernels for one."""
        if ranged is not None and "multiply_add" not in self.bodies:
            raise SpaceError(f"range: {schedule.workload.operator} has no Triton kernel that takes its {ranged.axis}")
        write = _import(self.program_name)
        program: TritonProgram = write(schedule) if ranged is None else write(schedule, ranged)
        return program

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that has to be asked for before it is ranked with other templates."""
        return STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that the arithmetic of a schedule needs, one of `core.accuracy.ACCURACIES`."""
        return STANDARD

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error that rounding explains, over the result's scale, where it is no plain sum's."""
        return 0.0


def _import(name: str) -> Any:
    return resolve(f"anatune.templates.triton.{name}")


def lost_error(workload: Workload, depth: int) -> float:
    """Return the largest error of sums of which so many products stay in accumulators that keep few bits.

    Each of their additions, one for `_DEEP` steps of k, cuts off what is behind `_SUM_BITS` bits.
    """
    return 4.0 * TRUNCATION * 2.0**-_SUM_BITS * math.sqrt(depth / _DEEP) + rounding_error(workload, TRUNCATION)


class ProductFamily(Family):
    """Products of two operands, whatever their nest; it says, too, why other plain nests are none."""

    bodies = frozenset(("multiply_add",))
    factors = LEVELS
    model_name, program_name = "model:TritonModel", "program:triton_program"
    supports = staticmethod(check_supported)
    check = staticmethod(check_triton)

    def least_accuracy(self, workload: Workload) -> str:
        """Return the accuracy that has to be asked for: float32 operands lose bits."""
        return RELAXED if workload.dtype == "float32" else STANDARD

    def accuracy_of(self, schedule: Schedule) -> str:
        """Return the accuracy that a schedule needs: what loses bits of operands or sums has to be asked for."""
        loses = loses_sums(schedule.workload, gpu_of(schedule)) and not schedule.options.get("promote")
        return RELAXED if loses else self.least_accuracy(schedule.workload)

    def error_of(self, schedule: Schedule) -> float:
        """Return the largest error of sums that lose bits, over the result's scale; 0: they are plain ones."""
        workload = schedule.workload
        if not loses_sums(workload, gpu_of(schedule)):
            return 0.0
        promote = schedule.options.get("promote", 0)
        depth = promote if isinstance(promote, int) and promote else workload.num_reduced
        return lost_error(workload, depth)
