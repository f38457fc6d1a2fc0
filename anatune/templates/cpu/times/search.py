"""Exact search of the CPU space: the method, and the proof that it misses no faster point.

The time of a point. A point of one class (one packing, one distribution over the cores) is a chain of tiles,
microkernel < L1 tile < L2 tile < chunk < whole nest, with an order of the loops between neighbours. Its time is
``combine(core, memory) + fixed`` (`point_seconds`). Core seconds depend on the L1 tile and its microkernel only. The
transfer seconds are a sum over the caches, and the chain decides each cache at one place: between the last tile that
the cache holds and the first that it does not (`lattice.segment_seconds`). So they are a sum of one term for each pair
of neighbours. The time is monotone in core and transfer seconds.

1. Worth. The worth of a tile is the least sum of the terms outside it. Since terms depend on pairs of neighbours only,
``worth(small) = min(term(small, large, order) + worth(large))`` over all larger tiles and orders. `lattice.cover`
computes it from the outermost level inwards. So the worth is exact, and with it the best time of a microkernel on an L1
tile.

2. Bound of an L1 tile before its microkernels are enumerated. Its core seconds are at least `Floors.cycles`, the
largest of three lower bounds: multiply-adds at the peak rate with the fewest calls (`groups.floor_cycles`); the best
microkernel of the tile with whole reductions, plus the reloads of partial sums (`_least_cycles`, `_partial_cycles`);
and, once its microkernels were enumerated, the best of them with all steps unrolled, because unrolling only saves loop
instructions. Its transfer seconds are at least its worth plus, for each cache that does not hold the tile, the bytes
that all such tiles move: iterations fetch at least the union of what they touch (`lattice.capacities`). Before the
worth is computed, the bytes of the whole nest replace it, by the same argument.

3. Bound of a group of classes. All its points have the same caches and constant seconds, so the least of bound 2 over
all tiles, with all threads busy, bounds them (`groups.PointGroups`).

4. Rounding. Bounds are multiplied by 1 - 1e-12, limits by 1 + 1e-9.

Groups, classes and tiles are visited in ascending order of their bounds until a bound exceeds the limit: the end of the
tie step of the last of the `kept` best nodes. All that is not visited is therefore slower than all kept nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
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
    MicrokernelOptions,
    MicrokernelShape,
    SearchClass,
    Transfers,
    point_seconds,
    transfers_of,
    unrolling,
)
from anatune.templates.cpu.times.lattice import inner_seconds
from anatune.templates.cpu.times.microkernel import (
    ACCUMULATORS,
    MULTIPLY_ADDS,
    REGISTERS,
    KernelWork,
    call_one,
    core_cycles,
    new_kernel_work,
)
from anatune.templates.cpu.times.nest import CpuCore, CpuMachine, CpuNest

__all__ = ["best_kernels"]


@jit_inline
def is_before(left: Floats, right: Floats) -> bool:
    """Return whether a row precedes another one in lexicographic order."""
    for i in range(left.shape[0]):
        if left[i] < right[i]:
            return True
        if left[i] > right[i]:
            return False
    return False


@jit_inline
def keep_best(heap: Floats, count: int, key: Floats) -> int:
    """Insert `key` into a max-heap of rows (lexicographic). A full heap drops its largest row. Return the new count."""
    capacity = heap.shape[0]
    width = key.shape[0]
    if count < capacity:
        position = count
        while position > 0:
            parent = (position - 1) // 2
            if not is_before(heap[parent], key):
                break
            for i in range(width):
                heap[position, i] = heap[parent, i]
            position = parent
        for i in range(width):
            heap[position, i] = key[i]
        return count + 1
    if not is_before(key, heap[0]):
        return count
    position = 0
    while True:
        child = 2 * position + 1
        if child >= capacity:
            break
        if child + 1 < capacity and is_before(heap[child], heap[child + 1]):
            child += 1
        if not is_before(key, heap[child]):
            break
        for i in range(width):
            heap[position, i] = heap[child, i]
        position = child
    for i in range(width):
        heap[position, i] = key[i]
    return count


@jit_inline
def _limit(heap: Floats, count: int, tie: float) -> float:
    """Return a time above which no node is among the best ones."""
    return np.exp((heap[0, KEY_TIE] + 1.0) * tie) * (1.0 + 1e-9) if count == heap.shape[0] else np.inf


@jit_inline
def _may_enter(heap: Floats, count: int, key: Floats, least_s: float, tie: float) -> bool:
    """Return whether a node of at least `least_s` seconds can enter the heap, given all other columns of `key`.

    Columns from KEY_TILES on are ignored.
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
def _write_node(on: MicrokernelShape, order: int, number: int, key: Floats) -> None:
    """Fill the columns of a node from KEY_TILES on."""
    num_axes = on.inner.shape[0]
    for a in range(num_axes):
        key[KEY_TILES + a] = on.inner[a]
        key[KEY_TILES + num_axes + a] = on.calls[a]
        key[KEY_TILES + 2 * num_axes + a] = on.kernel[a]
    key[KEY_TILES + 3 * num_axes] = order
    key[KEY_TILES + 3 * num_axes + 1] = number


class _Enumeration(NamedTuple):
    """State of the enumeration of microkernels: one option for each axis of `MicrokernelOptions.sequence`."""

    chosen: Ints
    """(A,) rows of the options chosen so far."""
    pairs: Ints
    """(A + 1,) pairs beside the SIMD axis, after each number of axes; the next two fields likewise."""
    grown: Floats
    """Vectors of results."""
    unrolls: Floats
    """Unrolled steps."""


def _new_enumeration(num_axes: int) -> _Enumeration:
    return _Enumeration(
        np.empty(num_axes, np.int64), np.zeros(num_axes + 1, np.int64), np.ones(num_axes + 1), np.ones(num_axes + 1)
    )


@jit_inline
def _begin(walk: _Enumeration, options: MicrokernelOptions, divisors: Ints, first: int) -> None:
    """Reset the enumeration to before the first choice for the axes from `first` on, for a tile's `divisors` (A,)."""
    if first < options.sequence.shape[0]:
        a = options.sequence[first]
        walk.chosen[first] = options.start[a, divisors[a]] - 1


@jit_helper
def _advance(
    nest: CpuNest, core: CpuCore, options: MicrokernelOptions, divisors: Ints, shape: MicrokernelShape,
    walk: _Enumeration, first: int, last: int,
) -> bool:  # fmt: skip
    """Move to the next choice for the axes `first` to `last` of the sequence; return whether there is one.

    Choices that need more registers than any rule allows, or too long a straight-line body, are skipped.
    """
    start, values, sequence = options.start, options.values, options.sequence
    chosen, pairs, grown, unrolls = walk.chosen, walk.pairs, walk.grown, walk.unrolls
    most = core.register_limit * core.registers
    if nest.group[2] > 1:
        most *= 0.5 * nest.group[2]  # at most 4 tiles of sums (2 x 2), which leave 4 for the operands
    depth = last - 1 if walk.chosen[first] >= start[sequence[first], divisors[sequence[first]]] else first
    chosen[depth] += 1
    while True:
        a = sequence[depth]
        end = start[a, divisors[a] + 1]
        option = chosen[depth]
        if option >= end:
            if depth == first:
                return False
            depth -= 1
            chosen[depth] += 1
            continue
        shape.calls[a] = values[option, 0]
        shape.kernel[a] = values[option, 1]
        pairs[depth + 1] = pairs[depth]
        grown[depth + 1] = grown[depth]
        unrolls[depth + 1] = unrolls[depth]
        if nest.is_reduction[a] and a != nest.simd[0]:
            unrolls[depth + 1] *= np.ceil(shape.kernel[a] / nest.group[1]) if a == nest.group[0] else shape.kernel[a]
        else:
            grown[depth + 1] *= values[option, 2]
            if shape.kernel[a] == 0 and a != nest.simd[0]:
                pairs[depth + 1] += 1
        if grown[depth + 1] > most or grown[depth + 1] * unrolls[depth + 1] > core.multiply_add_limit:
            chosen[depth] = end  # options ascend
        elif pairs[depth + 1] > 1:
            chosen[depth] += 1
        elif depth + 1 == last:
            return True
        else:
            depth += 1
            chosen[depth] = start[sequence[depth], divisors[sequence[depth]]]


@jit_inline
def _unroll_all(options: MicrokernelOptions, shape: MicrokernelShape) -> None:
    """Unroll all reductions completely, which gives a lower bound: unrolling only saves loop instructions."""
    for i in range(options.num_blocked, options.sequence.shape[0]):
        a = options.sequence[i]
        shape.kernel[a] = shape.inner[a]
        shape.calls[a] = 1


@jit_inline
def _calls_cycles(
    nest: CpuNest, core: CpuCore, options: MicrokernelOptions, shape: MicrokernelShape, inside_share: float
) -> float:
    """Return a lower bound on the cycles of these calls, from the latency of their steps."""
    number, steps = 1.0, 1.0
    for i in range(options.sequence.shape[0]):
        a = options.sequence[i]
        number *= nest.extents[a] / shape.inner[a]
        if i < options.num_blocked:
            number *= shape.calls[a]
        else:
            steps *= shape.inner[a] / (nest.group[1] if a == nest.group[0] else 1)
    return number * inside_share * steps * core.fma_latency * float(nest.simd[3])


@jit_inline
def _partial_cycles(nest: CpuNest, core: CpuCore, inner: Ints) -> float:
    """Return a lower bound on the cycles of calls that add to partial sums, for all microkernels on a tile."""
    axis = nest.simd[0]
    if not nest.uses[nest.uses.shape[0] - 1, axis]:
        return 0.0
    vectors = nest.extents[axis] / inner[axis] * np.ceil(inner[axis] / nest.simd[1])
    for a in range(inner.shape[0]):
        if not nest.is_reduction[a] and a != axis:
            vectors *= nest.extents[a]
    most = core.register_limit * core.registers  # accumulators of a call
    return float(vectors / most * (call_one(core, most, most, float(nest.simd[3]), 1.0) + nest.sums_wait))


@jit_inline
def _product(values: Floats) -> float:
    product = 1.0
    for i in range(values.shape[0]):
        product *= values[i]
    return product


@jit_helper
def _least_cycles(
    nest: CpuNest, core: CpuCore, options: MicrokernelOptions, divisors: Ints, shape: MicrokernelShape,
    packed: Bools, walk: _Enumeration, rows: Ints, parts: Floats,
) -> tuple[float, int]:  # fmt: skip
    """Return the least cycles of any microkernel on a tile (inf if there is none), and how many were evaluated."""
    most, inside_share = core.register_limit * core.registers, _product(nest.inside_share)
    least = np.inf
    evaluated = 0
    _begin(walk, options, divisors, 0)
    while _advance(nest, core, options, divisors, shape, walk, 0, options.num_blocked):
        if _calls_cycles(nest, core, options, shape, inside_share) >= least:
            continue
        _unroll_all(options, shape)
        cycles = core_cycles(nest, core, shape, packed, rows, parts, True)
        evaluated += 1
        if parts[REGISTERS] <= most:
            least = min(least, cycles)
    return least, evaluated


@jit_helper
def _keep_orders(
    nest: CpuNest, core: CpuCore, search_class: SearchClass, shape: MicrokernelShape, cycles: float, parts: Floats,
    outside_s: float, least_s: float, transfers: Transfers, walk: _Enumeration, key: Floats, heap: Floats, count: int,
) -> int:  # fmt: skip
    """Insert a microkernel with each order of its calls into `heap`; return the new count."""
    most = core.register_limit * core.registers
    if parts[REGISTERS] > most or parts[MULTIPLY_ADDS] > core.multiply_add_limit:
        return count
    orders, terms = nest.orders[3], search_class.terms
    core_s = terms.share * cycles / core.clock_hz
    key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
    key[KEY_UNROLL] = unrolling(float(walk.unrolls[shape.inner.shape[0]]))
    if not _may_enter(heap, count, key, point_seconds(terms, core_s, least_s), terms.tie):
        return count
    for o in range(orders.shape[0]):
        if orders[o, 0] == -2:
            break
        time_s = point_seconds(terms, core_s, outside_s + inner_seconds(nest, orders[o], shape, transfers))
        if time_s <= _limit(heap, count, terms.tie):
            key[KEY_TIE] = np.floor(np.log(time_s) / terms.tie - 1e-9)
            _write_node(shape, o, search_class.number, key)
            count = keep_best(heap, count, key)
    return count


def best_kernels(
    nest: CpuNest,
    machine: CpuMachine,
    search_class: SearchClass,
    options: MicrokernelOptions,
    l1_tiles: L1Tiles,
    floors: Floors,
    heap: Floats,
    count: int,
) -> tuple[int, int]:
    """Insert the best nodes on some L1 tiles into `heap`.

    Parameters
    ----------
    floors
        Lower bounds for the packing of the class. The search improves them.
    heap : (top, KEY_TILES + 3 * A + 2) float64
        A max-heap of `count` nodes.

    Returns
    -------
    tuple of int
        The new count, and the number of nodes whose time was computed.
    """
    num_axes = len(nest.extents)
    transfers = transfers_of(nest, search_class.tiles.caches)
    count, evaluated = _best_kernels(
        nest, machine.core, search_class, options, l1_tiles, floors, transfers, _new_enumeration(num_axes),
        new_kernel_work(num_axes), np.empty(heap.shape[1]), heap, count,
    )  # fmt: skip
    return count, evaluated


@jit
def _best_kernels(
    nest: CpuNest, core: CpuCore, search_class: SearchClass, options: MicrokernelOptions, l1_tiles: L1Tiles,
    floors: Floors, transfers: Transfers, walk: _Enumeration, work: KernelWork, key: Floats, heap: Floats, count: int,
) -> tuple[int, int]:  # fmt: skip
    """Do the work of `best_kernels`; `key` is work space for a row of the heap."""
    terms, tiles, packed = search_class.terms, search_class.tiles, search_class.tiles.caches.packed
    size, fill_s = tiles.caches.size, tiles.caches.fill_s
    num_axes, num_blocked = nest.extents.shape[0], options.num_blocked
    calls, kernel, rows, parts = work.calls, work.kernel, work.rows, work.parts
    key[KEY_PACKED] = search_class.pack_tie
    key[KEY_PARALLEL] = search_class.parallel
    most, inside_share = core.register_limit * core.registers, _product(nest.inside_share)
    evaluated = 0
    for n in range(l1_tiles.rows.shape[0]):
        limit = _limit(heap, count, terms.tie)
        if l1_tiles.bound[n] > limit:
            break
        row = l1_tiles.rows[n]
        inner, divisors = tiles.lattice[row], tiles.divisor_of[row]
        shape = MicrokernelShape(inner, calls, kernel)
        outside_s = l1_tiles.worth[n]
        least_s = outside_s  # plus the least that the loops inside fetch
        for c in range(size.shape[0]):
            if tiles.capacity[row, c] > size[c]:
                least_s += tiles.moved[row, c] * (1.0 - 1e-12) * fill_s[c]
        whole_row = row  # the tile of the same results with whole reductions
        parts_of_sums = 1.0
        for i in range(num_blocked, num_axes):
            a = options.sequence[i]
            parts_of_sums *= nest.extents[a] / inner[a]
            whole_row += (tiles.divisor_of[tiles.lattice.shape[0] - 1, a] - divisors[a]) * tiles.stride[a]
        if np.isnan(floors.whole[whole_row]):
            floors.whole[whole_row], looked = _least_cycles(
                nest, core, options, tiles.divisor_of[whole_row],
                MicrokernelShape(tiles.lattice[whole_row], calls, kernel), packed, walk, rows, parts,
            )  # fmt: skip
            evaluated += looked
        least = floors.whole[whole_row] + (parts_of_sums - 1.0) * _partial_cycles(nest, core, inner)
        floors.cycles[row] = max(floors.cycles[row], least * (1.0 - 1e-12))
        if point_seconds(terms, terms.share * floors.cycles[row] / core.clock_hz, least_s) > limit:
            continue
        lowest = np.inf
        key[KEY_VOLUME] = -1.0
        for a in range(num_axes):
            key[KEY_VOLUME] *= inner[a]
        _begin(walk, options, divisors, 0)
        while _advance(nest, core, options, divisors, shape, walk, 0, num_blocked):
            cycles = _calls_cycles(nest, core, options, shape, inside_share)
            if point_seconds(terms, terms.share * cycles / core.clock_hz, least_s) > limit:
                lowest = min(lowest, cycles)
                continue
            _unroll_all(options, shape)
            cycles = core_cycles(nest, core, shape, packed, rows, parts, num_blocked < num_axes)
            evaluated += 1
            if parts[REGISTERS] > most:
                continue
            lowest = min(lowest, cycles)
            key[KEY_ACCUMULATORS] = -parts[ACCUMULATORS]
            key[KEY_UNROLL] = 1.0
            time_s = point_seconds(terms, terms.share * cycles / core.clock_hz, least_s)
            if time_s > limit or not _may_enter(heap, count, key, time_s, terms.tie):
                continue
            if num_blocked == num_axes:
                evaluated += 1
                count = _keep_orders(
                    nest, core, search_class, shape, cycles, parts, outside_s, least_s, transfers, walk, key,
                    heap, count,
                )  # fmt: skip
                continue
            _begin(walk, options, divisors, num_blocked)
            while _advance(nest, core, options, divisors, shape, walk, num_blocked, num_axes):
                cycles = core_cycles(nest, core, shape, packed, rows, parts, False)
                evaluated += 1
                if point_seconds(terms, terms.share * cycles / core.clock_hz, least_s) <= limit:
                    count = _keep_orders(
                        nest, core, search_class, shape, cycles, parts, outside_s, least_s, transfers, walk, key,
                        heap, count,
                    )  # fmt: skip
            limit = _limit(heap, count, terms.tie)
        if lowest < np.inf:
            floors.cycles[row] = max(floors.cycles[row], lowest * (1.0 - 1e-12))
    return count, evaluated
