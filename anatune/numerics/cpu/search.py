"""Exact search of the CPU space: costs of cache tiles by dynamic programming, then microkernels on top.

The time of a point is monotone in two sums: core cycles, a function of the L1 tile and its microkernel, and transfer
seconds, a sum over the levels of the chain register tile < L1 tile < L2 tile < chunk < whole nest, where each pair of
neighbours adds the traffic of those caches whose capacity lies between them (`cpu_lattice.segment_seconds`). So the
cheapest completion of every tile is found exactly, outermost level first, and so is the best time of a microkernel on
an L1 tile.

Notation
--------
lattice : all tiles whose extents divide the nest's; a row of `tiles` (N, A) int64.
worth : (N,) seconds of the cheapest completion outside a tile, inf where there is none.
"""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.numerics.cpu.lattice import inner_seconds
from anatune.numerics.cpu.microkernel import NUM_PARTS, core_cycles
from anatune.numerics.cpu.nest import CpuMachine, CpuNest, combine

__all__ = ["best_kernels"]


@jit_inline
def is_before(
    left: Floats,
    right: Floats,
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
    heap: Floats,
    count: int,
    key: Floats,
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
    tiles: Ints,
    choices: Ints,
    bound: Floats,
    worth: Floats,
    floor: Floats,
    sequence: Ints,
    packed: Bools,
    size: Floats,
    fill_s: Floats,
    scalars: Floats,
    option_start: Ints,
    option_values: Ints,
    divisor_of: Ints,
    heap: Floats,
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
    core, line = machine.core, machine.core.line_bytes
    orders = nest.orders[3]
    num_axes = extents.shape[0]
    num_levels = size.shape[0]
    num_blocked = 0
    for i in range(num_axes):
        if not is_reduction[sequence[i]] or sequence[i] == simd[0]:
            num_blocked += 1
    tile, after = np.empty(num_axes, np.int64), np.empty(num_levels)
    calls, kernel = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
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
                cycles = core_cycles(nest, core, inner, calls, kernel, packed, rows, parts, num_blocked < num_axes)
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
                cycles = core_cycles(nest, core, inner, calls, kernel, packed, rows, parts, False)
                evaluated += 1
            if parts[1] > most or parts[2] > core.multiply_add_limit:
                continue
            core_s = share * cycles / core.clock_hz
            if combine(core_s, share * outside_s, core.exposed_share) + fixed_s > limit:
                continue
            for o in range(orders.shape[0]):
                order = orders[o]
                if order[0] == -2:
                    break
                seconds = inner_seconds(nest, order, inner, calls, kernel, packed, line, size, fill_s, tile, after)
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
