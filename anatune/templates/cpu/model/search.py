"""Search of a CPU space for the best microkernels on L1 tiles, for each packing and number of threads.

`cpu.times.search` has the method and its proof. This module sorts the groups and classes by their bounds, checks the
time limit, and calls the compiled functions.
"""

from __future__ import annotations

import math

import numpy as np

from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.base.factor import divisors
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.microkernels import pair_calls
from anatune.templates.cpu.model.groups import PointGroups, floor_cycles
from anatune.templates.cpu.model.order import STEP
from anatune.templates.cpu.model.pack import REGISTER_LIMIT
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.classes import (
    KEY_TIE,
    KEY_TILES,
    Floors,
    L1Tiles,
    LatticeTiles,
    MicrokernelOptions,
    SearchClass,
    Terms,
)
from anatune.templates.cpu.times.lattice import capacities, cover
from anatune.templates.cpu.times.search import best_kernels

__all__ = ["Search", "TileLattice"]

_PART = 1024
"""Largest number of tiles between two checks of the time limit."""
_FIRST_PART = 64
"""Number of L1 tiles that are completed first. Their times exclude most of the others."""


class TileLattice:
    """All tiles whose extents divide those of the nest, and which of them can be L2 tiles or chunks."""

    def __init__(self, model: CpuScoring) -> None:
        space, nest = model.space, model.nest
        lists = [divisors(space.extents[axis]) for axis in space.axes]
        grid = np.meshgrid(*[np.arange(len(choices)) for choices in lists], indexing="ij")
        self.divisor_of: Ints = np.column_stack([index.ravel() for index in grid]).astype(np.int64)
        self.stride: Ints = np.array(grid[0].strides, dtype=np.int64) // grid[0].itemsize
        self.tiles: Ints = np.column_stack(
            [np.asarray(choices)[self.divisor_of[:, a]] for a, choices in enumerate(lists)]
        ).astype(np.int64)
        self._lists = lists
        full = self.tiles == nest.extents
        window = np.array([axis in space.windows for axis in space.axes])
        reduction = nest.is_reduction.astype(bool)
        volume = self.tiles.astype(float).prod(axis=1)
        self.whole: Ints = np.flatnonzero(full.all(axis=1))
        by_size = np.lexsort([*self.tiles.T[::-1], -volume])
        self.middle: Ints = by_size[full[by_size][:, window].all(axis=1)]
        self.chunks: Ints = by_size[full[by_size][:, reduction].all(axis=1)]
        spatial = ~reduction
        self.num_chunks: Floats = (nest.extents[spatial] / self.tiles[self.chunks][:, spatial]).prod(axis=1)
        simd = int(nest.simd[0])
        unrolled = [a for a in range(len(lists)) if nest.is_reduction[a] and a != simd]
        blocked = [a for a in range(len(lists)) if a not in unrolled]
        sequence = np.array([*blocked, *unrolled], dtype=np.int64)
        self.options = MicrokernelOptions(sequence, *_kernel_options(model, lists), len(blocked))

    def fits(self, large: Ints) -> Bools:
        """Return whether each extent of a tile is a multiple of each divisor of its axis.

        The array is (A, divisors, len(large)) bool.
        """
        are_multiples = np.zeros((len(self._lists), max(map(len, self._lists)), len(large)), dtype=bool)
        for a, choices in enumerate(self._lists):
            are_multiples[a, : len(choices)] = self.tiles[large, a] % np.asarray(choices)[:, None] == 0
        return are_multiples


def _kernel_options(model: CpuScoring, lists: list[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """Return the microkernel options of each divisor of each axis, as the fields of `MicrokernelOptions`."""
    space = model.space
    registers = int(REGISTER_LIMIT * model.hardware.compute.num_vector_registers)
    reductions = {axis.name for axis in model.workload.reduction_axes}
    starts = np.zeros((len(space.axes), max(map(len, lists)) + 1), dtype=np.int64)
    values: list[tuple[int, int, int]] = []
    for a, axis in enumerate(space.axes):
        unit = space.lanes if axis == space.simd_axis else 1
        group = int(model.nest.group[1]) if a == model.nest.group[0] else 1
        is_unrolled = axis in reductions and axis != space.simd_axis
        most = int(model.machine.core.multiply_add_limit) * group if is_unrolled else registers
        for index, segment in enumerate(lists[a]):
            starts[a, index] = len(values)
            kernels = [kernel for kernel in divisors(segment) if space.in_call(axis, kernel)]
            rows = [(segment // kernel, kernel, -(-kernel // unit)) for kernel in kernels]
            if axis in space.pairable:
                units = -(-segment // unit)
                rows += [(n, 0, -(-units // n)) for n in pair_calls(segment, unit, space.max_kernel)]
            values += sorted((row for row in rows if row[2] <= most), key=lambda row: row[2])
        starts[a, len(lists[a]) :] = len(values)
    return starts, np.array(values, dtype=np.int64).reshape(-1, 3)


def _share_before(number: int, count: int) -> float:
    """Return the share of the work before one of several groups, which are sorted by their bounds.

    The first ones take nearly all the time, because their times exclude the others. This only matters for progress.
    """
    weights = 1.0 / np.arange(1.0, count + 1.0) ** 2
    return float(weights[:number].sum() / weights.sum())


class Search(PointGroups):
    """The `kept` best nodes (L1 tile, microkernel, l1 order, packing, distribution) of the space."""

    def __init__(self, model: CpuScoring, kept: int, watch: Watch) -> None:
        super().__init__(model)
        self._watch = watch
        self.lattice = TileLattice(model)
        self.floor: Floats = floor_cycles(model, self.lattice.tiles)
        self._floors: dict[bytes, Floors] = {}
        self.heap: Floats = np.full((kept, KEY_TILES + 3 * len(model.space.axes) + 2), np.inf)
        self.count = 0
        self.classes: list[SearchClass] = []
        self.num_evaluated = self.num_bounded = 0
        self.gap: float | None = None
        lowest_open = math.inf
        groups = sorted(self._groups(self.floor, self.lattice.num_chunks), key=lambda group: group[0])
        for number, (bound, packed, parallel, threads) in enumerate(groups):
            if bound > self._limit():
                break
            if watch.is_over:
                lowest_open = min(lowest_open, bound)
                continue
            try:
                limit_s = self._limit()
                possible = max(number + 1, sum(group[0] <= limit_s for group in groups))
                part = watch.part(_share_before(number, possible), _share_before(number + 1, possible))
                lowest_open = min(lowest_open, self._run_group(packed, parallel, threads, part))
            except TimeoutError:
                lowest_open = min(lowest_open, bound)
        self.lowest_open_s = lowest_open
        if lowest_open < self._limit():
            best = math.exp(float(self.heap[: self.count, KEY_TIE].min()) * STEP) if self.count else math.inf
            self.gap = max(0.0, best / lowest_open - 1.0)

    def _limit(self) -> float:
        """Return a time above which no node is among the best ones."""
        if self.count < len(self.heap):
            return math.inf
        return math.exp((float(self.heap[0, KEY_TIE]) + 1.0) * STEP) * (1.0 + 1e-9)

    def _run_group(self, packed: Bools, parallel: int, threads: float, watch: Watch) -> float:
        """Search all classes of a group; return the lowest bound of the tiles left at the time limit."""
        model, lattice = self.model, self.lattice
        nest, machine = model.nest, model.machine
        caches, fixed = self._conditions(packed, parallel, threads)
        size, fill_s = caches.size, caches.fill_s
        whole_moved, nest_capacity = self._whole_bytes(packed)
        capacity, moved = capacities(nest, machine, lattice.tiles, packed)
        inside_s = ((capacity > size) * moved) @ fill_s * (1.0 - 1e-12)  # caches that do not hold the L1 tile
        around_s = ((capacity <= size) & (nest_capacity > size)) @ (fill_s * whole_moved) * (1.0 - 1e-12)
        floors = self._floors.setdefault(packed.tobytes(), Floors(self.floor.copy(), np.full(len(self.floor), np.nan)))
        tiles = LatticeTiles(caches, lattice.tiles, lattice.divisor_of, lattice.stride, capacity, moved)
        chunk_worth = self._worths(0, tiles, lattice.chunks, lattice.whole, np.zeros(1))
        shares = np.ones(len(lattice.chunks))
        possible = np.ones(len(lattice.chunks), dtype=bool)
        if parallel:
            possible = np.minimum(lattice.num_chunks, machine.core.num_cores) == threads
            shares = np.ceil(lattice.num_chunks / threads) / lattice.num_chunks * self._slowdown(threads)
        distinct = np.unique(shares[possible])
        lowest_open = math.inf
        for number, share in enumerate(distinct.tolist()):

            def bounds(rows: Ints, worth: Floats, share: float = share) -> Floats:
                core_s = share * floors.cycles[rows] / machine.core.clock_hz
                return self._time(core_s, share * (worth + inside_s[rows]), fixed) * (1.0 - 1e-12)

            everything = np.arange(len(lattice.tiles))
            bound = bounds(everything, around_s)
            if float(bound.min()) > self._limit():
                break  # shares ascend
            if self._watch.is_over:
                lowest_open = min(lowest_open, float(bound.min()))
                break
            chosen = possible & (shares == share)
            middle_worth = self._worths(1, tiles, lattice.middle, lattice.chunks[chosen], chunk_worth[chosen])
            search_class = SearchClass(
                number=len(self.classes),
                parallel=parallel,
                pack_tie=int(packed @ nest.pack_ties),
                tiles=tiles,
                terms=Terms(share, machine.core.exposed_share, fixed, STEP),
                chunks=lattice.chunks[chosen],
                chunk_worth=chunk_worth[chosen],
                middle=lattice.middle,
                middle_worth=middle_worth,
            )
            self.classes.append(search_class)
            by_bound = np.argsort(bound, kind="stable")
            by_bound = by_bound[np.isfinite(bound[by_bound])]
            around_l2 = self._largest(lattice.middle, middle_worth)
            shares_part = watch.part(_share_before(number, len(distinct)), _share_before(number + 1, len(distinct)))
            start, size_of_part = 0, _FIRST_PART
            while start < len(by_bound) and bound[by_bound[start]] <= self._limit():
                if self._watch.is_over:
                    lowest_open = min(lowest_open, float(bound[by_bound[start]]))
                    break
                rows = by_bound[start : start + size_of_part]
                start, size_of_part = start + size_of_part, min(2 * size_of_part, _PART)
                worth = cover(nest, 2, tiles, rows, *around_l2)
                exact = bounds(rows, worth)
                order = np.argsort(exact, kind="stable")
                order = order[np.isfinite(exact[order])]
                self.count, evaluated = best_kernels(
                    nest, machine, search_class, lattice.options, L1Tiles(rows[order], exact[order], worth[order]),
                    floors, self.heap, self.count,
                )  # fmt: skip
                self.num_evaluated += evaluated
                self.num_bounded += len(rows)
                within = int(np.searchsorted(bound[by_bound], self._limit(), side="right"))
                shares_part.report(start / max(start, within))
        return lowest_open

    def _largest(self, large: Ints, worth: Floats) -> tuple[Ints, Floats, Bools]:
        """Return large tiles as `cover` takes them: in ascending order of worth, with their divisors."""
        by_worth = np.argsort(worth, kind="stable")
        return large[by_worth], worth[by_worth], self.lattice.fits(large[by_worth])

    def _worths(self, level: int, tiles: LatticeTiles, small: Ints, large: Ints, large_worth: Floats) -> Floats:
        """Return the worth of the tiles `small`, computed by `cover` in several parts.

        Raises
        ------
        TimeoutError
            The time is up.
        """
        nest, worth, sorted_large = self.model.nest, np.empty(len(small)), self._largest(large, large_worth)
        for start in range(0, len(small), _PART):
            if self._watch.is_over:
                raise TimeoutError
            part = slice(start, start + _PART)
            worth[part] = cover(nest, level, tiles, small[part], *sorted_large)
        return worth
