"""Kernels of models for matrix units that are not planned, and the program that lists the rows of each expert."""

from __future__ import annotations

from collections.abc import Callable

from anatune.core.workload.nest import Workload
from anatune.emit.buffer import Buffer
from anatune.network.graph.experts.passes import header_size
from anatune.network.graph.nodes import Graph, Node, tensor_type
from anatune.network.graph.operators import PRODUCTS, PUT, ROUTE
from anatune.network.graph.products import workload_of
from anatune.network.relax.device.depthwise import is_taken, plan_depthwise
from anatune.network.relax.device.lowering import PlannedCall
from anatune.network.relax.device.modules import RestKernel
from anatune.network.relax.device.scans import scan_program
from anatune.network.relax.device.stubs import make_product, make_put, make_stub
from anatune.network.relax.kernels import ModelKernel
from anatune.templates.triton.program.kernel import TritonKernel, TritonProgram

__all__ = ["add_others", "plan_route", "route_program"]

_MOST_BLOCK = 4096


def add_others(
    graph: Graph,
    typed_workload: Callable[[Node], Workload | None],
    stubs: dict[Node, ModelKernel],
    calls: dict[str, PlannedCall],
) -> None:
    """Add depthwise convolutions, products that no template takes, cache rows, scans, and the routing of experts.

    Parameters
    ----------
    typed_workload : callable
        Product -> its workload in the number formats of the model; None if no template takes it.
    stubs, calls : dict
        Node -> its kernel in the text of the model, and name of a kernel -> its program; both are extended.
    """
    kernels: dict[Workload, ModelKernel] = {}
    depthwise: dict[Workload, str] = {}
    for node in graph.nodes():
        if node.op == PUT:
            stubs[node] = make_put(f"put_{len(stubs)}", node)
        if (program := scan_program(node)) is not None:
            name = program.kernels[0].name
            stubs[node], calls[name] = make_stub(name, node, "scan"), PlannedCall(program, ("data",), (0,))
        if node.op == ROUTE:
            route = plan_route(tensor_type(node.arguments[0]).shape[0], node.attributes["experts"])
            stubs[node] = make_stub(route.program.kernels[0].name, node, "route")
            calls[stubs[node].name] = route
        if node.op not in PRODUCTS or node in stubs:
            continue
        workload = typed_workload(node)
        if workload is not None and is_taken(workload):
            if workload not in depthwise:
                call = plan_depthwise(workload)
                depthwise[workload] = f"anatune_depthwise_{len(depthwise)}_{call.program.kernels[0].name}"
                calls[depthwise[workload]] = call
            stubs[node] = make_stub(depthwise[workload], node, "depthwise")
            continue
        workload = workload_of(node)
        if workload not in kernels:
            kernels[workload] = make_product(f"{workload.operator}_{len(kernels)}", workload)
        stubs[node] = kernels[workload]


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
    count = tl.zeros(({block},), dtype=tl.int32)
    for first in range(0, {rows}, {block}):
        {load}
        before += (chosen < expert).to(tl.int32)
        count += (chosen == expert).to(tl.int32)
    slot = tl.sum(before, 0)
    tl.store(routed_ptr + expert, slot + tl.sum(count, 0))
    for first in range(0, {rows}, {block}):
        {load}
        is_own = (chosen == expert).to(tl.int32)
        tl.store(routed_ptr + {lead - 1} + slot + tl.cumsum(is_own, 0), row, mask=is_own != 0)
        slot += tl.sum(is_own, 0)
'''
    buffers = (Buffer("chosen", "int64", (rows,)), Buffer("routed", "int32", (lead + rows,)))
    kernel = TritonKernel(name, buffers, experts, 4 if block < _MOST_BLOCK else 8, 1, {"enable_fp_fusion": True})
    return TritonProgram("", source, (kernel,), "routed")
