"""Costs of cache tiles by dynamic programming: see `numerics.cpu.search`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.numerics.cpu.classes import Caches, Microkernel, Transfers, transfers_of
from anatune.numerics.cpu.nest import CpuMachine, CpuNest, first_tile, footprint

__all__ = ["Tiles", "capacities", "cover", "divides", "inner_seconds", "segment_seconds"]


class Tiles(NamedTuple):
    """What all tiles of the lattice hold and move, for one choice of packing and of cores."""

    caches: Caches
    capacity: Floats
    """Results of `capacities`."""
    moved: Floats


@jit
def capacities(nest: CpuNest, machine: CpuMachine, tiles: Ints, packed: Bools) -> tuple[Floats, Floats]:
    """Return the capacity bytes of each tile per cache level, (N, C), and the bytes that all such tiles move, (N,).

    The latter bounds the traffic of every cache that holds a part of the tile but not more than the tile: what
    several iterations bring in is at least what their union holds.
    """
    result = np.empty((tiles.shape[0], machine.size_bytes.shape[0]))
    moved = np.empty(tiles.shape[0])
    boxes, tensors, line, extents = nest.boxes, nest.tensors, machine.core.line_bytes, nest.extents
    for n in range(tiles.shape[0]):
        total, _ = footprint(boxes, tensors, tiles[n], packed, line, result[n])
        for a in range(extents.shape[0]):
            total *= extents[a] / tiles[n, a]
        moved[n] = total * (1.0 - 1e-12)
    return result, moved


@jit_inline
def divides(small: Ints, large: Ints) -> bool:
    """Whether a tile consists of whole tiles `small`."""
    fits = True
    for a in range(small.shape[0]):
        if large[a] < small[a] or large[a] % small[a] != 0:  # a comparison costs less than a division
            fits = False
            break
    return fits


@jit_inline
def _close(
    moved: float, written: float, after: Floats, size: Floats, fill_s: Floats, seconds: float, done: int
) -> tuple[float, int]:
    """Add the seconds of ``moved`` bytes for each cache that does not hold a tile but what is inside; say which do not.

    ``written`` : those that memory takes back, too.
    ``after`` : bytes that the tile occupies of each cache; ``done`` : caches that are decided already, a bit each.
    """
    for c in range(size.shape[0]):
        if not done & (1 << c) and after[c] > size[c]:
            seconds += (moved + written if c == size.shape[0] - 1 else moved) * fill_s[c]
            done |= 1 << c
    return seconds, done


@jit_helper
def segment_seconds(order: Ints, small: Ints, large: Ints, small_capacity: Floats, t: Transfers) -> float:
    """Return the transfer seconds decided by the loops that grow tile `small` to `large` in `order` (inner first).

    Only caches that hold `small` but not `large` count.
    """
    tile, after, extents, boxes, tensors = t.tile, t.after, t.extents, t.boxes, t.tensors
    packed, size, fill_s = t.caches.packed, t.caches.size, t.caches.fill_s
    outside = 1.0
    for a in range(small.shape[0]):
        tile[a] = small[a]
        outside *= extents[a] / small[a]
    seconds = 0.0
    done = 0
    for c in range(size.shape[0]):
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
        moved, written = footprint(boxes, tensors, tile, packed, t.caches.line, after)
        seconds, done = _close(moved * outside, written * outside, after, size, fill_s, seconds, done)
    return seconds


@jit_helper
def inner_seconds(nest: CpuNest, order: Ints, on: Microkernel, t: Transfers) -> float:
    """Return the transfer seconds decided inside the L1 tile: by a microkernel call and the l1 loops."""
    inner, calls, kernel = on.inner, on.calls, on.kernel
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
    for i in range(-2, order.shape[0]):  # a step, a call of the unrolled body, the l1 loops
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


@jit
def cover(
    nest: CpuNest,
    level: int,
    lattice: Ints,
    tiles: Tiles,
    small: Ints,
    large: Ints,
    large_worth: Floats,
) -> Floats:
    """Return the worth of the tiles `small`: cheapest way out through one of the tiles `large`.

    Parameters
    ----------
    level : int
        Index of the loops between both (0 outer, 1 l3, 2 l2); the only tile outside of outer is the whole nest.
    lattice : (N, A) int64
    small, large : (n,) and (m,) int64
        Rows of the lattice; `large` in ascending order of `large_worth` (m,).
    """
    size, fill_s, capacity, moved = tiles.caches.size, tiles.caches.fill_s, tiles.capacity, tiles.moved
    orders = nest.orders[level]
    transfers = transfers_of(nest, tiles.caches)
    worth = np.empty(small.shape[0])
    for n in range(small.shape[0]):
        inner = lattice[small[n]]
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
            if large_worth[m] + crossed_s >= best or not divides(inner, lattice[at]):
                continue
            if crossed_s == 0.0:
                best = large_worth[m]
                continue
            for o in range(orders.shape[0]):
                if orders[o, 0] == -2:
                    break
                seconds = segment_seconds(orders[o], inner, lattice[at], inner_capacity, transfers)
                best = min(best, large_worth[m] + seconds)
        worth[n] = best
    return worth
