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

from anatune.numerics._jit import jit, jit_helper, jit_inline, jit_sequence
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.cpu.times.classes import (
    KEY_ACCUMULATORS,
    KEY_PACKED,
    KEY_PARALLEL,
    KEY_TIE,
    KEY_TILES,
    KEY_UNROLL,
    KEY_VOLUME,
    Floors,
    L1Tiles,
    Microkernel,
    Options,
    SearchClass,
    Transfers,
    seconds_one,
    transfers_of,
    unrolling,
)
from anatune.templates.cpu.times.lattice import inner_seconds
from anatune.templates.cpu.times.microkernel import (
    ACCUMULATORS,
    MULTIPLY_ADDS,
    NUM_PARTS,
    REGISTERS,
    call_one,
    core_cycles,
)
from anatune.templates.cpu.times.nest import CpuCore, CpuMachine, CpuNest

__all__ = ["best_kernels"]


@jit_inline
def is_before(left: Floats, right: Floats) -> bool:
    """Lexicographic order of two rows."""
    for i in range(left.shape[0]):
        if left[i] < right[i]:
            return True
        if left[i] > right[i]:
            return False
    return False


@jit_inline
def keep_best(heap: Floats, count: int, key: Floats) -> int:
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
def _may_enter(heap: Floats, count: int, key: Floats, least_s: float, tie: float) -> bool:
    """Whether a node of at least so many seconds, and of `key`'s columns behind the first one, may enter the heap.

    Columns from KEY_TILES on are not looked at.
    """
    if count < heap.shape[0]:
        return True
    key[KEY_TIE] = np.floor(np.log(least_s) / tie - 2e-9)
    for i in range(KEY_TILES):
        if key[i] < heap[0, i]:
            return True
        if key[i] > heap[0, i]:
            return False
    return True


@jit_inline
def _write_node(on: Microkernel, order: int, number: int, key: Floats) -> None:
    """Fill the columns of a node from KEY_TILES on."""
    num_axes = on.inner.shape[0]
    for a in range(num_axes):
        key[KEY_TILES + a] = on.inner[a]
        key[KEY_TILES + num_axes + a] = on.calls[a]
        key[KEY_TILES + 2 * num_axes + a] = on.kernel[a]
    key[KEY_TILES + 3 * num_axes] = order
    key[KEY_TILES + 3 * num_axes + 1] = number


class _Walk(NamedTuple):
    """Where the enumeration of microkernels stands; see `Options` of what is chosen, axis by axis of its sequence."""

    at: Ints
    """(A,) rows of the options chosen so far."""
    pairs: Ints
    """(A + 1,) what the microkernel has come to before and after each axis, as the next: pairs beside the SIMD axis."""
    grown: Floats
    """Vectors of results."""
    unrolls: Floats
    """Unrolled steps."""


@jit_sequence
def _new_walk(num_axes: int) -> _Walk:
    return _Walk(
        np.empty(num_axes, np.int64), np.zeros(num_axes + 1, np.int64), np.ones(num_axes + 1), np.ones(num_axes + 1)
    )


@jit_inline
def _begin(walk: _Walk, options: Options, divisors: Ints, first: int) -> None:
    """Stand before the first choice for the axes from `first` on, of a tile with these (A,) divisors."""
    if first < options.sequence.shape[0]:
        a = options.sequence[first]
        walk.at[first] = options.start[a, divisors[a]] - 1


@jit_helper
def _advance(
    nest: CpuNest, core: CpuCore, options: Options, divisors: Ints, on: Microkernel, walk: _Walk, first: int, last: int
) -> bool:
    """Go on to the next choice for the axes number `first` to `last` of the sequence; return whether there is one.

    Those that need more registers than any rule allows, or too long a straight-line body, are left out.
    """
    start, values, sequence = options.start, options.values, options.sequence
    at, pairs, grown, unrolls = walk.at, walk.pairs, walk.grown, walk.unrolls
    most = core.register_limit * core.registers
    if nest.group[2] > 1:
        most *= 0.5 * nest.group[2]  # rows and vectors of 4 tiles of sums: 2 x 2 leave 4 for the operands
    depth = last - 1 if walk.at[first] >= start[sequence[first], divisors[sequence[first]]] else first
    at[depth] += 1
    while True:
        a = sequence[depth]
        end = start[a, divisors[a] + 1]
        option = at[depth]
        if option >= end:
            if depth == first:
                return False
            depth -= 1
            at[depth] += 1
            continue
        on.calls[a] = values[option, 0]
        on.kernel[a] = values[option, 1]
        pairs[depth + 1] = pairs[depth]
        grown[depth + 1] = grown[depth]
        unrolls[depth + 1] = unrolls[depth]
        if nest.is_reduction[a] and a != nest.simd[0]:
            unrolls[depth + 1] *= np.ceil(on.kernel[a] / nest.group[1]) if a == nest.group[0] else on.kernel[a]
        else:
            grown[depth + 1] *= values[option, 2]
            if on.kernel[a] == 0 and a != nest.simd[0]:
                pairs[depth + 1] += 1
        if grown[depth + 1] > most or grown[depth + 1] * unrolls[depth + 1] > core.multiply_add_limit:
            at[depth] = end  # options ascend
        elif pairs[depth + 1] > 1:
            at[depth] += 1
        elif depth + 1 == last:
            return True
        else:
            depth += 1
            at[depth] = start[sequence[depth], divisors[sequence[depth]]]


@jit_inline
def _bound_unrolling(options: Options, on: Microkernel) -> None:
    """Choose the most unrolling of the reductions: it only saves loop instructions."""
    for i in range(options.num_blocked, options.sequence.shape[0]):
        a = options.sequence[i]
        on.kernel[a] = on.inner[a]
        on.calls[a] = 1


@jit_inline
def _calls_cycles(nest: CpuNest, core: CpuCore, options: Options, on: Microkernel, inside: float) -> float:
    """Return cycles that so many calls of a microkernel take, however few results each has: latency and entry."""
    number, steps = 1.0, 1.0
    for i in range(options.sequence.shape[0]):
        a = options.sequence[i]
        number *= nest.extents[a] / on.inner[a]
        if i < options.num_blocked:
            number *= on.calls[a]
        else:
            steps *= on.inner[a] / (nest.group[1] if a == nest.group[0] else 1)
    return number * inside * steps * core.fma_latency * float(nest.simd[3])


@jit_inline
def _partial_cycles(nest: CpuNest, core: CpuCore, inner: Ints) -> float:
    """Return cycles that no microkernels on a tile undercut for calls that add to what earlier ones have stored."""
    axis = nest.simd[0]
    if not nest.uses[nest.uses.shape[0] - 1, axis]:
        return 0.0
    vectors = nest.extents[axis] / inner[axis] * np.ceil(inner[axis] / nest.simd[1])
    for a in range(inner.shape[0]):
        if not nest.is_reduction[a] and a != axis:
            vectors *= nest.extents[a]
    most = core.register_limit * core.registers  # accumulators of a call
    return float(vectors / most * call_one(core, most, most, float(nest.simd[3]), 1.0))


@jit_helper
def _least_cycles(
    nest: CpuNest, core: CpuCore, options: Options, divisors: Ints, on: Microkernel, packed: Bools, walk: _Walk,
    rows: Ints, parts: Floats,
) -> tuple[float, int]:  # fmt: skip
    """Return cycles that no microkernel on a tile undercuts, and how many were looked at; inf where there is none."""
    most, inside = core.register_limit * core.registers, nest.inside_share.prod()
    least = np.inf
    evaluated = 0
    _begin(walk, options, divisors, 0)
    while _advance(nest, core, options, divisors, on, walk, 0, options.num_blocked):
        if _calls_cycles(nest, core, options, on, inside) >= least:
            continue
        _bound_unrolling(options, on)
        cycles = core_cycles(nest, core, on, packed, rows, parts, True)
        evaluated += 1
        if parts[REGISTERS] <= most:
            least = min(least, cycles)
    return least, evaluated


@jit_helper
def _keep_orders(
    nest: CpuNest, core: CpuCore, own: SearchClass, on: Microkernel, cycles: float, parts: Floats, outside_s: float,
    least_s: float, transfers: Transfers, walk: _Walk, key: Floats, heap: Floats, count: int,
) -> int:  # fmt: skip
    """Put a microkernel with each order of its calls into `heap`; return the new count."""
    most = core.register_limit * core.registers
    if parts[REGISTERS] > most or parts[MULTIPLY_ADDS] > core.multiply_add_limit:
        return count
    orders, terms = nest.orders[3], own.terms
    core_s = terms.share * cycles / core.clock_hz
    key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
    key[KEY_UNROLL] = unrolling(float(walk.unrolls[on.inner.shape[0]]))
    if not _may_enter(heap, count, key, seconds_one(terms, core_s, least_s), terms.tie):
        return count
    for o in range(orders.shape[0]):
        if orders[o, 0] == -2:
            break
        time_s = seconds_one(terms, core_s, outside_s + inner_seconds(nest, orders[o], on, transfers))
        if time_s <= _limit(heap, count, terms.tie):
            key[KEY_TIE] = np.floor(np.log(time_s) / terms.tie - 1e-9)
            _write_node(on, o, own.number, key)
            count = keep_best(heap, count, key)
    return count


@jit
def best_kernels(
    nest: CpuNest,
    machine: CpuMachine,
    own: SearchClass,
    options: Options,
    l1_tiles: L1Tiles,
    floors: Floors,
    heap: Floats,
    count: int,
) -> tuple[int, int]:
    """Put the best nodes on some L1 tiles into `heap`.

    Parameters
    ----------
    floors
        Of the class's packing; what is found out is written there.
    heap : (top, KEY_TILES + 3 * A + 2) float64
        A max-heap of `count` nodes.

    Returns
    -------
    tuple of int
        The new count, and the number of nodes whose time was computed.
    """
    core, terms, tiles, packed = machine.core, own.terms, own.tiles, own.tiles.caches.packed
    size, fill_s = tiles.caches.size, tiles.caches.fill_s
    num_axes, num_blocked = nest.extents.shape[0], options.num_blocked
    transfers, walk = transfers_of(nest, tiles.caches), _new_walk(num_axes)
    calls, kernel, rows = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    parts = np.zeros(NUM_PARTS)
    key = np.empty(heap.shape[1])
    key[KEY_PACKED] = own.pack_tie
    key[KEY_PARALLEL] = own.parallel
    most, inside = core.register_limit * core.registers, nest.inside_share.prod()
    evaluated = 0
    for n in range(l1_tiles.rows.shape[0]):
        limit = _limit(heap, count, terms.tie)
        if l1_tiles.bound[n] > limit:
            break
        row = l1_tiles.rows[n]
        inner, divisors = tiles.lattice[row], tiles.divisor_of[row]
        on = Microkernel(inner, calls, kernel)
        outside_s = l1_tiles.worth[n]
        least_s = outside_s  # with what the loops inside bring in at least
        for c in range(size.shape[0]):
            if tiles.capacity[row, c] > size[c]:
                least_s += tiles.moved[row, c] * (1.0 - 1e-12) * fill_s[c]
        whole = row  # the tile of the same results with whole reductions
        parts_of_sums = 1.0
        for i in range(num_blocked, num_axes):
            a = options.sequence[i]
            parts_of_sums *= nest.extents[a] / inner[a]
            whole += (tiles.divisor_of[tiles.lattice.shape[0] - 1, a] - divisors[a]) * tiles.stride[a]
        if np.isnan(floors.whole[whole]):
            floors.whole[whole], looked = _least_cycles(
                nest, core, options, tiles.divisor_of[whole], Microkernel(tiles.lattice[whole], calls, kernel), packed,
                walk, rows, parts,
            )  # fmt: skip
            evaluated += looked
        least = floors.whole[whole] + (parts_of_sums - 1.0) * _partial_cycles(nest, core, inner)
        floors.cycles[row] = max(floors.cycles[row], least * (1.0 - 1e-12))
        if seconds_one(terms, terms.share * floors.cycles[row] / core.clock_hz, least_s) > limit:
            continue
        lowest = np.inf
        key[KEY_VOLUME] = -1.0
        for a in range(num_axes):
            key[KEY_VOLUME] *= inner[a]
        _begin(walk, options, divisors, 0)
        while _advance(nest, core, options, divisors, on, walk, 0, num_blocked):
            cycles = _calls_cycles(nest, core, options, on, inside)
            if seconds_one(terms, terms.share * cycles / core.clock_hz, least_s) > limit:
                lowest = min(lowest, cycles)
                continue
            _bound_unrolling(options, on)
            cycles = core_cycles(nest, core, on, packed, rows, parts, num_blocked < num_axes)
            evaluated += 1
            if parts[REGISTERS] > most:
                continue
            lowest = min(lowest, cycles)
            key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
            key[KEY_UNROLL] = 1.0
            time_s = seconds_one(terms, terms.share * cycles / core.clock_hz, least_s)
            if time_s > limit or not _may_enter(heap, count, key, time_s, terms.tie):
                continue
            if num_blocked == num_axes:
                evaluated += 1
                count = _keep_orders(
                    nest, core, own, on, cycles, parts, outside_s, least_s, transfers, walk, key, heap, count
                )
                continue
            _begin(walk, options, divisors, num_blocked)
            while _advance(nest, core, options, divisors, on, walk, num_blocked, num_axes):
                cycles = core_cycles(nest, core, on, packed, rows, parts, False)
                evaluated += 1
                if seconds_one(terms, terms.share * cycles / core.clock_hz, least_s) <= limit:
                    count = _keep_orders(
                        nest, core, own, on, cycles, parts, outside_s, least_s, transfers, walk, key, heap, count
                    )
            limit = _limit(heap, count, terms.tie)
        if lowest < np.inf:
            floors.cycles[row] = max(floors.cycles[row], lowest * (1.0 - 1e-12))
    return count, evaluated
