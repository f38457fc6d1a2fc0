"""Traces of MetaSchedule's own design spaces as points of the template `cuda`, or as compiled CPU loop nests.

The decisions of one tiled block are read (`anatune.records.traces`). Their meaning depends on the function:
`FunctionMeaning` recognises its workload and the number of each operand.
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
    """The workload of a TVM function and the numbers of its operands, to which traces refer.

    Parameters
    ----------
    module : tvm.IRModule
        A module with one PrimFunc before scheduling.

    Raises
    ------
    WorkloadError
        anatune does not know the function. The message says why.
    """

    def __init__(self, module: tvm.IRModule) -> None:
        self.workload: Workload = TirTask(module).workload
        self._module = module
        self._operands: dict[str, tuple[str, ...]] = {}

    def gpu_schedule(self, tiling: Tiling, hardware: GpuSpec) -> Schedule:
        """Return the schedule of the template `cuda` (or `pipelined`) for a tiling.

        Raises
        ------
        UnfitError
            The tiling does not have the structure for GPUs, its tiles do not fit the function, or the template
            `pipelined` does not have this number of stages.
        """
        if tiling.structure != GPU_TILING:
            raise UnfitError(f"the tiling is {tiling.structure}, expected {GPU_TILING}")
        names = self._operands_in_order(tiling.block)
        widths = {names[number]: width for number, width in tiling.fetch.items() if number < len(names)}
        tiles = match_axes(tiling, self.workload)
        return gpu_schedule(self.workload, hardware, tiles, tiling.unroll, widths, tiling.stages)

    def _operands_in_order(self, block: str) -> tuple[str, ...]:
        """Return the tensors of the workload in the order in which the block reads them."""
        if block not in self._operands:
            tensors = tuple(access.tensor for access in self.workload.reads)
            schedule = import_tvm().s_tir.Schedule(self._module)
            name = str(next(iter(self._module.get_global_vars())).name_hint)
            block_node = schedule.get(schedule.get_sblock(block, name))
            try:
                buffers = read_block(block_node).buffers
            except WorkloadError:
                buffers = ()
            order = [
                next((tensors[i] for i, buffer in enumerate(buffers[:-1]) if buffer.same_as(region.source)), "")
                for region in block_node.reads
            ]
            self._operands[block] = tuple(name for name in order if name) or tensors
        return self._operands[block]


def tiling_of(trace: tvm.s_tir.schedule.Trace) -> Tiling:
    """Return the tiling that a ``tvm.s_tir.schedule.Trace`` decides.

    Raises
    ------
    UnfitError
        anatune does not know this way of tiling.
    """
    names: dict[Hashable, str] = {}

    def to_json(value: ir.Expr) -> Json:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str(value)
        kind = type(value).__name__
        if kind in ("IntImm", "FloatImm", "StringImm"):
            return value.value
        if kind in ("Array", "list", "tuple"):
            return [to_json(item) for item in value]
        return names.setdefault(value, f"r{len(names)}")

    instructions: list[Json] = []
    decisions: list[Json] = []
    decision_of = trace.decisions
    for item in trace.insts:
        kind = str(item.kind.name)
        if kind == "EnterPostproc":
            break
        if kind not in KINDS:
            continue
        if item in decision_of:
            decisions.append([len(instructions), to_json(decision_of[item])])
        # reading only the needed parts saves 1 ms
        parts = zip(("inputs", "attrs", "outputs"), KINDS[kind], strict=True)
        instructions.append(
            [kind, *([to_json(value) for value in getattr(item, part)] if is_read else [] for part, is_read in parts)]
        )
    return read_trace(instructions, decisions)


def nests_of(workload: Workload, tilings: Sequence[Tiling]) -> TiledNests:
    """Return CPU tilings as one batch of arrays.

    Raises
    ------
    UnfitError
        A tiling does not have the structure for CPUs, or does not fit the workload's extents.
    """
    factors = []
    for tiling in tilings:
        if tiling.structure != CPU_TILING:
            raise UnfitError(f"the tiling is {tiling.structure}, expected {CPU_TILING}")
        tiles = match_axes(tiling, workload)
        factors.append([factor for axis in workload.axes for factor in tiles[axis.name]])

    def make_column(values: Iterable[int]) -> NDArray[np.int64]:
        return np.fromiter(values, dtype=np.int64, count=len(tilings))

    return TiledNests(
        np.array(factors, dtype=np.int64).reshape(len(tilings), -1),
        make_column(tiling.unroll for tiling in tilings),
        make_column(tiling.vectorize for tiling in tilings),
        make_column(tiling.parallel for tiling in tilings),
        make_column(_depth(tiling, workload, tiling.write_depth) for tiling in tilings),
        make_column(_depth(tiling, workload, next(iter(tiling.producers.values()), NO_PRODUCER)) for tiling in tilings),
    )


def _depth(tiling: Tiling, workload: Workload, depth: int) -> int:
    """Return a loop's number among the loops of the workload's axes, without additional loops of one iteration."""
    if depth < 0:
        return depth
    spatial, reduction = tiling.loops("S"), tiling.loops("R")
    has_axis = []
    for level in CPU_TILING:
        loops, axes = (spatial, workload.spatial_axes) if level == "S" else (reduction, workload.reduction_axes)
        has_axis += [len(loops) == len(axes) or math.prod(factors) > 1 for factors in loops]
    return sum(has_axis[: depth + 1]) - 1


def recorded_trace(trace: tvm.s_tir.schedule.Trace) -> Json:
    """Return a trace as plain lists, ``[instructions, decisions]``, as in MetaSchedule's databases."""
    return _plain(trace.as_json())


def _plain(value: tvm.runtime.Object) -> Json:
    """Convert TVM's lists, strings and numbers to Python objects."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return str(value)
    return _plain(value.value) if hasattr(value, "value") else [_plain(one) for one in value]
