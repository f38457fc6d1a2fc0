"""What templates for GPUs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.base.template import TemplateOf
from anatune.templates.gpu.streaming import streaming_s

if TYPE_CHECKING:
    from anatune.core.schedule import Schedule
    from anatune.emit.buffer import Buffer
    from anatune.templates.gpu.ranged import Ranged

__all__ = ["GpuProgram", "GpuTemplate"]


class GpuProgram(Protocol):
    """What code of a device is made of: TVMScript (`kernel.KernelProgram`), or Python of the folder "triton"."""

    @property
    def workspace(self) -> Buffer | None:
        """Memory of its own between its kernels."""


class GpuTemplate(TemplateOf[GpuSpec]):
    """A template for GPUs, whose programs are kernels."""

    kind: ClassVar[str] = "gpu"
    toolchain: ClassVar[str] = "cuda"
    writer_name: ClassVar[str]
    """What writes its kernels as ``module:class`` within the folder: ``(schedule, ranged).program()``."""
    streaming_s = staticmethod(streaming_s)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> GpuProgram:
        """Return the kernel of a schedule; `ranged`: for a range of extents of which it is the largest one's."""
        kernel: GpuProgram = self._import(self.writer_name)(schedule, ranged).program()
        return kernel
