"""Choose which attentions become one kernel on a CPU, and the number of queries of its blocks, by predicted time."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.sizes import Size, is_run_time
from anatune.core.workload.operators import batch_matmul, matmul
from anatune.network.graph.nodes import Graph, Node, tensor_type
from anatune.network.graph.operators import ATTENTION
from anatune.network.graph.passes.attention import fuse_attention
from anatune.network.graph.passes.precision import store_16_bit
from anatune.network.kernels.attention import AttentionKernel, QueryBlocks, pitch, tile_rows, tile_schedule
from anatune.network.kernels.rows import RowKernel, row_function
from anatune.templates.cpu.model.model import CpuModel

__all__ = ["PlannedAttention", "attention_at_run_time", "plan_attention", "plan_attentions"]

_MOST_BLOCK_KINDS = 8
"""Most different numbers of keys that blocks of queries see under a causal mask: each has its own code. With 8 of
them the products are 9/16 of those of all keys; 1/2 is the least possible."""
_TILE_VECTORS = 3
"""Vectors of keys in a register tile whose other size is known only at run time."""
_MOST_UNROLLED = 4
"""Most steps of a microkernel's loop that are unrolled."""
_FLOAT_BYTES = 4
_EXTRA_CALLS = 6
"""Calls of an attention without a kernel in addition to one: two products, a softmax, four transposes."""
_ARITHMETIC = re.compile(r" = (?:f(?:add|sub|mul|div|neg|cmp)|add|sub|shl|ashr|select|call <)")
"""LLVM instructions that occupy a vector port."""
_SHUFFLES_PER_CYCLE = 1.0
"""Vector shuffles per cycle, from LLVM's scheduling models of x86 processors with AVX-512."""


class PlannedAttention(NamedTuple):
    """An attention kernel and the nodes that it computes.

    Attributes
    ----------
    name : str
        Name of its function in the library.
    kernel : AttentionKernel
    parts_s : dict of str to float
        Predicted seconds of one call by part: "turning" (the keys are transposed), "scores", "softmax", "values".
    separate_s : float
        Predicted seconds of the separate kernels that it replaces.
    nodes : tuple of Node
    """

    name: str
    kernel: AttentionKernel
    parts_s: Mapping[str, float]
    separate_s: float
    nodes: tuple[Node, ...]

    @property
    def time_s(self) -> float:
        """Predicted seconds of one call."""
        return sum(self.parts_s.values())

    @property
    def flop(self) -> int:
        """Operations of the products in one call, without those that a causal mask hides."""
        kernel = self.kernel
        rows = sum(int(one.count) * one.rows * int(one.keys) for one in kernel.blocks)
        return 2 * int(kernel.batch) * kernel.heads * rows * (kernel.dim + kernel.value_dim)

    @property
    def varies(self) -> str:
        """Names of its sizes that are known only at run time."""
        return ", ".join(name for name in ("batch", "queries", "keys") if isinstance(getattr(self.kernel, name), Size))

    @property
    def text(self) -> str:
        """The workload as text."""
        kernel = self.kernel
        batch, queries, keys, mask_rows = map(int, (kernel.batch, kernel.queries, kernel.keys, kernel.mask_rows))
        masked = f" mask {mask_rows}x{keys}" if mask_rows else ""
        causal = " causal" if kernel.causal is not None or any(one.keys < kernel.keys for one in kernel.blocks) else ""
        return (
            f"attention {batch}x{kernel.heads} {queries}x{keys}x{kernel.dim}:{kernel.value_dim}{masked}{causal} "
            f"in blocks of {kernel.blocks[0].rows}"
        )


def plan_attentions(
    graph: Graph, hardware: CpuSpec, decisions: list[bool] | None = None, *, is_open: bool = False
) -> tuple[Graph, list[PlannedAttention]]:
    """Return a graph whose attentions are kernels where that is predicted to be faster, and these kernels.

    Parameters
    ----------
    graph : Graph
        The graph after `graph.passes.order.CPU_KERNELS`.
    hardware : CpuSpec
        The CPU with the cores that kernels may use.
    decisions : list of bool, optional
        Filled with one value for each attention in order: whether it becomes a kernel.
    is_open : bool
        Whether sizes of the graph vary. Every attention is then a kernel, because its parts would have no schedules.
    """
    planner = _AttentionPlanner(hardware)
    decisions = [] if decisions is None else decisions

    def pays(node: Node) -> bool:
        chosen = planner.choose(node)
        is_faster = chosen is not None and (is_open or sum(chosen.parts_s.values()) < planner.separate_s(node))
        decisions.append(is_faster)
        return is_faster

    graph = store_16_bit(fuse_attention(graph, pays))
    groups: dict[AttentionKernel, list[Node]] = {}
    for node in graph.nodes():
        if node.op == ATTENTION:
            groups.setdefault(planner.kernel(node), []).append(node)
    planned = []
    for number, (kernel, nodes) in enumerate(groups.items()):
        chosen = planner.choose(nodes[0])
        assert chosen is not None
        name = f"anatune_attention_{number}"
        planned.append(PlannedAttention(name, kernel, chosen.parts_s, planner.separate_s(nodes[0]), tuple(nodes)))
    return graph, planned


def plan_attention(node: Node, hardware: CpuSpec) -> AttentionKernel:
    """Return the kernel of an attention that has a block which fits into the L2 cache."""
    return _AttentionPlanner(hardware).kernel(node)


def attention_at_run_time(planned: AttentionKernel, node: Node) -> AttentionKernel:
    """Return the kernel of an attention with sizes that are known only at run time, for a planned kernel's device.

    Parameters
    ----------
    planned : AttentionKernel
        The kernel of the same attention with fixed sizes.
    node : Node
        The attention.
    """
    kernel = _make_kernel(node, planned.blocks, planned.parts)
    if not kernel.is_open:
        return kernel
    like = planned.blocks[0].scores
    assert isinstance(like.hardware, CpuSpec)
    compute, lanes = like.hardware.compute, like.hardware.fp32_lanes
    rows = tile_rows(like, 2)
    most = rows * -(-math.ceil(compute.fma_latency_cycles * compute.fma_per_cycle) // rows)  # one vector of sums a row
    if not is_run_time(kernel.queries):
        rows, most = min(rows, kernel.queries), min(most, kernel.queries)
    unroll = max(size for size in range(1, _MOST_UNROLLED + 1) if kernel.dim % size == 0)
    scores = tile_schedule(like, rows, _TILE_VECTORS * lanes, kernel.dim, unroll)
    values = tile_schedule(like, rows, min(2 * lanes, kernel.value_dim), 2, 1)
    blocks = QueryBlocks(0, (kernel.queries + most - 1) // most, most, kernel.keys, scores, values)
    return dataclasses.replace(kernel, blocks=(blocks,))


class _AttentionChoice(NamedTuple):
    """Blocks of queries, the number of threads that share a head, and the seconds of a call by part."""

    blocks: tuple[QueryBlocks, ...]
    parts: int
    parts_s: Mapping[str, float]


class _AttentionPlanner:
    """Predicts attentions on one CPU, and stores its plans."""

    def __init__(self, hardware: CpuSpec) -> None:
        self.hardware, self.core = hardware, hardware.with_threads(1)
        self.lanes = hardware.fp32_lanes
        self.products: dict[tuple[int, int, int], tuple[Schedule, float]] = {}
        self.choices: dict[tuple[object, ...], _AttentionChoice | None] = {}
        self.others: dict[tuple[int, ...], float] = {}

    def kernel(self, node: Node) -> AttentionKernel:
        """Return the kernel of an attention that has a choice."""
        chosen = self.choose(node)
        assert chosen is not None
        return _make_kernel(node, chosen.blocks, chosen.parts)

    def choose(self, node: Node) -> _AttentionChoice | None:
        """Return the fastest blocks of an attention; None if no block fits into the L2 cache."""
        key = (*_sizes(node), node.attributes["visible"], len(node.arguments))
        if key not in self.choices:
            choices = [self._choose_blocks(node, rows) for rows in self._rows(node)]
            self.choices[key] = min(choices, key=lambda one: sum(one.parts_s.values()), default=None)
        return self.choices[key]

    def separate_s(self, node: Node) -> float:
        """Return the seconds of separate transposes, products and softmax, with the scores in memory."""
        batch, queries, keys, dim, value_dim = _sizes(node)
        key = (batch, queries, keys, dim, value_dim, len(node.arguments))
        if key not in self.others:
            scores = batch * queries * keys * _FLOAT_BYTES
            moved = batch * (queries + keys) * (dim + value_dim) * _FLOAT_BYTES
            time_s = sum(
                float(_plan_without_packing(CpuModel(batch_matmul(batch, *own), self.hardware, constants=()))[1])
                for own in ((queries, keys, dim), (queries, value_dim, keys))
            )
            rows_s = batch * queries * self._row_s(node, keys)
            transfers_s = 2 * (self._transfer_s(scores) + self._transfer_s(moved))
            launch = self.hardware.launch
            calls_s = _EXTRA_CALLS * (0.0 if launch is None else launch.function_call_s)
            self.others[key] = time_s + calls_s + (rows_s + transfers_s) / self.hardware.compute.usable_cores
        return self.others[key]

    def _rows(self, node: Node) -> list[int]:
        """Return the possible numbers of queries in a block: halves and thirds, down to less than a register tile."""
        queries, keys = node.attributes["queries"], node.attributes["keys"]
        most = self.hardware.l2.size_bytes // (2 * _FLOAT_BYTES * pitch(keys, self.lanes))
        least = min(queries, self.hardware.compute.num_vector_registers // 4)
        counts = sorted({share * 2**power for power in range(queries.bit_length() + 1) for share in (1, 3)})
        return sorted({rows for count in counts if least <= (rows := -(-queries // count)) <= most})

    def _choose_blocks(self, node: Node, rows: int) -> _AttentionChoice:
        """Return the choice for an attention with blocks of `rows` queries."""
        batch, _, keys, dim, value_dim = _sizes(node)
        blocks: list[QueryBlocks] = []
        all_costs: list[dict[str, float]] = []
        for first, count, size, seen in _divide(node.attributes["queries"], keys, rows, node.attributes["visible"]):
            (scores, scores_s), (values, values_s) = (
                self._product(size, seen, dim), self._product(size, value_dim, seen)
            )  # fmt: skip
            blocks.append(QueryBlocks(first, count, size, seen, scores, values))
            block_costs = {"scores": scores_s, "softmax": size * self._row_s(node, seen), "values": values_s}
            all_costs += [block_costs] * count
        threads = self.hardware.compute.num_cores
        turning_s = self._turning_s(keys, dim)

        def slowest_s(parts: int) -> dict[str, float]:
            """Return the seconds of the thread that ends last, by part."""
            busiest = max(
                (all_costs[part::parts] for part in range(parts)), key=lambda own: sum(sum(c.values()) for c in own)
            )
            turns = -(-batch * parts // threads)
            slower = threads / self.hardware.compute.usable_cores
            names = ("scores", "softmax", "values")
            total = {name: slower * turns * sum(one[name] for one in busiest) for name in names}
            return {"turning": slower * turns * turning_s, **total}

        parts = min(range(1, min(threads, len(all_costs)) + 1), key=lambda number: sum(slowest_s(number).values()))
        return _AttentionChoice(tuple(blocks), parts, slowest_s(parts))

    def _product(self, m: int, n: int, k: int) -> tuple[Schedule, float]:
        """Return the first choice for a product on one core without packing, and its seconds."""
        if (m, n, k) not in self.products:
            self.products[m, n, k] = _plan_without_packing(CpuModel(matmul(m, n, k), self.core, constants=()))
        return self.products[m, n, k]

    def _row_s(self, node: Node, keys: int) -> float:
        """Return the seconds of a row of the softmax whose data is in a cache."""
        compute = self.hardware.compute
        attributes = node.attributes
        count = _count_operations(attributes["scale"], len(node.arguments) > 3, attributes["zero_rows"], self.lanes)
        reductions = 2 * math.log2(self.lanes) * compute.fma_latency_cycles
        return (count * -(-keys // self.lanes) / compute.fma_per_cycle + reductions) / compute.clock_hz

    def _turning_s(self, keys: int, dim: int) -> float:
        """Return the seconds of transposing the keys of one head."""
        compute, lanes = self.hardware.compute, self.lanes
        vectors = -(-keys // lanes) * -(-dim // lanes) * lanes
        cycles = max(1 / compute.loads_per_cycle, 1 / compute.stores_per_cycle, math.log2(lanes) / _SHUFFLES_PER_CYCLE)
        return vectors * cycles / compute.clock_hz

    def _transfer_s(self, size: int) -> float:
        """Return the seconds in which one core reads `size` bytes from the smallest cache that holds them."""
        hardware, clock_hz = self.hardware, self.hardware.compute.clock_hz
        if size <= hardware.l1.size_bytes:
            return size / (hardware.compute.loads_per_cycle * hardware.compute.simd_bits / 8 * clock_hz)
        for level in (hardware.l2, hardware.l3):
            if level is not None and size <= level.size_bytes:
                return size / (level.bandwidth_bytes_per_cycle * clock_hz)
        return size / hardware.dram.core_bandwidth_bytes_per_s


def _make_kernel(node: Node, blocks: tuple[QueryBlocks, ...], parts: int) -> AttentionKernel:
    attributes, mask = node.attributes, node.arguments[3:]
    names = ("batch", "heads", "queries", "keys", "dim", "value_dim", "places", "scale", "zero_rows", "block", "causal")
    return AttentionKernel(
        **{name: attributes[name] for name in names},
        shapes=tuple(tensor_type(value).shape for value in node.arguments[:3]),
        mask_rows=tensor_type(mask[0]).shape[0] if mask else 0,
        blocks=blocks,
        parts=parts,
    )


def _sizes(node: Node) -> tuple[int, int, int, int, int]:
    sizes = node.attributes
    return (sizes["batch"] * sizes["heads"], sizes["queries"], sizes["keys"], sizes["dim"], sizes["value_dim"])


def _divide(queries: int, keys: int, rows: int, visible: tuple[int, ...]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first query, number of blocks, queries of a block, keys that they see) for blocks of `rows` queries."""
    if not visible:
        if queries >= rows:
            yield 0, queries // rows, rows, keys
        if queries % rows:
            yield queries // rows * rows, 1, queries % rows, keys
        return
    whole = queries // rows
    together = -(-whole // _MOST_BLOCK_KINDS)
    for block in range(0, whole, together):
        count = min(together, whole - block)
        yield block * rows, count, rows, max(visible[block * rows : (block + count) * rows])
    if queries % rows:
        yield whole * rows, 1, queries % rows, max(visible[whole * rows :])


def _plan_without_packing(model: CpuModel) -> tuple[Schedule, float]:
    """Return a model's first choice without packing, and its seconds."""
    point = model.rank(1).points[0]
    schedule: Schedule = model.space.schedule_of(point)
    if schedule.options["packed"]:
        schedule = msgspec.structs.replace(schedule, options={**schedule.options, "packed": (), "packed_ahead": ()})
        point = model.space.point_of(schedule)
    return schedule, float(model.predictions(np.array([point]))[0].time_s)


@lru_cache(maxsize=64)
def _count_operations(scale: float, is_masked: bool, zero_rows: bool, lanes: int) -> int:
    """Return the number of vector instructions of a row of one vector, counted in its code."""
    kernel = RowKernel("powers", 1, lanes, scale, int(is_masked), zero_rows)
    return len(_ARITHMETIC.findall(row_function(kernel, "row", lanes)[0]))
