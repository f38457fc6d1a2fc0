"""Enumeration of the best outer tiles and orders of a microkernel on an L1 tile: see `cpu.times.search`."""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Floats, Ints
from anatune.templates.cpu.times.classes import (
    KEY_TILES,
    LatticeTiles,
    MicrokernelShape,
    SearchClass,
    Terms,
    Transfers,
    point_seconds,
    transfers_of,
)
from anatune.templates.cpu.times.lattice import inner_seconds, is_divisor, segment_seconds
from anatune.templates.cpu.times.microkernel import KernelWork, core_cycles, new_kernel_work
from anatune.templates.cpu.times.nest import CpuCore, CpuMachine, CpuNest

__all__ = ["complete"]


@jit_helper
def is_repeated(orders: Ints, choice: int, small: Ints, large: Ints) -> bool:
    """Return whether an earlier order has the same loops between two tiles. Loops of one iteration do not count."""
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


@jit_helper
def _order_seconds(orders: Ints, small: int, large: int, tiles: LatticeTiles, seconds: Floats) -> float:
    """Fill the transfer seconds of each order, inf for those that repeat an earlier one; return the smallest."""
    lowest = np.inf
    for o in range(orders.shape[0]):
        seconds[o] = np.inf
        if orders[o, 0] != -2 and not is_repeated(orders, o, tiles.lattice[small], tiles.lattice[large]):
            seconds[o] = segment_seconds(orders[o], small, large, tiles, np.inf)
            lowest = min(lowest, seconds[o])
    return lowest


@jit_inline
def _write(
    terms: Terms,
    core_s: float,
    inside_s: float,
    l2_s: Floats,
    l3_s: Floats,
    outer_s: Floats,
    tie_step: float,
    middle: int,
    chunk: int,
    completions: Ints,
    count: int,
    later: float,
) -> tuple[int, float]:
    """Write the orders of an L2 tile and a chunk whose time is in the tie step; return the values of `complete`."""
    for o in range(l2_s.shape[0]):
        for p in range(l3_s.shape[0]):
            for q in range(outer_s.shape[0]):
                memory_s = inside_s + l2_s[o] + l3_s[p] + outer_s[q]
                if memory_s == np.inf or count == completions.shape[0]:
                    continue
                time_s = point_seconds(terms, core_s, memory_s)
                step = np.log(time_s) / terms.tie  # 1e-9 allows for rounding; the caller computes the exact time
                if np.floor(step + 1e-9) > tie_step:
                    later = min(later, time_s)
                if np.floor(step - 1e-9) > tie_step or np.floor(step + 1e-9) < tie_step:
                    continue
                completions[count, 0] = middle
                completions[count, 1] = chunk
                completions[count, 2] = o
                completions[count, 3] = p
                completions[count, 4] = q
                count += 1
    return count, later


def complete(
    nest: CpuNest, machine: CpuMachine, search_class: SearchClass, node: Floats, tie_step: float, completions: Ints
) -> tuple[int, float]:
    """Enumerate the completions of a node whose time is in a tie step, in the order of ties.

    Orders with the same loops as an earlier one are left out: they are the same program.

    Parameters
    ----------
    search_class
        The class of the node. Its L2 tiles and chunks are in descending order of volume, then lexicographic.
    node : (KEY_TILES + 3 * A + 2,) float64
        A row of the heap of `best_kernels`.
    completions : (limit, 5) int64
        Overwritten: L2 tile, chunk, orders of l2, l3 and outer.

    Returns
    -------
    tuple of (int, float)
        Number of rows filled. If not all rows are filled: a lower bound on the seconds of completions in later steps
        (inf: there is none).
    """
    work = new_kernel_work(len(nest.extents))
    transfers, order_s = transfers_of(nest, search_class.tiles.caches), np.empty((3, nest.orders.shape[1]))
    count, later = _complete(nest, machine.core, search_class, node, tie_step, transfers, work, order_s, completions)
    return count, later


@jit
def _complete(
    nest: CpuNest, core: CpuCore, search_class: SearchClass, node: Floats, tie_step: float, transfers: Transfers,
    work: KernelWork, order_s: Floats, completions: Ints,
) -> tuple[int, float]:  # fmt: skip
    """Do the work of `complete`; `order_s`, (3, orders), is work space."""
    terms, packed = search_class.terms, search_class.tiles.caches.packed
    middle, middle_worth = search_class.middle, search_class.middle_worth
    chunks, chunk_worth = search_class.chunks, search_class.chunk_worth
    tiles, lattice = search_class.tiles, search_class.tiles.lattice
    nest_row = lattice.shape[0] - 1
    num_axes = nest.extents.shape[0]
    inner, calls, kernel, rows, parts = work.inner, work.calls, work.kernel, work.rows, work.parts
    for a in range(num_axes):
        inner[a] = int(node[KEY_TILES + a])
        calls[a] = int(node[KEY_TILES + num_axes + a])
        kernel[a] = int(node[KEY_TILES + 2 * num_axes + a])
    shape = MicrokernelShape(inner, calls, kernel)
    inner_row = 0  # row of the L1 tile
    for a in range(num_axes):
        while lattice[inner_row, a] < inner[a]:
            inner_row += tiles.stride[a]
    core_s = terms.share * core_cycles(nest, core, shape, packed, rows, parts, False) / core.clock_hz
    order = nest.orders[3, int(node[KEY_TILES + 3 * num_axes])]
    inside_s = inner_seconds(nest, order, shape, transfers)
    outer_orders, l3_orders, l2_orders = nest.orders[0], nest.orders[1], nest.orders[2]
    l2_s, l3_s, outer_s = order_s[0], order_s[1], order_s[2]
    limit = np.exp((tie_step + 1.0) * terms.tie) * (1.0 + 1e-9)
    count = 0
    later = np.inf
    for m in range(middle.shape[0]):
        middle_row = middle[m]
        l2_tile = lattice[middle_row]
        if not is_divisor(inner, l2_tile):
            continue
        lowest_s = point_seconds(terms, core_s, inside_s + middle_worth[m])
        if lowest_s > limit:
            later = min(later, lowest_s)
            continue
        lowest = _order_seconds(l2_orders, inner_row, middle_row, tiles, l2_s)
        lowest_s = point_seconds(terms, core_s, inside_s + lowest + middle_worth[m])
        if lowest_s > limit:
            later = min(later, lowest_s)
            continue
        for n in range(chunks.shape[0]):
            chunk_row = chunks[n]
            chunk = lattice[chunk_row]
            if not is_divisor(l2_tile, chunk):
                continue
            lowest_s = point_seconds(terms, core_s, inside_s + lowest + chunk_worth[n])
            if lowest_s > limit:
                later = min(later, lowest_s)
                continue
            _order_seconds(l3_orders, middle_row, chunk_row, tiles, l3_s)
            _order_seconds(outer_orders, chunk_row, nest_row, tiles, outer_s)
            count, later = _write(
                terms, core_s, inside_s, l2_s, l3_s, outer_s, tie_step, middle_row, chunk_row, completions, count, later
            )
            if count == completions.shape[0]:
                return count, later
    return count, later
