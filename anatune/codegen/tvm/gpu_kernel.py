"""GPU kernels in the place of a nest of a TVM function, as a trace that TVM replays.

As `anatune.codegen.tvm.kernel`; what stays around the nest gets threads of its own, a kernel each. TVM prints and
compiles the CUDA C: the touches that `anatune.codegen.cuda.lower` gives it (offsets in bytes, loops that stay loops)
are missing, results are the same.
"""

from __future__ import annotations

from anatune.codegen.compat import TvmObject, parse_program
from anatune.codegen.tvm.kernel import TirTask
from anatune.core.schedule import Schedule
from anatune.templates import template_named

__all__ = ["GpuTirTask"]

_THREADS = 256
"""Of a block of the element-wise kernels around the nest: eight warps, as TVM's own rules take for such functions."""


class GpuTirTask(TirTask):
    """One TVM function with one nest that anatune has GPU kernels for; see `TirTask`."""

    def _kernel(self, schedule: Schedule, prefix: str) -> TvmObject:
        self._check(schedule)
        program = template_named(schedule.template).program(schedule)
        return parse_program(program.script, "")

    def _spread(self, sch: TvmObject, block: TvmObject) -> None:
        """Give each element of an element-wise block a thread."""
        loops = sch.get_loops(block)
        if not loops:
            return
        outer, inner = sch.split(sch.fuse(*loops) if len(loops) > 1 else loops[0], [None, _THREADS])
        sch.bind(outer, "blockIdx.x")
        sch.bind(inner, "threadIdx.x")
