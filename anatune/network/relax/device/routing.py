"""The Triton program that lists the rows of each expert: one program per expert counts the rows before its own."""

from __future__ import annotations

from anatune.emit.buffer import Buffer
from anatune.network.graph.experts.passes import header_size
from anatune.network.relax.device.lowering import PlannedCall
from anatune.network.relax.device.modules import RestKernel
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = ["plan_route", "route_program"]

_MOST_BLOCK = 4096


def plan_route(rows: int, experts: int) -> PlannedCall:
    """Return the call of ``anatune.route``, in which each program reads all choices twice."""
    program, read = route_program(rows, experts), 2 * rows * experts
    return PlannedCall(program, ("chosen",), (0,), RestKernel(program, (), (), 8 * read + 4 * rows, 2 * read))


def route_program(rows: int, experts: int) -> TritonProgram:
    """Return the program of ``anatune.route``, which reads ``chosen`` (rows,) int64 and writes ``routed``."""
    block, lead = min(_MOST_BLOCK, 1 << (rows - 1).bit_length()), header_size(experts)
    name = f"route_{rows}_rows_to_{experts}"
    load = f"""row = first + tl.arange(0, {block})
        chosen = tl.load(chosen_ptr + row, mask=row < {rows}, other={experts})"""
    source = f'''"""Where rows of each of {experts} experts end, then {rows} rows, those of the first expert first."""

import triton
import triton.language as tl


@triton.jit
def {name}(chosen_ptr, routed_ptr):
    expert = tl.program_id(0)
    before = tl.zeros(({block},), dtype=tl.int32)
    own = tl.zeros(({block},), dtype=tl.int32)
    for first in range(0, {rows}, {block}):
        {load}
        before += (chosen < expert).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    place = tl.sum(before, 0)
    tl.store(routed_ptr + expert, place + tl.sum(own, 0))
    for first in range(0, {rows}, {block}):
        {load}
        is_own = (chosen == expert).to(tl.int32)
        tl.store(routed_ptr + {lead - 1} + place + tl.cumsum(is_own, 0), row, mask=is_own != 0)
        place += tl.sum(is_own, 0)
'''
    buffers = (Buffer("chosen", "int64", (rows,)), Buffer("routed", "int32", (lead + rows,)))
    kernel = TritonKernel(name, buffers, experts, 4 if block < _MOST_BLOCK else 8, 1, {"enable_fp_fusion": True})
    return TritonProgram("", source, (kernel,), "routed")
