"""Schedules of what is left to TVM: its element-wise functions, reductions, pools and transposes.

One rule for all: blocks that can be inlined are; each that is left has its spatial loops outside, the innermost one
in vectors where neighbours in memory are neighbours in it, the loops of a reduction around that, and, with several
threads, the outermost loops distributed.
"""

from __future__ import annotations

import logging
import math

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.codegen.relax.kernels import KERNEL

__all__ = ["scheduled"]

_log = logging.getLogger(__name__)

_VECTOR = 16
"""Elements of a vectorised loop: LLVM splits or joins them."""
_PARALLEL_FROM = 1 << 14
"""Iterations from which on a block is spread over threads: a parallel loop costs some microseconds."""
_REDUCTION = 2


def scheduled(module: TvmObject, threads: int) -> tuple[TvmObject, tuple[str, ...]]:
    """Return a module whose functions, but for anatune's kernels, have vectors and parallel loops.

    And the names of those that have none: they stay as TVM wrote them, right, and slow.
    """
    tvm = import_tvm()
    plain = []
    for name, function in module.functions_items():
        if type(function).__name__ != "PrimFunc" or (function.attrs is not None and KERNEL in function.attrs):
            continue
        try:
            module[name] = _scheduled(tvm, function, threads)
        except TVM_ERRORS as error:
            _log.info("%s stays as TVM wrote it: %s", name.name_hint, last_line(error))
            plain.append(str(name.name_hint))
    return module, tuple(plain)


def _scheduled(tvm: TvmObject, function: TvmObject, threads: int) -> TvmObject:
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    for block in _blocks(schedule):
        try:
            schedule.compute_inline(block)
        except TVM_ERRORS:
            continue
    for block in _blocks(schedule):
        _one(tvm, schedule, block, threads)
    return schedule.mod["main"].with_attrs(function.attrs) if function.attrs is not None else schedule.mod["main"]


def _blocks(schedule: TvmObject) -> list[TvmObject]:
    root = schedule.get_sblock("root", func_name="main")
    return list(schedule.get_child_blocks(root))


def _one(tvm: TvmObject, schedule: TvmObject, block: TvmObject, threads: int) -> None:
    """Schedule one block."""
    loops = list(schedule.get_loops(block))
    own = schedule.get(block)
    if len(loops) != len(own.iter_vars) or not loops:
        return
    extents = [int(schedule.get(loop).extent) for loop in loops]
    spatial = [loop for loop, var in zip(loops, own.iter_vars, strict=True) if int(var.iter_type) != _REDUCTION]
    reductions = [loop for loop, var in zip(loops, own.iter_vars, strict=True) if int(var.iter_type) == _REDUCTION]
    work = math.prod(extents)
    parallel = threads > 1 and work >= _PARALLEL_FROM
    if not spatial:
        return
    if not reductions:
        fused = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
        outer, inner = schedule.split(fused, [None, _VECTOR])
        schedule.vectorize(inner)
        if parallel:
            schedule.parallel(outer)
        return
    last = spatial[-1]
    extent = int(schedule.get(last).extent)
    if extent >= _VECTOR and extent % _VECTOR == 0:
        outer, inner = schedule.split(last, [None, _VECTOR])
        spatial[-1:] = [outer]
        schedule.reorder(*spatial, *reductions, inner)
        schedule.vectorize(inner)
    else:
        schedule.reorder(*spatial, *reductions)
    first = schedule.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    if parallel:
        schedule.parallel(first)
    schedule.decompose_reduction(block, reductions[0])
