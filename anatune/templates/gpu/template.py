"""What templates for GPUs share."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.base.template import TemplateOf
from anatune.templates.gpu.streaming import streaming_s

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.templates.gpu.kernel import KernelProgram
    from anatune.templates.gpu.ranged import Ranged

__all__ = ["GpuTemplate"]


class GpuTemplate(TemplateOf[GpuSpec]):
    """A template for GPUs, whose programs are kernels."""

    kind: ClassVar[str] = "gpu"
    streaming_s = staticmethod(streaming_s)

    @abstractmethod
    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> KernelProgram:
        """Return the kernel of a schedule; `ranged`: for a range of extents of which it is the largest one's."""
