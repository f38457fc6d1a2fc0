"""Schedule the functions that TVM writes: elementwise functions, reductions, pools and copies, as loops of `loops`.

Blocks are inlined if that repeats no expensive work; every other block becomes a nest. Functions that are not
nests stay as TVM wrote them.
"""

from __future__ import annotations

import logging
import math

from anatune.codegen.compat import TVM_ERRORS, TvmObject, import_tvm, last_line
from anatune.codegen.formulas import ELEMENTARY
from anatune.network.relax.kernels import KERNEL, OPAQUE
from anatune.network.relax.rest.loops import write_loops
from anatune.network.relax.rest.nests import RelaxNest, known_value, nest_of

__all__ = ["inline_blocks", "mark_gathers", "nest_in", "schedule_module", "statements"]

_log = logging.getLogger(__name__)

_LOADS_AGAIN = 8
"""A block is stored if all its readers together load its elements at least this number of times."""
_INJECTIVE = 2
"""TVM's number for functions that read one element of each tensor for each result."""
_VECTORIZABLE = ("isinf", "isnan", "nearbyint")
"""Functions that LLVM has for vectors. TVM 0.27 would compute them element by element: a residual sum of 8 bits,
56x56x256, on a Zen 3 then takes 669 us instead of 216 us."""


def schedule_module(module: TvmObject, threads: int) -> tuple[TvmObject, tuple[str, ...]]:
    """Return a module whose functions, except anatune's kernels, have vectors and parallel loops.

    It also returns the names of functions without a schedule, which stay as TVM wrote them: correct, and slow.
    """
    tvm = import_tvm()
    from tvm.relax.analysis import has_reshape_pattern

    for name in _VECTORIZABLE:
        operator = tvm.ir.Op.get(f"tirx.{name}")
        if operator.get_attr("TVectorizable") is None:
            operator.set_attr("TVectorizable", True)
    unscheduled = []
    for name, function in module.functions_items():
        if type(function).__name__ != "PrimFunc" or (function.attrs is not None and KERNEL in function.attrs):
            continue
        if has_reshape_pattern(function):  # it becomes a view
            continue
        try:
            module[name] = _schedule_function(tvm, function, threads)
        except TVM_ERRORS as error:
            _log.info("%s stays as TVM wrote it: %s", name.name_hint, last_line(error))
            unscheduled.append(str(name.name_hint))
    return module, tuple(unscheduled)


def mark_gathers(module: TvmObject) -> TvmObject:
    """Mark functions that read elements at indices from tensors so that TVM fuses them like copies.

    Functions with a number argument, such as the begin of a slice, are not marked, because TVM cannot fuse them.
    """
    tvm = import_tvm()
    for name, function in module.functions_items():
        if type(function).__name__ != "PrimFunc" or function.attrs is None or KERNEL in function.attrs:
            continue
        if any(type(one.ty).__name__ == "PrimType" for one in function.params):
            module[name] = function.with_attr("op_pattern", OPAQUE)
            continue
        if int(function.attrs.get("op_pattern", 0)) != OPAQUE:
            continue
        statement = function.body.block.body
        nest = None if isinstance(statement, tvm.tirx.SeqStmt) else nest_in(tvm, statement)
        if nest is not None and not any(nest.is_reduction):
            module[name] = function.with_attr("op_pattern", _INJECTIVE)
    return module


def inline_blocks(tvm: TvmObject, function: TvmObject) -> TvmObject:
    """Return a function with blocks inlined, except those whose expensive work would be repeated."""
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    root = schedule.get_sblock("root", func_name="main")
    blocks = list(schedule.get_child_blocks(root))
    for block in blocks:
        if _is_stored(tvm, schedule, block):
            continue
        try:
            schedule.compute_inline(block)
        except TVM_ERRORS:
            continue
    return schedule.mod["main"]


def statements(tvm: TvmObject, function: TvmObject) -> list[TvmObject]:
    """Return the statements of a function, in order: loops around blocks."""
    body = function.body.block.body
    return list(body.seq) if isinstance(body, tvm.tirx.SeqStmt) else [body]


def _schedule_function(tvm: TvmObject, function: TvmObject, threads: int) -> TvmObject:
    result = inline_blocks(tvm, function)
    realize = result.body
    block = realize.block
    parts = [_schedule_statement(tvm, one, threads, is_flat=not block.alloc_buffers) for one in statements(tvm, result)]
    body = parts[0] if len(parts) == 1 else tvm.tirx.SeqStmt(parts)
    block = tvm.s_tir.SBlock(
        list(block.iter_vars), list(block.reads), list(block.writes), block.name_hint, body, block.init,
        list(block.alloc_buffers), list(block.match_buffers), block.annotations,
    )  # fmt: skip
    result = result.with_body(tvm.s_tir.SBlockRealize(list(realize.iter_values), realize.predicate, block))
    tvm.s_tir.analysis.verify_well_formed(tvm.IRModule({"main": result}))
    return result.with_attrs(function.attrs) if function.attrs is not None else result


def _is_stored(tvm: TvmObject, schedule: TvmObject, block: TvmObject) -> bool:
    """Return whether a block is stored, because inlining would repeat expensive work."""
    import tvm_ffi

    load = tvm.ir.expr.TensorLoad
    is_costly: list[bool] = []
    loads: list[TvmObject] = []

    def note_call(call: TvmObject) -> None:
        is_costly.append(str(getattr(call.op, "name", "")).rpartition(".")[2] in ELEMENTARY)

    tvm_ffi.structural_walk(schedule.get(block).body, [(tvm.ir.Call, note_call), (load, loads.append)])
    readers = schedule.get_consumers(block)
    iterations = _iterations(schedule, block)
    if any(is_costly) and (len(readers) > 1 or any(2 * iterations <= _iterations(schedule, one) for one in readers)):
        return True
    if len(readers) * len(loads) < _LOADS_AGAIN:
        return False
    index_loads: list[TvmObject] = []  # loads within indices, which read elements in any order

    def note_index_loads(load_node: TvmObject) -> None:
        for index in load_node.indices:
            tvm_ffi.structural_walk(index, (load, index_loads.append))

    for reader in readers:
        tvm_ffi.structural_walk(schedule.get(reader).body, (load, note_index_loads))
    return bool(index_loads)


def _iterations(schedule: TvmObject, block: TvmObject) -> int:
    return math.prod(known_value(one.dom.extent) or 1 for one in schedule.get(block).iter_vars)


def _schedule_statement(tvm: TvmObject, statement: TvmObject, threads: int, *, is_flat: bool) -> TvmObject:
    """Return one of a function's statements, written as loops of `loops` if it is a nest."""
    nest = nest_in(tvm, statement)
    return statement if nest is None else write_loops(tvm, nest, threads, is_flat=is_flat)


def nest_in(tvm: TvmObject, statement: TvmObject) -> RelaxNest | None:
    """Return the nest of a statement; None if it is none."""
    loops, inner = [], statement
    while isinstance(inner, tvm.tirx.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, tvm.s_tir.SBlockRealize):
        return None
    nest = nest_of(tvm, inner, loops)
    return None if nest is None or any(known_value(one) == 0 for one in nest.extents) else nest
