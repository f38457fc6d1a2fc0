"""The templates "cuda" and "pipelined": tiles on CUDA cores."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, ClassVar

from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.templates.cuda.rules import check_cuda, check_pipelined, is_for_cuda, is_for_pipelined, levels_of
from anatune.templates.gpu.split import SPLIT_MEANINGS, needed_accuracy
from anatune.templates.gpu.template import GpuTemplate

if TYPE_CHECKING:
    from anatune.core.workload.ranges import RangedWorkload
    from anatune.templates.base.family import ProgramFamily

__all__ = ["CUDA", "PIPELINED"]


class CudaTemplate(GpuTemplate):
    """Block, virtual thread, thread and register tiles on CUDA cores; operands staged in shared memory."""

    name = folder = "cuda"
    model_name = "model.model:CudaModel"
    writer_name = "program.program:CudaKernelWriter"
    has_ranges = True
    all_accuracy = "standard"
    corrections: ClassVar[str | None] = "ansor"
    diverse = True
    option_meanings: ClassVar[Mapping[str, str]] = {
        "unroll": "loops of at most this many statements are unrolled",
        "vector": "elements of a staged operand that a thread loads at once",
        **SPLIT_MEANINGS,
    }
    check = staticmethod(check_cuda)
    takes = staticmethod(is_for_cuda)
    levels = staticmethod(levels_of)
    accuracy_of = staticmethod(needed_accuracy)

    def family(self, workload: RangedWorkload, hardware: GpuSpec) -> ProgramFamily:
        """Return the family of programs for a ranged workload. Each takes the extent when it is called."""
        from anatune.templates.cuda.model.ranges import CudaRanges

        return CudaRanges(workload, hardware)

    def program_key(self, schedule: Schedule) -> Hashable:
        """Return a key that two schedules share if they become the same program."""
        from anatune.templates.cuda.program.nest import program_key

        return program_key(schedule)


class PipelinedTemplate(CudaTemplate):
    """The template "cuda" with two more choices: buffers of the staging pipeline, and padded rows in shared memory."""

    name = "pipelined"
    model_name = "model.pipelined:PipelinedModel"
    widens = "cuda"
    has_ranges = False
    corrections = None
    diverse = False
    option_meanings: ClassVar[Mapping[str, str]] = {
        **CudaTemplate.option_meanings,
        "stages": "tiles of an operand that are in shared memory at the same time",
        "pad": "unused elements after each row of a staged tile, which avoid bank conflicts",
    }
    check = staticmethod(check_pipelined)
    takes = staticmethod(is_for_pipelined)


CUDA = CudaTemplate()
PIPELINED = PipelinedTemplate()
