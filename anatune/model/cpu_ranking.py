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

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.factor import divisors
from anatune.core.microkernels import pair_calls
from anatune.core.space_cpu import CpuSpace
from anatune.errors import SpaceError
from anatune.model.cpu_model import MULTIPLY_ADD_LIMIT, REGISTER_LIMIT, TIE_SHARE, CpuModel
from anatune.model.evaluation import Guarantee, Ranking
from anatune.numerics.cpu_columns import CpuCol
from anatune.numerics.cpu_search import best_kernels, capacities, complete, cover

__all__ = ["EXHAUSTIVE_LIMIT", "count_rules", "rank", "rank_exhaustively", "tie_keys"]

EXHAUSTIVE_LIMIT = 400_000
"""Largest space that is evaluated point by point."""
_CHUNK = 100_000
_STEP = math.log1p(TIE_SHARE)

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
        search = _Search(model, kept, deadline)
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
        steps = np.floor(np.log(times) / _STEP)
        last = keys[-1, 0] if len(kept) >= top_k else math.inf
        points = points[(rule == 0) & (steps <= last)]  # a point behind the last kept one cannot come in
        if not len(points):
            continue
        kept = np.concatenate([kept, points])
        new_keys = tie_keys(model, points)
        keys = np.concatenate([keys, new_keys]) if keys.size else new_keys
        kept, keys = _first_nests(space, kept, keys, top_k)
    rejected = {rule.id: int(counts[1 + index]) for index, rule in enumerate(model.rules)}
    return Ranking(kept, Guarantee("exhaustive", 0.0, space.size, 0), int(counts[0]), rejected)


def tie_keys(model: CpuModel, points: Integers) -> Floats:
    """Return the sort keys of `points`, (num_points, num_columns) int64: rows compare lexicographically."""
    space, nest = model.space, model.nest
    raw = model.raw(points)
    steps = np.floor(np.log(raw[:, CpuCol.TIME_S]) / _STEP)
    size = len(points)
    ones = np.ones(size, dtype=np.int64)

    def column(index: int) -> Integers:
        return points[:, index] if index >= 0 else ones

    kernel = np.column_stack([points[:, c] for c in nest.columns[:, 4]])
    calls = np.column_stack([points[:, c] for c in nest.columns[:, 3]])
    inner = calls * kernel
    for a, pair in enumerate(nest.columns[:, 5].tolist()):
        if pair >= 0:
            is_pair = points[:, pair] > 0
            calls[:, a] = np.where(is_pair, points[:, pair], calls[:, a])
            kernel[:, a] = np.where(is_pair, 0, kernel[:, a])
    middle = inner * np.column_stack([column(c) for c in nest.columns[:, 2].tolist()])
    chunk = middle * np.column_stack([column(c) for c in nest.columns[:, 1].tolist()])
    unroll = np.ones(size, dtype=np.int64)
    for a, axis in enumerate(space.axes):
        if nest.is_reduction[a] and axis != space.simd_axis:
            unroll *= kernel[:, a]
    packs = sum((points[:, c] for c in nest.pack_columns.tolist() if c >= 0), np.zeros(size, dtype=np.int64))
    order = nest.order_columns.tolist()
    parts = [
        steps, packs, points[:, nest.simd[2]], -raw[:, CpuCol.ACCUMULATORS], unroll, -inner.astype(float).prod(axis=1),
        inner, calls, kernel, points[:, order[3]],
        -middle.astype(float).prod(axis=1), middle, -chunk.astype(float).prod(axis=1), chunk,
        points[:, order[2]], points[:, order[1]], points[:, order[0]],
    ]  # fmt: skip
    return np.column_stack(parts).astype(np.float64)


def _first_nests(space: CpuSpace, points: Integers, keys: Floats, count: int) -> tuple[Integers, Floats]:
    """Sort by key and keep the first `count` different loop nests."""
    order = np.lexsort(keys.T[::-1])
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for at in order.tolist():
        nest = _loop_nest(space, points[at])
        if nest not in seen:
            seen.add(nest)
            chosen.append(at)
            if len(chosen) == count:
                break
    return points[chosen], keys[chosen]


def _loop_nest(space: CpuSpace, point: Integers) -> tuple[object, ...]:
    """Return what a point's program looks like, whatever its levels are called."""
    values = dict(zip(space.columns, point.tolist(), strict=True))
    loops: list[list[object]] = []
    for level in ("outer", "l3", "l2", "l1"):
        names = space.orders[level][values[f"order.{level}"]]
        if level == "l1":
            names = (*names, *space.reduction_order)
        for axis in names:
            trips = values.get(f"{axis}.{level}", 1)
            if level == "l1" and values.get(f"pair.{axis}", 0):
                loops.append([axis, -values[f"pair.{axis}"]])
            elif trips > 1:
                if loops and loops[-1][0] == axis and isinstance(loops[-1][1], int) and loops[-1][1] > 0:
                    loops[-1][1] *= trips
                else:
                    loops.append([axis, trips])
        if level == "outer" and values["parallel"]:
            loops.append(["parallel", 1])
    kernel = tuple(values[f"{axis}.{space.levels[axis][-1]}"] for axis in space.axes)
    packed = tuple(values[f"pack.{tensor}"] for tensor in space.packable)
    return (tuple((axis, trips) for axis, trips in loops), kernel, packed, values["parallel"])


@dataclass(frozen=True)
class _Class:
    """One choice of packing and of the distribution over the cores, with what is known about its tiles."""

    packed: NDArray[np.bool_]
    parallel: int
    chunks: Integers
    """Rows of the lattice that may be chunks."""
    scalars: Floats
    size: Floats
    fill_s: Floats
    capacity: Floats
    middle: Integers
    middle_worth: Floats
    chunk_worth: Floats


class _Lattice:
    """All tiles whose extents divide the nest's, and those that may be L2 tiles or chunks."""

    def __init__(self, model: CpuModel) -> None:
        space, nest = model.space, model.nest
        lists = [divisors(space.extents[axis]) for axis in space.axes]
        grid = np.meshgrid(*[np.arange(len(choices)) for choices in lists], indexing="ij")
        self.divisor_of: Integers = np.column_stack([index.ravel() for index in grid]).astype(np.int64)
        self.tiles: Integers = np.column_stack(
            [np.asarray(choices)[self.divisor_of[:, a]] for a, choices in enumerate(lists)]
        ).astype(np.int64)
        full = self.tiles == nest.extents
        window = np.array([axis in space.windows for axis in space.axes])
        reduction = nest.is_reduction.astype(bool)
        volume = self.tiles.astype(float).prod(axis=1)
        self.whole: Integers = np.flatnonzero(full.all(axis=1))
        by_size = np.lexsort([*self.tiles.T[::-1], -volume])
        self.middle: Integers = by_size[full[by_size][:, window].all(axis=1)]
        self.chunks: Integers = by_size[full[by_size][:, reduction].all(axis=1)]
        spatial = ~reduction
        self.num_chunks: Floats = (nest.extents[spatial] / self.tiles[self.chunks][:, spatial]).prod(axis=1)
        simd = int(nest.simd[0])
        unrolled = [a for a in range(len(lists)) if nest.is_reduction[a] and a != simd]
        blocked = [a for a in range(len(lists)) if a not in unrolled]
        self.sequence: Integers = np.array([*blocked, *unrolled], dtype=np.int64)
        self.option_start, self.option_values = _kernel_options(model, lists)


def _kernel_options(model: CpuModel, lists: list[tuple[int, ...]]) -> tuple[Integers, Integers]:
    """Return calls, kernel (0: pair) and larger kernel of each divisor of each axis, see `best_kernels`."""
    space = model.space
    registers = int(REGISTER_LIMIT * model.hardware.compute.num_vector_registers)
    reductions = {axis.name for axis in model.workload.reduction_axes}
    starts = np.zeros((len(space.axes), max(map(len, lists)) + 1), dtype=np.int64)
    values: list[tuple[int, int, int]] = []
    for a, axis in enumerate(space.axes):
        unit = space.lanes if axis == space.simd_axis else 1
        is_unrolled = axis in reductions and axis != space.simd_axis
        most = int(MULTIPLY_ADD_LIMIT) if is_unrolled else registers
        for index, segment in enumerate(lists[a]):
            starts[a, index] = len(values)
            rows = [(segment // kernel, kernel, -(-kernel // unit)) for kernel in divisors(segment)]
            if axis in space.pairable:
                units = -(-segment // unit)
                rows += [(n, 0, -(-units // n)) for n in pair_calls(segment, unit, space.max_kernel)]
            values += sorted((row for row in rows if row[2] <= most), key=lambda row: row[2])
        starts[a, len(lists[a]) :] = len(values)
    return starts, np.array(values, dtype=np.int64).reshape(-1, 3)


def _floor_cycles(model: CpuModel, tiles: Integers) -> Floats:
    """Return core cycles that no microkernel on these L1 tiles undercuts: multiply-adds, calls and stores."""
    nest, cpu = model.nest, model.machine.core
    simd, lanes, _, has_reduction = nest.simd.tolist()
    sizes = tiles.astype(float)
    steps = sizes[:, nest.is_reduction == 1].prod(axis=1)
    number = (nest.extents / sizes).prod(axis=1)
    sizes[:, simd] = np.ceil(sizes[:, simd] / lanes)
    call = (cpu.call_cycles + cpu.fma_latency) / (cpu.register_limit * cpu.registers) if has_reduction else 0.0
    each = 1.0 / (cpu.fma_per_cycle * cpu.reachable) + call / steps
    return np.asarray(number * sizes.prod(axis=1) * each)


class _Search:
    """Finds the best `kept` nodes (L1 tile, microkernel, l1 order, packing, distribution) of the space."""

    def __init__(self, model: CpuModel, kept: int, deadline: float) -> None:
        self.model = model
        self.lattice = _Lattice(model)
        self.floor: Floats = _floor_cycles(model, self.lattice.tiles)
        self._floors: dict[bytes, Floats] = {}
        self.heap: Floats = np.full((kept, 8 + 3 * len(model.space.axes)), np.inf)
        self.count = 0
        self.classes: list[_Class] = []
        self.num_evaluated = self.num_bounded = 0
        self.gap: float | None = None
        lowest_open = math.inf
        for bound, packed, parallel, threads in sorted(self._groups(), key=lambda group: group[0]):
            if bound > self._limit():
                break
            if time.monotonic() > deadline and self.count:
                lowest_open = min(lowest_open, bound)
                continue
            lowest_open = min(lowest_open, self._run_group(packed, parallel, threads, deadline))
        if lowest_open < self._limit():
            best = math.exp(float(self.heap[: self.count, 0].min()) * _STEP)
            self.gap = max(0.0, 1.0 - lowest_open / best)

    def _limit(self) -> float:
        """Return a time above which nothing can be among the best nodes."""
        if self.count < len(self.heap):
            return math.inf
        return math.exp((float(self.heap[0, 0]) + 1.0) * _STEP) * (1.0 + 1e-9)

    def _time(self, core_s: Floats | float, memory_s: Floats | float, fixed_s: float) -> Floats:
        exposed = self.model.machine.core.exposed_share
        return np.asarray(np.maximum(core_s, memory_s) + exposed * np.minimum(core_s, memory_s) + fixed_s)

    def _conditions(self, packed: NDArray[np.bool_], parallel: int, threads: float) -> tuple[Floats, Floats, float]:
        """Return cache sizes, seconds per byte and constant seconds: the same formulas as in `cpu_point`."""
        nest, machine = self.model.nest, self.model.machine
        size = machine.size_bytes / np.minimum(threads, machine.shared_by)
        fill_s = 1.0 / (machine.fill_bytes_per_cycle * machine.core.clock_hz)
        fill_s[-1] = 1.0 / min(machine.core.dram_core_bytes_s, machine.core.dram_socket_bytes_s / threads)
        copies = 0.0
        for x, is_packed in enumerate(packed.tolist()):
            moved = nest.copy_bytes[x, int(is_packed)]
            level = 0
            while level < len(size) - 1 and moved > size[level + 1] * threads:
                level += 1
            copies += moved * max(fill_s[level], 1.0 / (machine.core.copy_bytes_cycle * machine.core.clock_hz))
        return size, fill_s, copies / threads + (machine.core.start_s if parallel else 0.0)

    def _whole_bytes(self, packed: NDArray[np.bool_]) -> tuple[float, Floats]:
        """Return the transferred bytes and capacity bytes of the whole nest."""
        nest, machine = self.model.nest, self.model.machine
        capacity, moved = capacities(nest, machine, nest.extents[None, :], packed)
        return float(moved[0]), capacity[0]

    def _groups(self) -> Iterator[tuple[float, NDArray[np.bool_], int, float]]:
        """Yield (lower bound, packed tensors, parallel, threads)."""
        nest, machine = self.model.nest, self.model.machine
        free = np.flatnonzero(nest.pack_columns >= 0)
        cores = machine.core.num_cores
        options = [(0, 1.0)]
        if cores > 1:
            counts = np.unique(np.minimum(self.lattice.num_chunks, cores))
            options += [(1, float(n)) for n in counts if n > 1]
        floor = float(self.floor.min()) / machine.core.clock_hz
        for flags in itertools.product((False, True), repeat=len(free)):
            packed = np.zeros(len(nest.pack_columns), dtype=bool)
            packed[free] = flags
            moved, _ = self._whole_bytes(packed)
            for parallel, threads in options:
                _, fill_s, fixed = self._conditions(packed, parallel, threads)
                core = floor / threads
                yield float(self._time(core, moved * fill_s.sum() / threads, fixed)), packed, parallel, threads

    def _run_group(self, packed: NDArray[np.bool_], parallel: int, threads: float, deadline: float) -> float:
        """Search all classes of a group; return the lowest bound of what the deadline left out."""
        model, lattice = self.model, self.lattice
        nest, machine = model.nest, model.machine
        size, fill_s, fixed = self._conditions(packed, parallel, threads)
        whole_moved, whole = self._whole_bytes(packed)
        base = float(sum(whole_moved * fill_s[c] for c in range(len(size)) if whole[c] <= size[c]))
        capacity, moved = capacities(nest, machine, lattice.tiles, packed)
        inside = ((capacity > size) * moved[:, None]) @ fill_s  # decided by the loops inside an L1 tile
        around = ((capacity <= size) & (whole > size)) @ fill_s * whole_moved * (1.0 - 1e-12)
        floor = self._floors.setdefault(packed.tobytes(), self.floor.copy())
        chunk_worth = cover(
            nest, machine, 0, lattice.tiles, capacity, lattice.chunks, lattice.whole, np.zeros(1), moved, packed, size,
            fill_s,
        )  # fmt: skip
        shares = np.ones(len(lattice.chunks))
        possible = np.ones(len(lattice.chunks), dtype=bool)
        if parallel:
            possible = np.minimum(lattice.num_chunks, machine.core.num_cores) == threads
            shares = np.ceil(lattice.num_chunks / threads) / lattice.num_chunks
        distinct = np.unique(shares[possible])
        lowest_open = math.inf
        worth = around
        for share in distinct.tolist():

            def bounds(worth: Floats, share: float = share) -> Floats:
                core_s = share * floor / machine.core.clock_hz
                return self._time(core_s, share * (worth + base + inside), fixed) * (1.0 - 1e-12)

            lowest = float(bounds(worth).min())
            if lowest > self._limit():
                break  # shares ascend
            if time.monotonic() > deadline and self.count:
                lowest_open = min(lowest_open, lowest)
                break
            chosen = possible & (shares == share)
            small = np.flatnonzero(bounds(around) <= self._limit())
            middle_worth, found = self._worths(
                lattice.chunks[chosen], chunk_worth[chosen], small, capacity, moved, packed, size, fill_s
            )
            worth_of_class = np.full(len(around), np.inf)
            worth_of_class[small] = found
            scalars = np.array([share, base, fixed, packed.sum(), parallel, len(self.classes), _STEP], dtype=np.float64)
            self.classes.append(
                _Class(
                    packed, parallel, lattice.chunks[chosen], scalars, size, fill_s, capacity, lattice.middle,
                    middle_worth, chunk_worth[chosen],
                )
            )  # fmt: skip
            bound = bounds(worth_of_class)
            order = np.argsort(bound, kind="stable")
            order = order[np.isfinite(bound[order])]
            self.count, evaluated = best_kernels(
                nest, machine, lattice.tiles, order, bound[order], worth_of_class[order], floor, lattice.sequence,
                packed, size, fill_s, scalars, lattice.option_start, lattice.option_values, lattice.divisor_of,
                self.heap, self.count,
            )  # fmt: skip
            self.num_evaluated += evaluated
            self.num_bounded += len(order)
        return lowest_open

    def _worths(
        self,
        chunks: Integers,
        chunk_worth: Floats,
        small: Integers,
        capacity: Floats,
        moved: Floats,
        packed: NDArray[np.bool_],
        size: Floats,
        fill_s: Floats,
    ) -> tuple[Floats, Floats]:
        """Return the worth of the L2 tiles and of the L1 tiles `small` when chunks are from `chunks`."""
        nest, machine, lattice = self.model.nest, self.model.machine, self.lattice
        by_worth = np.argsort(chunk_worth, kind="stable")
        middle_worth = cover(
            nest, machine, 1, lattice.tiles, capacity, lattice.middle, chunks[by_worth], chunk_worth[by_worth],
            moved, packed, size, fill_s,
        )  # fmt: skip
        by_worth = np.argsort(middle_worth, kind="stable")
        worth = cover(
            nest, machine, 2, lattice.tiles, capacity, small, lattice.middle[by_worth],
            middle_worth[by_worth], moved, packed, size, fill_s,
        )  # fmt: skip
        return middle_worth, worth


def _points(search: _Search, top_k: int) -> tuple[Integers, bool]:
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
        chosen, chosen_keys = _first_nests(space, points, keys, top_k) if len(points) else (points, keys)
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
            math.floor(math.log(later_s) / _STEP - 1e-9) if later_s < math.inf else math.inf,
        )
        if following == math.inf:
            return chosen, True
        step = max(step + 1.0, following)


def _completions(search: _Search, node: Floats, step: float, limit: int) -> tuple[Integers, bool, float]:
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


class _Kernel(NamedTuple):
    """What the rules need to know of a partial point."""

    rows: int
    own_rows: tuple[int, ...]
    """Of each operand."""
    vectors: int
    unroll: int
    pairs: int
    chunks: int


def count_rules(model: CpuModel) -> tuple[int, dict[str, int]]:
    """Return the exact number of legal points and of those that each rule is the first to reject.

    The rules depend on few numbers of each axis (register factor, pair, unroll, whether it has chunks), whose
    histograms are multiplied axis by axis.
    """
    space, nest, machine = model.space, model.nest, model.machine
    registers, code_limit = REGISTER_LIMIT * machine.core.registers, int(MULTIPLY_ADD_LIMIT)
    num_reads = len(model.workload.reads)
    simd = int(nest.simd[0])
    states: dict[_Kernel, int] = {_Kernel(1, (1,) * num_reads, 1, 1, 0, 0): 1}
    too_large = [0, 0, 0]  # by number of pairs so far, 2 for more
    for a, axis in enumerate(space.axes):
        table = space.table(axis)
        kernel = table[:, len(space.levels[axis]) - 1].copy()
        pair = table[:, -1] if axis in space.pairable else np.zeros(len(table), dtype=np.int64)
        if a == simd:
            kernel = -(-kernel // space.lanes)
        kernel = np.where(pair > 0, -(-kernel // np.maximum(pair, 1)), kernel)
        chunked = table[:, 0] > 1 if nest.columns[a, 0] >= 0 else np.zeros(len(table), dtype=bool)
        rows, numbers = np.unique(
            np.column_stack([kernel, (pair > 0) & (a != simd), chunked]), axis=0, return_counts=True
        )
        following: dict[_Kernel, int] = {}
        lost = [0, 0, 0]
        for (_, is_pair, _), number in zip(rows.tolist(), numbers.tolist(), strict=True):
            for pairs, count in enumerate(too_large):
                lost[min(pairs + is_pair, 2)] += count * number
        for (all_rows, own, vectors, unroll, pairs, chunks), count in states.items():
            for (factor, is_pair, is_chunked), number in zip(rows.tolist(), numbers.tolist(), strict=True):
                if a == simd:
                    state = _Kernel(all_rows, own, factor, unroll, pairs, chunks | is_chunked)
                elif nest.is_reduction[a]:
                    product = min(unroll * factor, code_limit + 1)
                    state = _Kernel(all_rows, own, vectors, product, pairs, chunks)
                else:
                    grown = tuple(o * factor if nest.uses[x, a] else o for x, o in enumerate(own))
                    paired = min(pairs + is_pair, 2)
                    state = _Kernel(all_rows * factor, grown, vectors, unroll, paired, chunks | is_chunked)
                if state.rows * state.vectors > registers:
                    lost[state.pairs] += count * number
                else:
                    following[state] = following.get(state, 0) + count * number
        too_large = lost
        states = following
    rest = math.prod(space.radices[len(space.axes) :])
    counts = dict.fromkeys((rule.id for rule in model.rules), 0)
    counts["microkernel_pairs"] = too_large[2] * rest
    counts["microkernel_registers"] = (too_large[0] + too_large[1]) * rest
    legal = 0
    cores = machine.core.num_cores
    for (all_rows, own, vectors, unroll, pairs, chunks), count in states.items():
        held = 0
        broadcast = 0
        for x, o in enumerate(own):
            if nest.uses[x, simd]:
                held += o * vectors if o < all_rows else 1
            else:
                broadcast += o
        needed = all_rows * vectors + held + min(broadcast, 1)
        if machine.core.pick_lanes > 0 and broadcast:
            needed = min(needed, all_rows * vectors + 1 + math.ceil(broadcast / machine.core.pick_lanes))
        if pairs > 1:
            counts["microkernel_pairs"] += count * rest
        elif needed > registers:
            counts["microkernel_registers"] += count * rest
        elif all_rows * vectors * unroll > code_limit:
            counts["microkernel_code"] += count * rest
        elif not chunks or cores < 2:
            counts["parallel_cores"] += count * rest // 2
            legal += count * rest // 2
        else:
            legal += count * rest
    return legal, counts
