"""Writes out the best outer tiles and orders of a microkernel on an L1 tile: see `numerics.cpu.search`."""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_helper
from anatune.numerics.columns import Bools, Floats, Ints
from anatune.numerics.cpu.lattice import inner_seconds, segment_seconds
from anatune.numerics.cpu.microkernel import NUM_PARTS, core_cycles
from anatune.numerics.cpu.nest import CpuMachine, CpuNest, combine, footprint

__all__ = ["complete"]


@jit_helper
def repeats(
    orders: Ints,
    choice: int,
    small: Ints,
    large: Ints,
) -> bool:
    """Whether an earlier order has the same loops between two tiles: those of one iteration are none."""
    most = orders.shape[1]
    for other in range(choice):
        i, j = 0, 0
        while True:
            while i < most and orders[choice, i] >= 0 and small[orders[choice, i]] == large[orders[choice, i]]:
                i += 1
            while j < most and orders[other, j] >= 0 and small[orders[other, j]] == large[orders[other, j]]:
                j += 1
            axis = orders[choice, i] if i < most else -1
            if axis != (orders[other, j] if j < most else -1):
                break
            if axis < 0:
                return True
            i += 1
            j += 1
    return False


@jit
def complete(
    nest: CpuNest,
    machine: CpuMachine,
    tiles: Ints,
    capacity: Floats,
    node: Floats,
    middle: Ints,
    middle_worth: Floats,
    chunks: Ints,
    chunk_worth: Floats,
    packed: Bools,
    size: Floats,
    fill_s: Floats,
    scalars: Floats,
    wanted_step: float,
    found: Ints,
) -> tuple[int, float]:
    """Enumerate the completions of `node` whose time falls into tie step `wanted_step`, in the order of ties.

    Orders that have the loops of an earlier one are left out: they are the same program.

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
    extents = nest.extents
    boxes, tensors = nest.boxes, nest.tensors
    core, line = machine.core, machine.core.line_bytes
    num_axes = extents.shape[0]
    num_levels = size.shape[0]
    tile, after = np.empty(num_axes, np.int64), np.empty(num_levels)
    inner, calls, kernel = np.empty(num_axes, np.int64), np.empty(num_axes, np.int64), np.empty(num_axes, np.int64)
    rows = np.empty(num_axes, np.int64)
    parts = np.zeros(NUM_PARTS)
    share, base_s, fixed_s, step = scalars[0], scalars[1], scalars[2], scalars[6]
    for a in range(num_axes):
        inner[a] = int(node[6 + a])
        calls[a] = int(node[6 + num_axes + a])
        kernel[a] = int(node[6 + 2 * num_axes + a])
    core_s = share * core_cycles(nest, core, inner, calls, kernel, packed, rows, parts, False) / core.clock_hz
    order = nest.orders[3, int(node[6 + 3 * num_axes])]
    inside = base_s + inner_seconds(nest, order, inner, calls, kernel, packed, line, size, fill_s, tile, after)
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
            if l2_orders[o, 0] == -2 or repeats(l2_orders, o, inner, l2_tile):
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
                if l3_orders[o, 0] != -2 and not repeats(l3_orders, o, l2_tile, chunk):
                    l3_s[o] = segment_seconds(
                        boxes, tensors, extents, l3_orders[o], l2_tile, chunk, packed, line, size, fill_s,
                        capacity[middle[m]], tile, after,
                    )  # fmt: skip
                if outer_orders[o, 0] != -2 and not repeats(outer_orders, o, chunk, extents):
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
