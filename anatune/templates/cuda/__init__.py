"""Templates "cuda" and "pipelined": tiles on CUDA cores."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, ClassVar

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.templates.cuda.rules import check_cuda, check_pipelined, cuda_applies, levels_of, pipeline_applies
from anatune.templates.gpu.split import needed_accuracy
from anatune.templates.gpu.template import GpuTemplate

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily
    from anatune.templates.base.model import AnalyticalModel
    from anatune.templates.gpu.kernel import KernelProgram
    from anatune.templates.gpu.ranged import Ranged

__all__ = ["CUDA", "PIPELINED"]


class CudaTemplate(GpuTemplate):
    """Block, virtual thread, thread and register tiles on CUDA cores; operands staged in shared memory."""

    name = room = "cuda"
    has_ranges = True
    all_accuracy = "standard"
    corrections: ClassVar[str | None] = "ansor"
    diverse = True
    check = staticmethod(check_cuda)
    takes = staticmethod(cuda_applies)
    levels = staticmethod(levels_of)
    accuracy_of = staticmethod(needed_accuracy)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.cuda.model.model import GpuModel

        return GpuModel

    def family(self, workload: RangedWorkload, hardware: GpuSpec) -> ProgramFamily:
        """Return the programs for a ranged workload that take an extent when they are called."""
        from anatune.templates.cuda.model.ranges import CudaRanges

        return CudaRanges(workload, hardware)

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that schedules share if they become the same program."""
        from anatune.templates.cuda.program.nest import program_key

        return program_key(schedule)

    def program(self, schedule: Schedule, ranged: Ranged | None = None) -> KernelProgram:
        """Return the kernel of a schedule."""
        from anatune.templates.cuda.program.program import GpuProgram

        return GpuProgram(schedule, ranged).program()


class PipelinedTemplate(CudaTemplate):
    """The same with a choice of staging pipeline and of padded rows in shared memory."""

    name = "pipelined"
    widens = "cuda"
    has_ranges = False
    corrections = None
    diverse = False
    check = staticmethod(check_pipelined)
    takes = staticmethod(pipeline_applies)

    def model_class(self, workload: Workload) -> type[AnalyticalModel]:
        """Return the class of its analytical model."""
        from anatune.templates.cuda.model.pipelined import PipelinedModel

        return PipelinedModel


CUDA = CudaTemplate()
PIPELINED = PipelinedTemplate()
