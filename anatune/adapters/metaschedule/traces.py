"""What the traces of MetaSchedule's own design spaces mean: points of the template `cuda`, or compiled CPU nests.

Read are the decisions of one tiled block (`anatune.records.traces`). What they mean follows from the function:
`FunctionMeaning` recognises what it computes and which operand has which number.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.adapters.logs.parts import gpu_schedule
from anatune.adapters.tvm_tiles.tvm_nest import NO_PRODUCER, TiledNests
from anatune.codegen.compat import import_tvm
from anatune.codegen.tvm.kernel import TirTask
from anatune.codegen.tvm.nest import read_block
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import WorkloadError
from anatune.records.traces import CPU_TILING, GPU_TILING, KINDS, Json, Tiling, UnfitError, match_axes, read_trace
from anatune.untyped import ir, tvm

__all__ = ["FunctionMeaning", "nests_of", "recorded_trace", "tiling_of"]


class FunctionMeaning:
    """What a TVM function computes, as far as traces over it refer to it.

    Parameters
    ----------
    module : tvm.IRModule
        With one PrimFunc, as it is before any schedule.

    Raises
    ------
    WorkloadError
        It is nothing that anatune understands; the message says why.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        self.workload: Workload = TirTask(module).workload
        self._module = module
        self._operands: dict[str, tuple[str, ...]] = {}

    def gpu_schedule(self, tiling: Tiling, hardware: GpuSpec) -> Schedule:
        """Return the point of the template `cuda` (or `pipelined`) that a trace stands for.

        Raises
        ------
        UnfitError
            It is not of the GPU's structure, its tiles are not those of the function, or the pipelined template has no
            such staging pipeline.
        """
        if tiling.structure != GPU_TILING:
            raise UnfitError(f"tiling {tiling.structure}, expected {GPU_TILING}")
        names = self._numbered(tiling.block)
        widths = {names[number]: width for number, width in tiling.fetch.items() if number < len(names)}
        tiles = match_axes(tiling, self.workload)
        return gpu_schedule(self.workload, hardware, tiles, tiling.unroll, widths, tiling.stages)

    def _numbered(self, block: str) -> tuple[str, ...]:
        """Return the tensors of the workload in the order in which the block reads them."""
        if block not in self._operands:
            tensors = tuple(access.tensor for access in self.workload.reads)
            schedule = import_tvm().s_tir.Schedule(self._module)
            name = str(next(iter(self._module.get_global_vars())).name_hint)
            found = schedule.get(schedule.get_sblock(block, name))
            try:
                buffers = read_block(found).buffers
            except WorkloadError:
                buffers = ()
            order = [
                next((tensors[at] for at, own in enumerate(buffers[:-1]) if own.same_as(region.source)), "")
                for region in found.reads
            ]
            self._operands[block] = tuple(name for name in order if name) or tensors
        return self._operands[block]


def tiling_of(trace: tvm.s_tir.schedule.Trace) -> Tiling:
    """Return what a ``tvm.s_tir.schedule.Trace`` decides.

    Raises
    ------
    UnfitError
        It tiles in a way that is not understood.
    """
    names: dict[Hashable, str] = {}

    def word(value: ir.Expr) -> Json:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str(value)
        kind = type(value).__name__
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return value.value
        if kind in ("Array", "list", "tuple"):
            return [word(one) for one in value]
        return names.setdefault(value, f"r{len(names)}")

    instructions: list[Json] = []
    decisions: list[Json] = []
    decided = trace.decisions
    for item in trace.insts:
        kind = str(item.kind.name)
        if kind == "EnterPostproc":
            break
        if kind not in KINDS:
            continue
        if item in decided:
            decisions.append([len(instructions), word(decided[item])])
        wanted = zip(("inputs", "attrs", "outputs"), KINDS[kind], strict=True)  # the others cost a millisecond
        instructions.append(
            [kind, *([word(one) for one in getattr(item, part)] if read else [] for part, read in wanted)]
        )
    return read_trace(instructions, decisions)


def nests_of(workload: Workload, tilings: Sequence[Tiling]) -> TiledNests:
    """Return CPU tilings as a batch.

    Raises
    ------
    UnfitError
        One is not of the CPU's structure, or not of the workload's extents.
    """
    factors = []
    for tiling in tilings:
        if tiling.structure != CPU_TILING:
            raise UnfitError(f"tiling {tiling.structure}, expected {CPU_TILING}")
        tiles = match_axes(tiling, workload)
        factors.append([factor for axis in workload.axes for factor in tiles[axis.name]])

    def column(values: Iterable[int]) -> NDArray[np.int64]:
        return np.fromiter(values, dtype=np.int64, count=len(tilings))

    return TiledNests(
        np.array(factors, dtype=np.int64).reshape(len(tilings), -1),
        column(tiling.unroll for tiling in tilings),
        column(tiling.vectorize for tiling in tilings),
        column(tiling.parallel for tiling in tilings),
        column(_depth(tiling, workload, tiling.write_depth) for tiling in tilings),
        column(_depth(tiling, workload, next(iter(tiling.producers.values()), NO_PRODUCER)) for tiling in tilings),
    )


def _depth(tiling: Tiling, workload: Workload, depth: int) -> int:
    """Return a loop's number among the loops of the workload's axes: the block may have loops of one iteration more."""
    if depth < 0:
        return depth
    spatial, reduction = tiling.loops("S"), tiling.loops("R")
    kept = []
    for level in CPU_TILING:
        loops, axes = (spatial, workload.spatial_axes) if level == "S" else (reduction, workload.reduction_axes)
        kept += [len(loops) == len(axes) or math.prod(factors) > 1 for factors in loops]
    return sum(kept[: depth + 1]) - 1


def recorded_trace(trace: tvm.s_tir.schedule.Trace) -> Json:
    """Return a trace as plain lists, as MetaSchedule's databases hold it: ``[instructions, decisions]``."""
    return _plain(trace.as_json())


def _plain(value: tvm.runtime.Object) -> Json:
    """Return TVM's lists, strings and numbers as Python's."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    return _plain(value.value) if hasattr(value, "value") else [_plain(one) for one in value]
