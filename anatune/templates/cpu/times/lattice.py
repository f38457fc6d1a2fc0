"""Transfer seconds of cache tiles, and their worth by dynamic programming: see `cpu.times.search`."""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.cpu.times.classes import LatticeTiles, MicrokernelShape, Transfers
from anatune.templates.cpu.times.nest import CpuMachine, CpuNest, first_tile, footprint

__all__ = ["capacities", "cover", "inner_seconds", "is_divisor", "segment_seconds"]

_BLOCK = 64
"""Number of large tiles that are tested together."""


def capacities(nest: CpuNest, machine: CpuMachine, tiles: Ints, packed: Bools) -> tuple[Floats, Floats]:
    """Return the capacity bytes of each tile in each cache, (N, C), and the bytes that all such tiles move, (N, C).

    The latter, reduced by a rounding error, are a lower bound on the traffic of every cache that holds a part of the
    tile but not more than the tile: several iterations fetch at least the union of what they touch.
    """
    result = np.empty((len(tiles), len(machine.size_bytes)))
    moved = np.empty_like(result)
    _fill_capacities(nest, machine.core.line_bytes, tiles, packed, result, moved)
    return result, moved


@jit
def _fill_capacities(nest: CpuNest, line: float, tiles: Ints, packed: Bools, result: Floats, moved: Floats) -> None:
    boxes, tensors, extents = nest.boxes, nest.tensors, nest.extents
    num_levels = result.shape[1]
    for n in range(tiles.shape[0]):
        total, written = footprint(boxes, tensors, tiles[n], packed, line, result[n])
        number = 1.0
        for a in range(extents.shape[0]):
            number *= extents[a] / tiles[n, a]
        for c in range(num_levels):  # results are written back to memory
            moved[n, c] = (total + written if c == num_levels - 1 else total) * number


@jit_inline
def is_divisor(small: Ints, large: Ints) -> bool:
    """Return whether a tile `large` consists of whole tiles `small`."""
    fits = True
    for a in range(small.shape[0]):
        if large[a] < small[a] or large[a] % small[a] != 0:  # the comparison avoids a slower division
            fits = False
            break
    return fits


@jit_inline
def _close(
    moved: float, written: float, after: Floats, size: Floats, fill_s: Floats, seconds: float, done: int
) -> tuple[float, int]:
    """Add the seconds of ``moved`` bytes for each undecided cache that does not hold the tile.

    Return the seconds, and the decided caches as bits.

    ``written`` : those bytes that are written back to memory, too.
    ``after`` : bytes that the tile occupies of each cache. ``done`` : the caches decided before.
    """
    for c in range(size.shape[0]):
        if not done & (1 << c) and after[c] > size[c]:
            seconds += (moved + written if c == size.shape[0] - 1 else moved) * fill_s[c]
            done |= 1 << c
    return seconds, done


@jit_helper
def segment_seconds(order: Ints, small: int, large: int, tiles: LatticeTiles, most: float) -> float:
    """Return the transfer seconds decided by the loops that grow one tile to another in `order` (inner first).

    Only caches that hold the small tile but not the large one count. All tiles in between are in the lattice, too, so
    all numbers are in its tables.

    Parameters
    ----------
    small, large : int
        Rows of the lattice.
    most : float
        The sum can stop at this many seconds.
    """
    size, fill_s, capacity = tiles.caches.size, tiles.caches.fill_s, tiles.capacity
    open_caches = 0
    for c in range(size.shape[0]):
        if capacity[small, c] <= size[c]:
            open_caches |= 1 << c
    seconds = 0.0
    row = small
    for i in range(order.shape[0]):
        a = order[i]
        if a < 0 or open_caches == 0 or seconds >= most:
            break
        steps = tiles.divisor_of[large, a] - tiles.divisor_of[small, a]
        if steps == 0:
            continue
        row += steps * tiles.stride[a]
        for c in range(size.shape[0]):
            if open_caches & (1 << c) and capacity[row, c] > size[c]:
                seconds += tiles.moved[row, c] * fill_s[c]
                open_caches ^= 1 << c
    return seconds


@jit_helper
def inner_seconds(nest: CpuNest, order: Ints, shape: MicrokernelShape, t: Transfers) -> float:
    """Return the transfer seconds decided inside the L1 tile: by a microkernel call and the l1 loops."""
    inner, calls, kernel = shape.inner, shape.calls, shape.kernel
    tile, after, boxes, tensors = t.tile, t.after, t.boxes, t.tensors
    packed, size, fill_s = t.caches.packed, t.caches.size, t.caches.fill_s
    outside = 1.0
    for a in range(inner.shape[0]):
        tile[a] = first_tile(inner[a], calls[a], kernel[a], nest.simd[1], a == nest.simd[0])
        outside *= nest.extents[a] / inner[a] * calls[a]
        if nest.is_reduction[a] and a != nest.simd[0]:
            outside *= tile[a]
            tile[a] = 1
    seconds = 0.0
    done = 0
    for i in range(-2, order.shape[0]):  # -2: one step, -1: a call of the unrolled body, then the l1 loops
        if i == -1:
            for a in range(inner.shape[0]):
                if nest.is_reduction[a] and a != nest.simd[0]:
                    tile[a] = kernel[a]
                    outside /= kernel[a]
        if i >= 0:
            a = order[i]
            if a < 0:
                break
            if calls[a] == 1:
                continue
            tile[a] = inner[a]
            outside /= calls[a]
        moved, written = footprint(boxes, tensors, tile, packed, t.caches.line, after)
        seconds, done = _close(moved * outside, written * outside, after, size, fill_s, seconds, done)
    return seconds


def cover(
    nest: CpuNest, level: int, tiles: LatticeTiles, small: Ints, large: Ints, large_worth: Floats, fits: Bools
) -> Floats:
    """Return the worth of the tiles `small`: the cheapest completion through one of the tiles `large`.

    Parameters
    ----------
    level : int
        Index of the loops between both (0 outer, 1 l3, 2 l2). The only tile outside of outer is the whole nest.
    small, large : (n,) and (m,) int64
        Rows of the lattice; `large` in ascending order of `large_worth` (m,).
    fits : (A, divisors, m) bool
        True if the extent of a large tile is a multiple of a divisor of an axis.
    """
    worth, is_multiple = np.empty(len(small)), np.empty(_BLOCK, np.bool_)
    _fill_worth(nest, level, tiles, small, large, large_worth, fits, is_multiple, worth)
    return worth


@jit
def _fill_worth(
    nest: CpuNest, level: int, tiles: LatticeTiles, small: Ints, large: Ints, large_worth: Floats, fits: Bools,
    is_multiple: Bools, worth: Floats,
) -> None:  # fmt: skip
    """Fill `worth`; `is_multiple`, (_BLOCK,), says which large tiles of a block consist of whole small ones."""
    size, fill_s, capacity, moved = tiles.caches.size, tiles.caches.fill_s, tiles.capacity, tiles.moved
    orders = nest.orders[level]
    for n in range(small.shape[0]):
        inner = small[n]
        best = np.inf
        for start in range(0, large.shape[0], _BLOCK):
            if large_worth[start] >= best:
                break
            stop = min(start + _BLOCK, large.shape[0])
            for i in range(stop - start):
                is_multiple[i] = True
            for a in range(fits.shape[0]):
                divisor = tiles.divisor_of[inner, a]
                if divisor > 0:  # divisor number 0 is 1
                    row = fits[a, divisor, start:stop]
                    for i in range(stop - start):
                        is_multiple[i] &= row[i]
            for m in range(start, stop):
                if not is_multiple[m - start] or large_worth[m] >= best:
                    continue
                large_row = large[m]
                crossed_s = 0.0
                for c in range(size.shape[0]):
                    if capacity[inner, c] <= size[c] < capacity[large_row, c]:
                        crossed_s += moved[large_row, c] * (1.0 - 1e-12) * fill_s[c]
                if large_worth[m] + crossed_s >= best:
                    continue
                if crossed_s == 0.0:
                    best = large_worth[m]
                    continue
                for o in range(orders.shape[0]):
                    if orders[o, 0] == -2:
                        break
                    seconds = segment_seconds(orders[o], inner, large_row, tiles, best - large_worth[m])
                    best = min(best, large_worth[m] + seconds)
        worth[n] = best
