"""What templates for CPUs share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from anatune.templates.base.template import Template
from anatune.templates.cpu.streaming import streaming_s

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.templates.cpu.program.program import CpuProgram

__all__ = ["CpuTemplate"]


class CpuTemplate(Template):
    """A template for CPUs, whose programs are loops with microkernels."""

    kind: ClassVar[str] = "cpu"
    streaming_s = staticmethod(streaming_s)

    @abstractmethod
    def program(self, schedule: Schedule, **how: Any) -> CpuProgram:
        """Return the program of a schedule; ``threads``, ``prepacked``, ``prefix`` as `cpu.program.program_of`."""
