"""Attention as kernels of Triton: a running softmax between two products on matrix units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.triton.attention.rules import LEVELS, check_attention, check_supported
from anatune.templates.triton.family import Family

if TYPE_CHECKING:
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.triton.program import TritonProgram

__all__ = ["AttentionFamily"]


class AttentionFamily(Family):
    """Attention, forward: prefill and decoding, keys in order or in pages."""

    bodies = frozenset(("attention",))

    def supports(self, workload: Workload, hardware: GpuSpec) -> object:
        """Raise SpaceError for a workload or a device that it does not take."""
        return check_supported(workload, hardware)

    def check(self, schedule: Schedule) -> None:
        """Raise SpaceError for what is no schedule of it."""
        check_attention(schedule)

    def levels(self, workload: Workload) -> dict[str, tuple[str, ...]]:
        """Return "m" (rows) and "n" (keys) -> names of their factors, outer to inner."""
        return dict(LEVELS)

    def model_class(self) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.triton.attention.model import AttentionModel

        return AttentionModel

    def program(self, schedule: Schedule) -> TritonProgram:
        """Return the Triton module of a schedule."""
        from anatune.templates.triton.attention.program import attention_program

        return attention_program(schedule)
