"""Exact search of the CPU space: costs of cache tiles by dynamic programming, then microkernels on top.

The time of a point is monotone in two sums: core cycles, a function of the L1 tile and its microkernel, and transfer
seconds, a sum over the levels of the chain register tile < L1 tile < L2 tile < chunk < whole nest, where each pair of
neighbours adds the traffic of those caches whose capacity lies between them (`lattice.segment_seconds`). So the
cheapest completion of every tile is found exactly, outermost level first, and so is the best time of a microkernel on
an L1 tile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit, jit_inline, jit_sequence
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
    Transfers,
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


class Chosen(NamedTuple):
    """Options chosen for the first axes of a sequence, and what the microkernel has come to with them."""

    at: Ints
    """(A,) row of the option of each axis."""
    grown: Floats
    """(A + 1,) accumulators, as the next two before each axis and after the last."""
    unrolls: Floats
    pairs: Ints
    """Axes other than the SIMD axis that a pair of microkernels covers."""


@jit_sequence
def _limit(heap: Floats, count: int, tie: float) -> float:
    """Return a time above which nothing can be among the best nodes."""
    return np.exp((heap[0, KEY_TIE] + 1.0) * tie) * (1.0 + 1e-9) if count == heap.shape[0] else np.inf


@jit_sequence
def _choose(nest: CpuNest, options: Options, depth: int, chosen: Chosen, on: Microkernel) -> None:
    """Give the axis at `depth` of the sequence its option."""
    a = options.sequence[depth]
    is_simd = a == nest.simd[0]
    option = chosen.at[depth]
    on.calls[a] = options.values[option, 0]
    on.kernel[a] = options.values[option, 1]
    chosen.pairs[depth + 1] = chosen.pairs[depth]
    chosen.grown[depth + 1] = chosen.grown[depth]
    chosen.unrolls[depth + 1] = chosen.unrolls[depth]
    if nest.is_reduction[a] and not is_simd:
        chosen.unrolls[depth + 1] *= on.kernel[a]
    else:
        chosen.grown[depth + 1] *= options.values[option, 2]
        if on.kernel[a] == 0 and not is_simd:
            chosen.pairs[depth + 1] += 1


@jit_sequence
def _keep_orders(
    nest: CpuNest,
    machine: CpuMachine,
    own: SearchClass,
    on: Microkernel,
    core_s: float,
    outside_s: float,
    transfers: Transfers,
    key: Floats,
    heap: Floats,
    count: int,
) -> int:
    """Put the nodes of a microkernel into `heap`, one an l1 order; return the new count.

    ``key`` : a node, whose columns from KEY_PACKED to KEY_VOLUME are filled already.
    """
    num_axes = on.inner.shape[0]
    orders = nest.orders[3]
    limit = _limit(heap, count, own.tie)
    for o in range(orders.shape[0]):
        if orders[o, 0] == -2:
            break
        memory_s = outside_s + inner_seconds(nest, orders[o], on, transfers)
        time_s = seconds_one(own, machine.core, core_s, memory_s)
        if time_s > limit:
            continue
        key[KEY_TIE] = np.floor(np.log(time_s) / own.tie - 1e-9)
        for a in range(num_axes):
            key[KEY_TILES + a] = on.inner[a]
            key[KEY_TILES + num_axes + a] = on.calls[a]
            key[KEY_TILES + 2 * num_axes + a] = on.kernel[a]
        key[KEY_TILES + 3 * num_axes] = o
        key[KEY_TILES + 3 * num_axes + 1] = own.number
        count = keep_best(heap, count, key)
        limit = _limit(heap, count, own.tie)
    return count


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
    core, packed, sequence = machine.core, own.caches.packed, options.sequence
    num_axes = nest.extents.shape[0]
    num_blocked = 0
    for i in range(num_axes):
        if not nest.is_reduction[sequence[i]] or sequence[i] == nest.simd[0]:
            num_blocked += 1
    transfers = transfers_of(nest, own.caches)
    calls, kernel, rows = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    at, pairs = np.empty(num_axes, np.int64), np.empty(num_axes + 1, np.int64)
    grown, unrolls = np.empty(num_axes + 1), np.empty(num_axes + 1)
    chosen = Chosen(at, grown, unrolls, pairs)
    parts = np.zeros(NUM_PARTS)
    key = np.empty(heap.shape[1])
    key[KEY_PACKED] = own.num_packed
    key[KEY_PARALLEL] = own.parallel
    most = core.register_limit * core.registers
    evaluated = 0
    for n in range(l1_tiles.rows.shape[0]):
        row = l1_tiles.rows[n]
        inner = tiles[row]
        on = Microkernel(inner, calls, kernel)
        outside_s = l1_tiles.worth[n] + own.base_s
        limit = _limit(heap, count, own.tie)
        if l1_tiles.bound[n] > limit:
            break
        lowest = np.inf
        volume = 1.0
        for a in range(num_axes):
            volume *= inner[a]
        key[KEY_VOLUME] = -volume
        depth = 0
        grown[0] = 1.0
        unrolls[0] = 1.0
        pairs[0] = 0
        at[0] = options.start[sequence[0], options.divisor_of[row, sequence[0]]]
        while depth >= 0:
            a = sequence[depth]
            end = options.start[a, options.divisor_of[row, a] + 1]
            if at[depth] >= end:
                depth -= 1
                if depth >= 0:
                    at[depth] += 1
                continue
            _choose(nest, options, depth, chosen, on)
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
                if seconds_one(own, core, own.share * cycles / core.clock_hz, outside_s) > limit:
                    at[depth] += 1
                    continue
            if depth + 1 < num_axes:
                depth += 1
                a = sequence[depth]
                at[depth] = options.start[a, options.divisor_of[row, a]]
                continue
            at[depth] += 1
            if num_blocked < num_axes:
                cycles = core_cycles(nest, core, on, packed, rows, parts, False)
                evaluated += 1
            if parts[REGISTERS] > most or parts[MULTIPLY_ADDS] > core.multiply_add_limit:
                continue
            core_s = own.share * cycles / core.clock_hz
            if seconds_one(own, core, core_s, outside_s) > limit:
                continue
            key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
            key[KEY_UNROLL] = unrolls[num_axes]
            count = _keep_orders(nest, machine, own, on, core_s, outside_s, transfers, key, heap, count)
            limit = _limit(heap, count, own.tie)
        if lowest < np.inf:
            floor[row] = max(floor[row], lowest * (1.0 - 1e-12))
    return count, evaluated
