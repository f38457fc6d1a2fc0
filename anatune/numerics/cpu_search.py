"""Exact search of the CPU space: costs of cache tiles by dynamic programming, then microkernels on top.

The time of a point is monotone in two sums: core cycles, a function of the L1 tile and its microkernel, and transfer
seconds, a sum over the levels of the chain register tile < L1 tile < L2 tile < chunk < whole nest, where each pair of
neighbours adds the traffic of those caches whose capacity lies between them (`segment_seconds`). So the cheapest
completion of every tile is found exactly, outermost level first, and so is the best time of a microkernel on an L1
tile.

Notation
--------
lattice : all tiles whose extents divide the nest's; a row of `tiles` (N, A) int64.
worth : (N,) seconds of the cheapest completion outside a tile, inf where there is none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.cpu_microkernel import NUM_PARTS, core_cycles
from anatune.numerics.cpu_nest import CpuMachine, CpuNest, combine, first_tile, footprint

__all__ = ["best_kernels", "capacities", "complete", "cover"]


@jit
def capacities(
    nest: CpuNest, machine: CpuMachine, tiles: NDArray[np.int64], packed: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the capacity bytes of each tile per cache level, (N, C), and the bytes that all such tiles move, (N,).

    The latter bounds the traffic of every cache that holds a part of the tile but not more than the tile: what
    several iterations bring in is at least what their union holds.
    """
    result = np.empty((tiles.shape[0], machine.size_bytes.shape[0]))
    moved = np.empty(tiles.shape[0])
    boxes, tensors, line, extents = nest.boxes, nest.tensors, machine.core.line_bytes, nest.extents
    for n in range(tiles.shape[0]):
        total = footprint(boxes, tensors, tiles[n], packed, line, result[n])
        for a in range(extents.shape[0]):
            total *= extents[a] / tiles[n, a]
        moved[n] = total * (1.0 - 1e-12)
    return result, moved


@jit_helper
def segment_seconds(
    boxes: NDArray[np.int64],
    tensors: NDArray[np.float64],
    extents: NDArray[np.int64],
    order: NDArray[np.int64],
    small: NDArray[np.int64],
    large: NDArray[np.int64],
    packed: NDArray[np.bool_],
    line: float,
    size: NDArray[np.float64],
    fill_s: NDArray[np.float64],
    small_capacity: NDArray[np.float64],
    tile: NDArray[np.int64],
    after: NDArray[np.float64],
) -> float:
    """Return the transfer seconds decided by the loops that grow tile `small` to `large` in `order` (inner first).

    Only caches that hold `small` but not `large` count; `tile` and `after` are scratch.
    """
    outside = 1.0
    for a in range(small.shape[0]):
        tile[a] = small[a]
        outside *= extents[a] / small[a]
    seconds = 0.0
    num_levels = size.shape[0]
    done = 0
    for c in range(num_levels):
        if small_capacity[c] > size[c]:
            done |= 1 << c
    for i in range(order.shape[0]):
        a = order[i]
        if a < 0:
            break
        if large[a] == small[a]:
            continue
        tile[a] = large[a]
        outside *= small[a] / large[a]
        moved = footprint(boxes, tensors, tile, packed, line, after)
        for c in range(num_levels):
            if not done & (1 << c) and after[c] > size[c]:
                seconds += moved * outside * fill_s[c]
                done |= 1 << c
    return seconds


@jit
def cover(
    nest: CpuNest,
    machine: CpuMachine,
    level: int,
    tiles: NDArray[np.int64],
    capacity: NDArray[np.float64],
    small: NDArray[np.int64],
    large: NDArray[np.int64],
    large_worth: NDArray[np.float64],
    moved: NDArray[np.float64],
    packed: NDArray[np.bool_],
    size: NDArray[np.float64],
    fill_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the worth of the tiles `small`: cheapest way out through one of the tiles `large`.

    Parameters
    ----------
    level : int
        Index of the loops between both (0 outer, 1 l3, 2 l2); the only tile outside of outer is the whole nest.
    tiles, capacity : (N, A) int64, (N, C) float64
        The lattice.
    small, large : (n,) and (m,) int64
        Rows of the lattice; `large` in ascending order of `large_worth` (m,).
    moved : (N,) float64
        Second result of `capacities`.
    """
    boxes, tensors, extents, line = nest.boxes, nest.tensors, nest.extents, machine.core.line_bytes
    orders = nest.orders[level]
    num_axes = extents.shape[0]
    tile, after = np.empty(num_axes, np.int64), np.empty(size.shape[0])
    worth = np.empty(small.shape[0])
    for n in range(small.shape[0]):
        inner = tiles[small[n]]
        inner_capacity = capacity[small[n]]
        best = np.inf
        for m in range(large.shape[0]):
            if large_worth[m] >= best:
                break
            at = large[m]
            crossed_s = 0.0
            for c in range(size.shape[0]):
                if inner_capacity[c] <= size[c] < capacity[at, c]:
                    crossed_s += moved[at] * fill_s[c]
            if large_worth[m] + crossed_s >= best:
                continue
            outer = tiles[at]
            fits = True
            for a in range(num_axes):
                if outer[a] < inner[a] or outer[a] % inner[a] != 0:
                    fits = False
                    break
            if not fits:
                continue
            if crossed_s == 0.0:
                best = large_worth[m]
                continue
            for o in range(orders.shape[0]):
                if orders[o, 0] == -2:
                    break
                seconds = segment_seconds(
                    boxes, tensors, extents, orders[o], inner, outer, packed, line, size, fill_s, inner_capacity,
                    tile, after,
                )  # fmt: skip
                best = min(best, large_worth[m] + seconds)
        worth[n] = best
    return worth


@jit_inline
def is_before(
    left: NDArray[np.float64],
    right: NDArray[np.float64],
) -> bool:
    """Lexicographic order of two rows."""
    for i in range(left.shape[0]):
        if left[i] < right[i]:
            return True
        if left[i] > right[i]:
            return False
    return False


@jit_inline
def keep_best(
    heap: NDArray[np.float64],
    count: int,
    key: NDArray[np.float64],
) -> int:
    """Insert `key` into a max-heap of rows (lexicographic), dropping the largest when full; return the new count."""
    capacity = heap.shape[0]
    width = key.shape[0]
    if count < capacity:
        at = count
        while at > 0:
            parent = (at - 1) // 2
            if not is_before(heap[parent], key):
                break
            for i in range(width):
                heap[at, i] = heap[parent, i]
            at = parent
        for i in range(width):
            heap[at, i] = key[i]
        return count + 1
    if not is_before(key, heap[0]):
        return count
    at = 0
    while True:
        child = 2 * at + 1
        if child >= capacity:
            break
        if child + 1 < capacity and is_before(heap[child], heap[child + 1]):
            child += 1
        if not is_before(key, heap[child]):
            break
        for i in range(width):
            heap[at, i] = heap[child, i]
        at = child
    for i in range(width):
        heap[at, i] = key[i]
    return count


@jit
def best_kernels(
    nest: CpuNest,
    machine: CpuMachine,
    tiles: NDArray[np.int64],
    choices: NDArray[np.int64],
    bound: NDArray[np.float64],
    worth: NDArray[np.float64],
    floor: NDArray[np.float64],
    sequence: NDArray[np.int64],
    packed: NDArray[np.bool_],
    size: NDArray[np.float64],
    fill_s: NDArray[np.float64],
    scalars: NDArray[np.float64],
    option_start: NDArray[np.int64],
    option_values: NDArray[np.int64],
    divisor_of: NDArray[np.int64],
    heap: NDArray[np.float64],
    count: int,
) -> tuple[int, int]:
    """Put the best (L1 tile, microkernel, l1 order) nodes into `heap`.

    Parameters
    ----------
    choices, bound, worth : (n,) int64, (n,) float64, (n,) float64
        L1 tiles as rows of the lattice, in ascending order of a lower bound of their time; their worth.
    floor : (N,) float64
        Lower bounds of the tiles' core cycles; replaced by the best microkernel's where they are computed.
    sequence : (A,) int64
        Axes: spatial and SIMD first, then the reductions that are only unrolled.
    scalars : (7,) float64
        Share of the work on the busiest core, constant transfer seconds, constant seconds, packed tensors, parallel
        flag, number of the search (class), size of a tie (logarithm).
    option_start : (A, num_divisors + 1) int64; option_values : (options, 3) int64
        Of each axis and divisor: calls, kernel (0: pair), larger kernel in rows or vectors; ascending in the latter.
    divisor_of : (N, A) int64
        Index of each tile's extent among the axis's divisors.
    heap : (top, 8 + 3 * A) float64
        Rows: tie step of the time, packed tensors, parallel, -accumulators, unroll, -volume of the L1 tile, tile (A),
        calls (A), kernel (A), l1 order, class. A max-heap of `count` rows.

    Returns
    -------
    tuple of int
        The new count, and the number of nodes whose time was computed.
    """
    extents, is_reduction, simd = nest.extents, nest.is_reduction, nest.simd
    boxes, tensors = nest.boxes, nest.tensors
    core, line = machine.core, machine.core.line_bytes
    orders = nest.orders[3]
    num_axes = extents.shape[0]
    num_levels = size.shape[0]
    num_blocked = 0
    for i in range(num_axes):
        if not is_reduction[sequence[i]] or sequence[i] == simd[0]:
            num_blocked += 1
    tile, after, body = np.empty(num_axes, np.int64), np.empty(num_levels), np.empty(num_levels)
    calls, kernel, first = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    rows = np.empty(num_axes, np.int64)
    at = np.empty(num_axes, np.int64)
    grown = np.empty(num_axes + 1)
    unrolls = np.empty(num_axes + 1)
    pairs = np.empty(num_axes + 1, np.int64)
    parts = np.zeros(NUM_PARTS)
    key = np.empty(heap.shape[1])
    share, base_s, fixed_s, step = scalars[0], scalars[1], scalars[2], scalars[6]
    most = core.register_limit * core.registers
    evaluated = 0
    for n in range(choices.shape[0]):
        inner = tiles[choices[n]]
        outside_s = worth[n] + base_s
        limit = np.inf
        if count == heap.shape[0]:
            limit = np.exp((heap[0, 0] + 1.0) * step) * (1.0 + 1e-9)
        if bound[n] > limit:
            break
        lowest = np.inf
        volume = 1.0
        for a in range(num_axes):
            volume *= inner[a]
        depth = 0
        grown[0] = 1.0
        unrolls[0] = 1.0
        pairs[0] = 0
        at[0] = option_start[sequence[0], divisor_of[choices[n], sequence[0]]]
        while depth >= 0:
            a = sequence[depth]
            end = option_start[a, divisor_of[choices[n], a] + 1]
            if at[depth] >= end:
                depth -= 1
                if depth >= 0:
                    at[depth] += 1
                continue
            option = at[depth]
            calls[a] = option_values[option, 0]
            kernel[a] = option_values[option, 1]
            pairs[depth + 1] = pairs[depth]
            grown[depth + 1] = grown[depth]
            unrolls[depth + 1] = unrolls[depth]
            if is_reduction[a] and a != simd[0]:
                unrolls[depth + 1] *= kernel[a]
            else:
                grown[depth + 1] *= option_values[option, 2]
                if kernel[a] == 0 and a != simd[0]:
                    pairs[depth + 1] += 1
            if grown[depth + 1] > most or grown[depth + 1] * unrolls[depth + 1] > core.multiply_add_limit:
                at[depth] = end  # options ascend
                continue
            if pairs[depth + 1] > 1:
                at[depth] += 1
                continue
            if depth + 1 == num_blocked:  # the reductions' unrolling only saves loop instructions: bound it by the most
                for i in range(num_blocked, num_axes):
                    kernel[sequence[i]] = inner[sequence[i]]
                    calls[sequence[i]] = 1
                cycles = core_cycles(nest, core, inner, calls, kernel, packed, rows, parts)
                evaluated += 1
                if parts[1] > most:
                    at[depth] += 1
                    continue
                lowest = min(lowest, cycles)
                core_s = share * cycles / core.clock_hz
                if combine(core_s, share * outside_s, core.exposed_share) + fixed_s > limit:
                    at[depth] += 1
                    continue
            if depth + 1 < num_axes:
                depth += 1
                a = sequence[depth]
                at[depth] = option_start[a, divisor_of[choices[n], a]]
                continue
            at[depth] += 1
            if num_blocked < num_axes:
                cycles = core_cycles(nest, core, inner, calls, kernel, packed, rows, parts)
                evaluated += 1
            if parts[1] > most or parts[2] > core.multiply_add_limit:
                continue
            core_s = share * cycles / core.clock_hz
            if combine(core_s, share * outside_s, core.exposed_share) + fixed_s > limit:
                continue
            outside = 1.0
            for a in range(num_axes):
                first[a] = first_tile(inner[a], calls[a], kernel[a], simd[1], a == simd[0])
                outside *= extents[a] / inner[a] * calls[a]
            moved = footprint(boxes, tensors, first, packed, line, body)
            for o in range(orders.shape[0]):
                order = orders[o]
                if order[0] == -2:
                    break
                seconds = 0.0
                done = 0
                for c in range(num_levels):
                    if body[c] > size[c]:
                        seconds += moved * outside * fill_s[c]
                        done |= 1 << c
                rest = outside
                for a in range(num_axes):
                    tile[a] = first[a]
                for i in range(order.shape[0]):
                    a = order[i]
                    if a < 0:
                        break
                    if calls[a] == 1:
                        continue
                    tile[a] = inner[a]
                    rest /= calls[a]
                    through = footprint(boxes, tensors, tile, packed, line, after)
                    for c in range(num_levels):
                        if not done & (1 << c) and after[c] > size[c]:
                            seconds += through * rest * fill_s[c]
                            done |= 1 << c
                time_s = combine(core_s, share * (outside_s + seconds), core.exposed_share) + fixed_s
                if time_s > limit:
                    continue
                key[0] = np.floor(np.log(time_s) / step - 1e-9)
                key[1] = scalars[3]
                key[2] = scalars[4]
                key[3] = -parts[0]
                key[4] = unrolls[num_axes]
                key[5] = -volume
                for a in range(num_axes):
                    key[6 + a] = inner[a]
                    key[6 + num_axes + a] = calls[a]
                    key[6 + 2 * num_axes + a] = kernel[a]
                key[6 + 3 * num_axes] = o
                key[7 + 3 * num_axes] = scalars[5]
                count = keep_best(heap, count, key)
                if count == heap.shape[0]:
                    limit = np.exp((heap[0, 0] + 1.0) * step) * (1.0 + 1e-9)
        if lowest < np.inf:
            floor[choices[n]] = max(floor[choices[n]], lowest * (1.0 - 1e-12))
    return count, evaluated


@jit
def complete(
    nest: CpuNest,
    machine: CpuMachine,
    tiles: NDArray[np.int64],
    capacity: NDArray[np.float64],
    node: NDArray[np.float64],
    middle: NDArray[np.int64],
    middle_worth: NDArray[np.float64],
    chunks: NDArray[np.int64],
    chunk_worth: NDArray[np.float64],
    packed: NDArray[np.bool_],
    size: NDArray[np.float64],
    fill_s: NDArray[np.float64],
    scalars: NDArray[np.float64],
    wanted_step: float,
    found: NDArray[np.int64],
) -> tuple[int, float]:
    """Enumerate the completions of `node` whose time falls into tie step `wanted_step`, in the order of ties.

    Parameters
    ----------
    node : (8 + 3 * A,) float64
        A row of `best_kernels`' heap.
    middle, chunks : (m,) and (c,) int64
        L2 tiles and chunks as rows of the lattice, each from the largest volume down, then lexicographic; with their
        worths.
    found : (limit, 5) int64
        Overwritten: L2 tile, chunk, orders of l2, l3 and outer.

    Returns
    -------
    tuple of (int, float)
        Rows found; seconds below which no completion of a later step lies (inf: there is none).
    """
    extents, simd = nest.extents, nest.simd
    boxes, tensors = nest.boxes, nest.tensors
    core, line = machine.core, machine.core.line_bytes
    num_axes = extents.shape[0]
    num_levels = size.shape[0]
    tile, after, body = np.empty(num_axes, np.int64), np.empty(num_levels), np.empty(num_levels)
    inner, calls, kernel = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    rows, first = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    parts = np.zeros(NUM_PARTS)
    share, base_s, fixed_s, step = scalars[0], scalars[1], scalars[2], scalars[6]
    outside = 1.0
    for a in range(num_axes):
        inner[a] = int(node[6 + a])
        calls[a] = int(node[6 + num_axes + a])
        kernel[a] = int(node[6 + 2 * num_axes + a])
        first[a] = first_tile(inner[a], calls[a], kernel[a], simd[1], a == simd[0])
        outside *= extents[a] / inner[a] * calls[a]
    cycles = core_cycles(nest, core, inner, calls, kernel, packed, rows, parts)
    core_s = share * cycles / core.clock_hz
    moved = footprint(boxes, tensors, first, packed, line, body)
    inside = base_s
    done = 0
    for c in range(num_levels):
        if body[c] > size[c]:
            inside += moved * outside * fill_s[c]
            done |= 1 << c
    order = nest.orders[3, int(node[6 + 3 * num_axes])]
    for a in range(num_axes):
        tile[a] = first[a]
    for i in range(order.shape[0]):
        a = order[i]
        if a < 0:
            break
        if calls[a] == 1:
            continue
        tile[a] = inner[a]
        outside /= calls[a]
        through = footprint(boxes, tensors, tile, packed, line, after)
        for c in range(num_levels):
            if not done & (1 << c) and after[c] > size[c]:
                inside += through * outside * fill_s[c]
                done |= 1 << c
    inner_capacity = np.empty(num_levels)
    footprint(boxes, tensors, inner, packed, line, inner_capacity)
    whole = np.empty(num_levels)
    footprint(boxes, tensors, extents, packed, line, whole)
    l2_orders, l3_orders, outer_orders = nest.orders[2], nest.orders[1], nest.orders[0]
    l2_s, l3_s, outer_s = (
        np.zeros(l2_orders.shape[0]),
        np.zeros(l2_orders.shape[0]),
        np.zeros(l2_orders.shape[0]),
    )
    limit = np.exp((wanted_step + 1.0) * step) * (1.0 + 1e-9)
    count = 0
    later = np.inf
    for m in range(middle.shape[0]):
        l2_tile = tiles[middle[m]]
        fits = True
        for a in range(num_axes):
            if l2_tile[a] < inner[a] or l2_tile[a] % inner[a] != 0:
                fits = False
                break
        if not fits:
            continue
        lowest_s = combine(core_s, share * (inside + middle_worth[m]), core.exposed_share) + fixed_s
        if lowest_s > limit:
            later = min(later, lowest_s)
            continue
        lowest = np.inf
        for o in range(l2_orders.shape[0]):
            l2_s[o] = np.inf
            if l2_orders[o, 0] == -2:
                continue
            l2_s[o] = segment_seconds(
                boxes, tensors, extents, l2_orders[o], inner, l2_tile, packed, line, size, fill_s, inner_capacity,
                tile, after,
            )  # fmt: skip
            lowest = min(lowest, l2_s[o])
        lowest_s = combine(core_s, share * (inside + lowest + middle_worth[m]), core.exposed_share) + fixed_s
        if lowest_s > limit:
            later = min(later, lowest_s)
            continue
        for n in range(chunks.shape[0]):
            chunk = tiles[chunks[n]]
            fits = True
            for a in range(num_axes):
                if chunk[a] < l2_tile[a] or chunk[a] % l2_tile[a] != 0:
                    fits = False
                    break
            if not fits:
                continue
            lowest_s = combine(core_s, share * (inside + lowest + chunk_worth[n]), core.exposed_share) + fixed_s
            if lowest_s > limit:
                later = min(later, lowest_s)
                continue
            for o in range(l3_orders.shape[0]):
                l3_s[o] = np.inf
                outer_s[o] = np.inf
                if l3_orders[o, 0] != -2:
                    l3_s[o] = segment_seconds(
                        boxes, tensors, extents, l3_orders[o], l2_tile, chunk, packed, line, size, fill_s,
                        capacity[middle[m]], tile, after,
                    )  # fmt: skip
                if outer_orders[o, 0] != -2:
                    outer_s[o] = segment_seconds(
                        boxes, tensors, extents, outer_orders[o], chunk, extents, packed, line, size, fill_s,
                        capacity[chunks[n]], tile, after,
                    )  # fmt: skip
            for o in range(l2_orders.shape[0]):
                for p in range(l3_orders.shape[0]):
                    for q in range(outer_orders.shape[0]):
                        memory = inside + l2_s[o] + l3_s[p] + outer_s[q]
                        if memory == np.inf:
                            continue
                        time_s = combine(core_s, share * memory, core.exposed_share) + fixed_s
                        place = np.log(time_s) / step  # 1e-9: rounding; the caller judges by run_points
                        if np.floor(place + 1e-9) > wanted_step:
                            later = min(later, time_s)
                        if np.floor(place - 1e-9) > wanted_step or np.floor(place + 1e-9) < wanted_step:
                            continue
                        found[count, 0] = middle[m]
                        found[count, 1] = chunks[n]
                        found[count, 2] = o
                        found[count, 3] = p
                        found[count, 4] = q
                        count += 1
                        if count == found.shape[0]:
                            return count, later
    return count, later
