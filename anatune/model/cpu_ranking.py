"""Exact ranking of the CPU space.

Order of points: time in steps of 0.1 % (equal steps are ties), then fewer packed tensors, sequential before parallel,
more accumulators, fewer unrolled steps, then tiles from the inside out: larger volume of the L1 tile, its smaller
extents axis by axis, calls and register factors, order of l1, larger L2 tile, larger chunk, orders of l2, l3, outer.
Points that describe the same loop nest (a loop of the same trips at another named level, an order of loops that do not
exist) are listed once, the first of them.

Small spaces are evaluated whole. Larger ones: `numerics.cpu_search` finds the best time of every L1 tile with every
microkernel exactly, for each choice of packing and each distribution over the cores that a lower bound does not
exclude; then only the winners' outer tiles and orders are written out.
"""

from __future__ import annotations

import math
import time

import numpy as np
from numpy.typing import NDArray

from anatune.errors import SpaceError
from anatune.model.cpu_model import CpuModel
from anatune.model.cpu_order import STEP, first_nests, tie_keys
from anatune.model.cpu_rules import count_rules
from anatune.model.cpu_search import Search
from anatune.model.evaluation import Guarantee, Ranking
from anatune.numerics.cpu_complete import complete

__all__ = ["EXHAUSTIVE_LIMIT", "rank", "rank_exhaustively"]

EXHAUSTIVE_LIMIT = 400_000
"""Largest space that is evaluated point by point."""
_CHUNK = 100_000

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def rank(model: CpuModel, top_k: int, time_limit_s: float | None = None) -> Ranking:
    """Return the first `top_k` legal points of the order above.

    Parameters
    ----------
    model
        Of the workload on the CPU.
    top_k
        Points wanted, >= 1; fewer come back only where fewer different loop nests are legal.
    time_limit_s
        Ends the search early; the guarantee then says how much faster an unseen point might be.

    Raises
    ------
    SpaceError
        `top_k` is below 1.
    """
    if top_k < 1:
        raise SpaceError(f"rank: top_k is {top_k}, expected >= 1")
    if model.space.size <= EXHAUSTIVE_LIMIT:
        return rank_exhaustively(model, top_k)
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    kept = 2 * top_k + 32
    while True:
        search = Search(model, kept, deadline)
        points, is_complete = _points(search, top_k)
        if is_complete or search.gap is not None:
            break
        kept *= 4
    num_legal, rejected = count_rules(model)
    if search.gap is None:
        guarantee = Guarantee("certified", 0.0, search.num_evaluated, search.num_bounded)
    else:
        guarantee = Guarantee("best_found", search.gap, search.num_evaluated, search.num_bounded)
    return Ranking(points, guarantee, num_legal, rejected)


def rank_exhaustively(model: CpuModel, top_k: int) -> Ranking:
    """Return the same as `rank` by evaluating every point of the space."""
    space = model.space
    counts = np.zeros(len(model.rules) + 1, dtype=np.int64)
    kept = np.empty((0, len(space.columns)), dtype=np.int64)
    keys = np.empty((0, 0))
    for start in range(0, space.size, _CHUNK):
        number = np.arange(start, min(start + _CHUNK, space.size))
        points = space.decode(np.column_stack(np.unravel_index(number, space.radices)))
        times, rule = model.times(points)
        counts += np.bincount(rule, minlength=len(counts))
        steps = np.floor(np.log(times) / STEP)
        last = keys[-1, 0] if len(kept) >= top_k else math.inf
        points = points[(rule == 0) & (steps <= last)]  # a point behind the last kept one cannot come in
        if not len(points):
            continue
        kept = np.concatenate([kept, points])
        new_keys = tie_keys(model, points)
        keys = np.concatenate([keys, new_keys]) if keys.size else new_keys
        kept, keys = first_nests(space, kept, keys, top_k)
    rejected = {rule.id: int(counts[1 + index]) for index, rule in enumerate(model.rules)}
    return Ranking(kept, Guarantee("exhaustive", 0.0, space.size, 0), int(counts[0]), rejected)


def _points(search: Search, top_k: int) -> tuple[Integers, bool]:
    """Write out the first `top_k` points of the search's nodes; the flag says whether the nodes sufficed."""
    model = search.model
    space = model.space
    nodes = search.heap[: search.count]
    nodes = nodes[np.lexsort(nodes.T[::-1])]
    points = np.empty((0, len(space.columns)), dtype=np.int64)
    keys = np.empty((0, 0))
    if not len(nodes):
        return points, True
    is_full = search.count == len(search.heap)
    last = nodes[-1]
    step = float(nodes[0, 0])
    limit = 4 * top_k + 64
    while True:
        ready = nodes[nodes[:, 0] <= step]
        ready = ready[np.lexsort(ready[:, 1:].T[::-1])]
        if is_full and step >= last[0]:
            ready = ready[[tuple(row[1:]) <= tuple(last[1:]) for row in ready.tolist()]]
        found, was_cut, later_s = [], False, math.inf
        for at, node in enumerate(ready):
            rows, cut, more = _completions(search, node, step, limit)
            later_s = min(later_s, more)
            was_cut = was_cut or cut
            if len(rows):
                found.append(rows)
            if at + 1 < len(ready) and (ready[at + 1, 1:-1] == node[1:-1]).all():
                continue
            if sum(map(len, found)) >= limit:  # duplicates are few: check whether these suffice
                break
        if found:
            new = np.concatenate(found)
            new_keys = tie_keys(model, new)
            inside = new_keys[:, 0] == step
            points = np.concatenate([points, new[inside]])
            keys = np.concatenate([keys, new_keys[inside]]) if keys.size else new_keys[inside]
        chosen, chosen_keys = first_nests(space, points, keys, top_k) if len(points) else (points, keys)
        if len(chosen) >= top_k:
            return chosen, True
        if was_cut or (found and sum(map(len, found)) >= limit):
            limit *= 4
            points, keys = chosen[chosen_keys[:, 0] < step], chosen_keys[chosen_keys[:, 0] < step]
            continue
        later = nodes[nodes[:, 0] > step]
        if is_full and step >= last[0]:
            return chosen, False
        following = min(
            float(later[0, 0]) if len(later) else math.inf,
            math.floor(math.log(later_s) / STEP - 1e-9) if later_s < math.inf else math.inf,
        )
        if following == math.inf:
            return chosen, True
        step = max(step + 1.0, following)


def _completions(search: Search, node: Floats, step: float, limit: int) -> tuple[Integers, bool, float]:
    """Return the points of one node in a tie step, whether they were cut at `limit`, seconds of later ones."""
    model, lattice = search.model, search.lattice
    space, nest = model.space, model.nest
    own = search.classes[int(node[-1])]
    found = np.empty((limit, 5), dtype=np.int64)
    count, later_s = complete(
        nest, model.machine, lattice.tiles, own.capacity, node, own.middle, own.middle_worth, own.chunks,
        own.chunk_worth, own.packed, own.size, own.fill_s, own.scalars, step, found,
    )  # fmt: skip
    found = found[:count]
    num_axes = len(space.axes)
    inner = node[6 : 6 + num_axes].astype(np.int64)
    calls = node[6 + num_axes : 6 + 2 * num_axes].astype(np.int64)
    kernel = node[6 + 2 * num_axes : 6 + 3 * num_axes].astype(np.int64)
    points = np.zeros((count, len(space.columns)), dtype=np.int64)
    middle, chunk = lattice.tiles[found[:, 0]], lattice.tiles[found[:, 1]]
    for a in range(num_axes):
        columns = nest.columns[a].tolist()
        is_pair = kernel[a] == 0
        if columns[0] >= 0:
            points[:, columns[0]] = nest.extents[a] // chunk[:, a]
        if columns[1] >= 0:
            points[:, columns[1]] = chunk[:, a] // middle[:, a]
        points[:, columns[2]] = middle[:, a] // inner[a]
        points[:, columns[3]] = 1 if is_pair else calls[a]
        points[:, columns[4]] = inner[a] if is_pair else kernel[a]
        if is_pair:
            points[:, nest.columns[a, 5]] = calls[a]
    orders = nest.order_columns.tolist()
    points[:, orders[3]] = int(node[6 + 3 * num_axes])
    for level, place in ((2, 2), (1, 3), (0, 4)):
        points[:, orders[level]] = found[:, place]
    for x, column in enumerate(nest.pack_columns.tolist()):
        if column >= 0:
            points[:, column] = int(own.packed[x])
    points[:, nest.simd[2]] = own.parallel
    return points, count == limit, later_s
