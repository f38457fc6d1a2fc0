"""Exact search of the CPU space: costs of cache tiles by dynamic programming, then microkernels on top.

The time of a point is monotone in two sums: core cycles, a function of the L1 tile and its microkernel, and transfer
seconds, a sum over the levels of the chain register tile < L1 tile < L2 tile < chunk < whole nest, where each pair of
neighbours adds the traffic of those caches whose capacity lies between them (`lattice.segment_seconds`). So the
cheapest completion of every tile is found exactly, outermost level first, and so is the best time of a microkernel on
an L1 tile.
"""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.columns import Floats, Ints
from anatune.numerics.cpu.classes import (
    KEY_ACCUMULATORS,
    KEY_PACKED,
    KEY_PARALLEL,
    KEY_TIE,
    KEY_TILES,
    KEY_UNROLL,
    KEY_VOLUME,
    L1Tiles,
    Microkernel,
    Options,
    SearchClass,
    seconds_one,
    transfers_of,
)
from anatune.numerics.cpu.lattice import inner_seconds
from anatune.numerics.cpu.microkernel import ACCUMULATORS, MULTIPLY_ADDS, NUM_PARTS, REGISTERS, core_cycles
from anatune.numerics.cpu.nest import CpuMachine, CpuNest

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


@jit_inline
def _limit(heap: Floats, count: int, tie: float) -> float:
    """Return a time above which nothing can be among the best nodes."""
    return np.exp((heap[0, KEY_TIE] + 1.0) * tie) * (1.0 + 1e-9) if count == heap.shape[0] else np.inf


@jit_inline
def _write_node(inner: Ints, calls: Ints, kernel: Ints, order: int, number: int, key: Floats) -> None:
    """Fill the columns of a node from KEY_TILES on."""
    num_axes = inner.shape[0]
    for a in range(num_axes):
        key[KEY_TILES + a] = inner[a]
        key[KEY_TILES + num_axes + a] = calls[a]
        key[KEY_TILES + 2 * num_axes + a] = kernel[a]
    key[KEY_TILES + 3 * num_axes] = order
    key[KEY_TILES + 3 * num_axes + 1] = number


@jit
def best_kernels(
    nest: CpuNest,
    machine: CpuMachine,
    own: SearchClass,
    options: Options,
    tiles: Ints,
    l1_tiles: L1Tiles,
    floor: Floats,
    heap: Floats,
    count: int,
) -> tuple[int, int]:
    """Put the best nodes on some L1 tiles into `heap`.

    Parameters
    ----------
    tiles : (N, A) int64
        The lattice.
    floor : (N,) float64
        Lower bounds of the tiles' core cycles; replaced by the best microkernel's where they are computed.
    heap : (top, KEY_TILES + 3 * A + 2) float64
        A max-heap of `count` nodes.

    Returns
    -------
    tuple of int
        The new count, and the number of nodes whose time was computed.
    """
    core, terms, packed = machine.core, own.terms, own.caches.packed
    is_reduction, simd, orders = nest.is_reduction, nest.simd[0], nest.orders[3]
    sequence, start, values, divisor_of = options.sequence, options.start, options.values, options.divisor_of
    choices, bound, worth = l1_tiles.rows, l1_tiles.bound, l1_tiles.worth
    num_axes = sequence.shape[0]
    num_blocked = 0
    for i in range(num_axes):
        if not is_reduction[sequence[i]] or sequence[i] == simd:
            num_blocked += 1
    transfers = transfers_of(nest, own.caches)
    calls, kernel, rows = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    # rows of the options chosen for the axes so far; what the microkernel has come to before and after each axis
    at, pairs = np.empty(num_axes, np.int64), np.empty(num_axes + 1, np.int64)
    grown, unrolls = np.empty(num_axes + 1), np.empty(num_axes + 1)
    parts = np.zeros(NUM_PARTS)
    key = np.empty(heap.shape[1])
    key[KEY_PACKED] = own.num_packed
    key[KEY_PARALLEL] = own.parallel
    most = core.register_limit * core.registers
    evaluated = 0
    for n in range(choices.shape[0]):
        row = choices[n]
        inner = tiles[row]
        on = Microkernel(inner, calls, kernel)
        outside_s = worth[n]
        limit = _limit(heap, count, terms.tie)
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
        at[0] = start[sequence[0], divisor_of[row, sequence[0]]]
        while depth >= 0:
            a = sequence[depth]
            end = start[a, divisor_of[row, a] + 1]
            if at[depth] >= end:
                depth -= 1
                if depth >= 0:
                    at[depth] += 1
                continue
            option = at[depth]
            calls[a] = values[option, 0]
            kernel[a] = values[option, 1]
            pairs[depth + 1] = pairs[depth]
            grown[depth + 1] = grown[depth]
            unrolls[depth + 1] = unrolls[depth]
            if is_reduction[a] and a != simd:
                unrolls[depth + 1] *= np.ceil(kernel[a] / nest.group[1]) if a == nest.group[0] else kernel[a]
            else:
                grown[depth + 1] *= values[option, 2]
                if kernel[a] == 0 and a != simd:
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
                cycles = core_cycles(nest, core, on, packed, rows, parts, num_blocked < num_axes)
                evaluated += 1
                if parts[REGISTERS] > most:
                    at[depth] += 1
                    continue
                lowest = min(lowest, cycles)
                if seconds_one(terms, terms.share * cycles / core.clock_hz, outside_s) > limit:
                    at[depth] += 1
                    continue
            if depth + 1 < num_axes:
                depth += 1
                a = sequence[depth]
                at[depth] = start[a, divisor_of[row, a]]
                continue
            at[depth] += 1
            if num_blocked < num_axes:
                cycles = core_cycles(nest, core, on, packed, rows, parts, False)
                evaluated += 1
            if parts[REGISTERS] > most or parts[MULTIPLY_ADDS] > core.multiply_add_limit:
                continue
            core_s = terms.share * cycles / core.clock_hz
            if seconds_one(terms, core_s, outside_s) > limit:
                continue
            for o in range(orders.shape[0]):
                if orders[o, 0] == -2:
                    break
                time_s = seconds_one(terms, core_s, outside_s + inner_seconds(nest, orders[o], on, transfers))
                if time_s > limit:
                    continue
                key[KEY_TIE] = np.floor(np.log(time_s) / terms.tie - 1e-9)
                key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
                key[KEY_UNROLL] = unrolls[num_axes]
                key[KEY_VOLUME] = -volume
                _write_node(inner, calls, kernel, o, own.number, key)
                count = keep_best(heap, count, key)
                limit = _limit(heap, count, terms.tie)
        if lowest < np.inf:
            floor[row] = max(floor[row], lowest * (1.0 - 1e-12))
    return count, evaluated
