"""The base class of the templates for GPUs."""

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
    """The source text of a kernel: TVMScript (`kernel.KernelProgram`), or Python in the template "triton"."""

    @property
    def workspace(self) -> Buffer | None:
        """Global memory that its kernels share, in addition to the tensors."""


class GpuTemplate(TemplateOf[GpuSpec]):
    """A template whose schedules become GPU kernels."""

    kind: ClassVar[str] = "gpu"
    toolchain: ClassVar[str] = "cuda"
    writer_name: ClassVar[str]
    """The class that writes the kernels, as ``module:class`` within the folder: ``(schedule, ranged).program()``."""
    streaming_s = staticmethod(streaming_s)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> GpuProgram:
        """Return the kernel of a schedule, or with `ranged` that of a range whose largest extent the schedule has."""
        kernel: GpuProgram = self._import(self.writer_name)(schedule, ranged).program()
        return kernel
