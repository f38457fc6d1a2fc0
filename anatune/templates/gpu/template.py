"""What templates for GPUs share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from anatune.templates.base.template import Template
from anatune.templates.gpu.streaming import streaming_s

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.templates.gpu.kernel import KernelProgram

__all__ = ["GpuTemplate"]


class GpuTemplate(Template):
    """A template for GPUs, whose programs are kernels."""

    kind: ClassVar[str] = "gpu"
    streaming_s = staticmethod(streaming_s)

    @abstractmethod
    def program(self, schedule: Schedule, **how: Any) -> KernelProgram:
        """Return the kernel of a schedule; ``ranged``: for a range of extents of which it is the largest one's."""
