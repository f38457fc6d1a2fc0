"""Costs of cache tiles by dynamic programming: see `numerics.cpu.search`."""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.numerics.cpu.nest import CpuMachine, CpuNest, first_tile, footprint

__all__ = ["capacities", "cover", "inner_seconds", "segment_seconds"]


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
        total = footprint(boxes, tensors, tiles[n], packed, line, result[n])
        for a in range(extents.shape[0]):
            total *= extents[a] / tiles[n, a]
        moved[n] = total * (1.0 - 1e-12)
    return result, moved


@jit_helper
def segment_seconds(
    boxes: Ints,
    tensors: Floats,
    extents: Ints,
    order: Ints,
    small: Ints,
    large: Ints,
    packed: Bools,
    line: float,
    size: Floats,
    fill_s: Floats,
    small_capacity: Floats,
    tile: Ints,
    after: Floats,
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


@jit_helper
def inner_seconds(
    nest: CpuNest,
    order: Ints,
    inner: Ints,
    calls: Ints,
    kernel: Ints,
    packed: Bools,
    line: float,
    size: Floats,
    fill_s: Floats,
    tile: Ints,
    after: Floats,
) -> float:
    """Return the transfer seconds decided inside the L1 tile `inner`: by a microkernel call and the l1 loops.

    ``calls``, ``kernel`` : (A,) as in `cpu_microkernel.core_cycles`; `tile` and `after` are scratch.
    """
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
        moved = footprint(nest.boxes, nest.tensors, tile, packed, line, after)
        for c in range(size.shape[0]):
            if not done & (1 << c) and after[c] > size[c]:
                seconds += moved * outside * fill_s[c]
                done |= 1 << c
    return seconds


@jit
def cover(
    nest: CpuNest,
    machine: CpuMachine,
    level: int,
    tiles: Ints,
    capacity: Floats,
    small: Ints,
    large: Ints,
    large_worth: Floats,
    moved: Floats,
    packed: Bools,
    size: Floats,
    fill_s: Floats,
) -> Floats:
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
