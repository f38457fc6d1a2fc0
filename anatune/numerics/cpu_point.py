"""Predicted time of points of the CPU space: one pass over the loops of each point.

Cache traffic: loops are visited from the innermost outwards with the tile they complete. For a cache of size S let p be
the first loop whose tile no longer fits while its body does. Everything inside p is brought in once (consecutive
iterations of p share what they have in common), and again in each iteration of the loops outside p:
``traffic = footprint(tile of p) * iterations outside p`` (an LRU reuse-distance argument; Source: [IOOpt] Sec. 4,
[TACO22] Sec. 5). A nest that fits whole costs its footprint.

Time: ``max(core, memory) + exposed * min(core, memory) + copies + parallel start`` on the busiest core, where memory is
the sum over the levels (transfers through the hierarchy are serialised: [ECM] Sec. 2.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.cpu_microkernel import call_cycles, step_cycles
from anatune.numerics.cpu_nest import (
    CpuMachine,
    CpuNest,
    busy_threads,
    ceil_div,
    combine,
    fill_levels,
    first_tile,
    footprint,
)

__all__ = [
    "NUM_OUT",
    "check_points",
    "copy_seconds",
    "core_cycles",
    "count_row_pairs",
    "evaluate_points",
    "rule_of",
]

NUM_OUT = 27
"""Entries of a row of `evaluate_points`: see `model.cpu_model.COLUMNS` for their names."""


@jit_inline
def copy_seconds(
    copy_bytes: NDArray[np.float64],
    core: NDArray[np.float64],
    tuning: NDArray[np.float64],
    packed: NDArray[np.bool_],
    threads: float,
    size: NDArray[np.float64],
    fill_s: NDArray[np.float64],
) -> float:
    """Return the seconds of packing and padding copies, made once around the nest by all threads."""
    total = 0.0
    for x in range(copy_bytes.shape[0]):
        moved = copy_bytes[x, 1 if packed[x] else 0]
        if moved > 0.0:
            level = 0
            while level < size.shape[0] - 1 and moved > size[level + 1] * threads:
                level += 1
            total += moved * max(fill_s[level], 1.0 / (tuning[5] * core[6]))
    return total / threads


@jit_inline
def count_row_pairs(
    axis: int,
    kernel: NDArray[np.int64],
) -> int:
    """Return how many axes other than the SIMD axis are covered by a pair of microkernels."""
    pairs = 0
    for a in range(kernel.shape[0]):
        if kernel[a] == 0 and a != axis:
            pairs += 1
    return pairs


@jit_inline
def rule_of(
    core: NDArray[np.float64],
    tuning: NDArray[np.float64],
    registers: float,
    pairs: int,
    multiply_adds: float,
    parallel: int,
    chunks: float,
) -> int:
    """Return 0, or the number of the first broken rule of `model.cpu_model.RULES`."""
    if pairs > 1:
        return 1
    if registers > tuning[6] * core[2]:
        return 2
    if multiply_adds > tuning[7]:
        return 3
    if parallel and (chunks < 2.0 or core[7] < 2.0):
        return 4
    return 0


@jit_inline
def core_cycles(
    extents: NDArray[np.int64],
    is_reduction: NDArray[np.int64],
    uses: NDArray[np.int64],
    vector_loads: NDArray[np.float64],
    core: NDArray[np.float64],
    tuning: NDArray[np.float64],
    simd: NDArray[np.int64],
    inner: NDArray[np.int64],
    calls: NDArray[np.int64],
    kernel: NDArray[np.int64],
    packed: NDArray[np.bool_],
    rows: NDArray[np.int64],
    parts: NDArray[np.float64],
    step_parts: NDArray[np.float64],
) -> float:
    """Return the core cycles of all microkernel calls of the nest, on one core.

    ``inner`` : (A,) tile of the l1 loops; ``calls`` : (A,) l1 iterations; ``kernel`` : (A,) register factor in
    elements (0 where calls split the tile unevenly). ``parts`` (9,) receives the calls' total FMA, load, latency,
    issue and overhead cycles, the largest accumulators and registers, the steps of a call and the multiply-adds
    of the unrolled body. ``rows`` and ``step_parts`` (6,) are scratch.
    """
    axis = simd[0]
    lanes = simd[1]
    num_axes = inner.shape[0]
    steps = 1.0
    unroll = 1.0
    tiles = 1.0
    is_partial = False
    pair_axis = -1
    for a in range(num_axes):
        tiles *= extents[a] / inner[a]
        rows[a] = 1
        if is_reduction[a]:
            if inner[a] < extents[a]:
                is_partial = True
            if a == axis:
                steps *= calls[a]
            else:
                steps *= inner[a]
                unroll *= kernel[a]
        elif a != axis:
            if kernel[a] == 0:
                pair_axis = a
            else:
                rows[a] = kernel[a]
                tiles *= calls[a]
    units = ceil_div(inner[axis], lanes)
    if kernel[axis] > 0:
        small_vectors = ceil_div(kernel[axis], lanes)
        large_vectors = small_vectors
        num_large = 0
        num_small = calls[axis]
    else:
        small_vectors = int(units / calls[axis])
        num_large = units - small_vectors * calls[axis]
        num_small = calls[axis] - num_large
        large_vectors = small_vectors + 1
    if is_reduction[axis]:  # calls along a summed SIMD axis are steps of one kernel
        small_vectors = large_vectors if num_large > 0 else small_vectors
        num_large = 0
        num_small = 1
    total = 0.0
    for i in range(9):
        parts[i] = 0.0
    for row_kind in range(2):
        row_count = 1.0
        if pair_axis >= 0:
            small = int(inner[pair_axis] / calls[pair_axis])
            larger = inner[pair_axis] - small * calls[pair_axis]
            rows[pair_axis] = small + row_kind
            row_count = float(larger) if row_kind else float(calls[pair_axis] - larger)
        elif row_kind:
            break
        for vector_kind in range(2):
            count = row_count * (num_large if vector_kind else num_small)
            if count == 0.0:
                continue
            vectors = float(large_vectors if vector_kind else small_vectors)
            step, registers = step_cycles(
                uses, vector_loads, core, tuning, simd, rows, vectors, packed, unroll, step_parts
            )
            accumulators = step_parts[5]
            extra = call_cycles(uses, vector_loads, core, tuning, simd, accumulators, packed, is_partial)
            count *= tiles
            total += count * (steps * step + extra)
            parts[0] += count * steps * step_parts[0]
            parts[1] += count * steps * step_parts[1]
            parts[2] += count * steps * step_parts[2]
            parts[3] += count * steps * step_parts[3]
            parts[4] += count * extra
            parts[5] = max(parts[5], accumulators)
            parts[6] = max(parts[6], registers)
            parts[8] = max(parts[8], accumulators * unroll)
    parts[7] = steps
    return total


@jit
def evaluate_points(
    nest: CpuNest, machine: CpuMachine, points: NDArray[np.int64], detail: bool, out: NDArray[np.float64]
) -> None:
    """Score points.

    Parameters
    ----------
    nest, machine
        Packed workload and hardware.
    points : (num_points, num_columns) int64
        Points of the CPU space.
    detail : bool
        Whether to fill the bytes of the cache tiles too.
    out : (num_points, NUM_OUT) float64
        Overwritten; seconds, bytes and counts as named in `model.cpu_model.COLUMNS`.
    """
    extents, is_reduction, simd = nest.extents, nest.is_reduction, nest.simd
    boxes, tensors = nest.boxes, nest.tensors
    uses, vector_loads, copy_bytes = nest.uses, nest.vector_loads, nest.copy_bytes
    factor_columns, pair_columns, pack_columns = nest.factor_columns, nest.pair_columns, nest.pack_columns
    order_columns, orders = nest.order_columns, nest.orders
    core, tuning, shared_by = machine.core, machine.tuning, machine.shared_by
    size_bytes, fill_bytes = machine.size_bytes, machine.fill_bytes_per_cycle
    num_axes = extents.shape[0]
    num_tensors = tensors.shape[0]
    num_levels = size_bytes.shape[0]
    clock = core[6]
    line = core[9]
    lanes = simd[1]
    tile = np.empty(num_axes, np.int64)
    inner = np.empty(num_axes, np.int64)
    calls = np.empty(num_axes, np.int64)
    kernel = np.empty(num_axes, np.int64)
    rows = np.empty(num_axes, np.int64)
    packed = np.zeros(num_tensors, np.bool_)
    parts = np.zeros(9)
    size = np.empty(num_levels)
    fill_s = np.empty(num_levels)
    body = np.empty(num_levels)
    after = np.empty(num_levels)
    traffic = np.empty(num_levels)
    step_parts = np.zeros(6)
    whole_moved = np.empty(1 << num_tensors)  # by the set of packed tensors
    for mask in range(1 << num_tensors):
        for x in range(num_tensors):
            packed[x] = (mask >> x) & 1 == 1
        whole_moved[mask] = footprint(boxes, tensors, extents, packed, line, after)
    for n in range(points.shape[0]):
        chunks = 1.0
        outside = 1.0
        for a in range(num_axes):
            calls[a] = points[n, factor_columns[a, 3]]
            kernel[a] = points[n, factor_columns[a, 4]]
            inner[a] = calls[a] * kernel[a]
            column = pair_columns[a]
            if column >= 0 and points[n, column] > 0:
                calls[a] = points[n, column]
                kernel[a] = 0
            tile[a] = first_tile(inner[a], calls[a], kernel[a], lanes, a == simd[0])
            outside *= calls[a]
            for level in range(3):
                column = factor_columns[a, level]
                if column >= 0:
                    outside *= points[n, column]
            if factor_columns[a, 0] >= 0:
                chunks *= points[n, factor_columns[a, 0]]
        mask = 0
        for x in range(num_tensors):
            column = pack_columns[x]
            packed[x] = column >= 0 and points[n, column] > 0
            if packed[x]:
                mask |= 1 << x
        parallel = points[n, simd[2]]
        threads, share = busy_threads(core, parallel, chunks)
        fill_levels(core, size_bytes, shared_by, fill_bytes, threads, size, fill_s)

        cycles = core_cycles(
            extents, is_reduction, uses, vector_loads, core, tuning, simd, inner, calls, kernel, packed, rows,
            parts, step_parts,
        )
        moved = footprint(boxes, tensors, tile, packed, line, body)
        open_levels = num_levels
        for c in range(num_levels):
            traffic[c] = -1.0
            if body[c] > size[c]:
                traffic[c] = moved * outside
                open_levels -= 1
        for level in range(3, -1, -1):
            if open_levels == 0:
                break
            choice = points[n, order_columns[level]]
            for i in range(num_axes):
                a = orders[level, choice, i]
                if a < 0:
                    break
                if level == 3:
                    trips = calls[a]
                    grown = inner[a]
                else:
                    trips = points[n, factor_columns[a, level]]
                    grown = tile[a] * trips
                if trips == 1:
                    continue
                tile[a] = grown
                outside /= trips
                moved = footprint(boxes, tensors, tile, packed, line, after)
                for c in range(num_levels):
                    if traffic[c] < 0.0 and after[c] > size[c]:
                        traffic[c] = moved * outside
                        open_levels -= 1
        memory = 0.0
        for c in range(num_levels):
            if traffic[c] < 0.0:
                traffic[c] = whole_moved[mask]
            memory += traffic[c] * fill_s[c]
        copies = copy_seconds(copy_bytes, core, tuning, packed, threads, size, fill_s)
        start = tuning[4] if parallel else 0.0
        core_s = share * cycles / clock
        memory_s = share * memory
        out[n, 0] = combine(core_s, memory_s, tuning[3]) + copies + start
        for i in range(5):
            out[n, 1 + i] = share * parts[i] / clock
        out[n, 6] = core_s
        out[n, 7] = memory_s
        out[n, 8] = copies
        out[n, 9] = start
        for c in range(3):
            out[n, 10 + c] = share * traffic[c] * fill_s[c] if c < num_levels else 0.0
            out[n, 13 + c] = traffic[c] if c < num_levels else 0.0
        out[n, 16] = threads
        out[n, 17] = share
        out[n, 18] = chunks
        out[n, 19] = parts[5]
        out[n, 20] = parts[6]
        out[n, 21] = parts[7]
        out[n, 22] = parts[8]
        if detail:
            for a in range(num_axes):
                tile[a] = inner[a]
            footprint(boxes, tensors, tile, packed, line, body)
            out[n, 23] = body[0]
            for level in range(2, 0, -1):
                for a in range(num_axes):
                    column = factor_columns[a, level]
                    if column >= 0:
                        tile[a] *= points[n, column]
                footprint(boxes, tensors, tile, packed, line, body)
                out[n, 26 - level] = body[min(3 - level, num_levels - 1)]
        out[n, 26] = rule_of(
            core, tuning, parts[6], count_row_pairs(simd[0], kernel), parts[8], parallel, chunks
        )


@jit
def check_points(
    nest: CpuNest, machine: CpuMachine, points: NDArray[np.int64], codes: NDArray[np.int64]
) -> None:
    """Write the rule codes of points, (num_points,) int64: 0 where legal."""
    num_axes = nest.extents.shape[0]
    core, tuning = machine.core, machine.tuning
    simd = nest.simd[0]
    lanes = nest.simd[1]
    kernel = np.empty(num_axes, np.int64)
    rows = np.empty(num_axes, np.int64)
    packed = np.ones(nest.tensors.shape[0], np.bool_)
    parts = np.zeros(6)
    for n in range(points.shape[0]):
        point = points[n]
        chunks = 1.0
        unroll = 1.0
        vectors = 1
        for a in range(num_axes):
            kernel[a] = point[nest.factor_columns[a, 4]]
            largest = kernel[a]
            if a == simd:
                largest = ceil_div(kernel[a], lanes)
            column = nest.pair_columns[a]
            if column >= 0 and point[column] > 0:
                largest = ceil_div(largest, point[column])
                kernel[a] = 0
            rows[a] = 1
            if a == simd:
                vectors = largest
            elif nest.is_reduction[a]:
                unroll *= kernel[a]
            else:
                rows[a] = largest
            if nest.factor_columns[a, 0] >= 0:
                chunks *= point[nest.factor_columns[a, 0]]
        _, registers = step_cycles(
            nest.uses, nest.vector_loads, core, tuning, nest.simd, rows, float(vectors), packed, unroll, parts
        )
        codes[n] = rule_of(
            core, tuning, registers, count_row_pairs(simd, kernel), parts[5] * unroll, point[nest.simd[2]], chunks
        )
