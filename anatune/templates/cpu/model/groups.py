"""Groups of points of a CPU space (one packing, one number of threads) and lower bounds of their times.

`cpu.times.search` explains why the bounds hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from anatune.numerics.columns import Bools, Floats, Ints
from anatune.templates.base.factor import divisors
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.times.classes import Caches
from anatune.templates.cpu.times.lattice import capacities

__all__ = ["PointGroups", "floor_cycles", "least_seconds"]


def least_seconds(model: CpuScoring) -> float:
    """Return a time below which no legal point of the space is predicted, without a search.

    The fewest calls are those of tiles with whole reductions. Tiles with few other elements cost no more than larger
    ones. So only the divisors of the SIMD axis have to be tried.
    """
    space, nest = model.space, model.nest
    simd = int(nest.simd[0])
    widths = np.array(divisors(int(nest.extents[simd])), dtype=np.int64)
    tiles = np.where(nest.is_reduction == 1, nest.extents, 1)[None, :].repeat(len(widths), axis=0)
    tiles[:, simd] = widths
    for axis, most in space.most_inner.items():
        tiles[:, space.axes.index(axis)] = most
    counts = np.arange(1, model.machine.core.num_cores + 1)
    return min(bound for bound, *_ in PointGroups(model)._groups(floor_cycles(model, tiles), counts))


def floor_cycles(model: CpuScoring, tiles: Ints) -> Floats:
    """Return a lower bound on the core cycles of all microkernels on these L1 tiles: multiply-adds, calls and stores.

    It is infinite for tiles that no call of the space may cover.
    """
    nest, cpu = model.nest, model.machine.core
    simd, lanes, _, has_reduction = nest.simd.tolist()
    sizes = tiles.astype(float)
    if nest.group[0] >= 0:  # at best a step sums a whole group
        sizes[:, nest.group[0]] /= nest.group[1]
    steps = sizes[:, nest.is_reduction == 1].prod(axis=1)
    number = (nest.extents / tiles).prod(axis=1)
    sizes[:, simd] = np.ceil(sizes[:, simd] / lanes)
    block = int(nest.group[2])
    most = cpu.register_limit * cpu.registers * (0.5 * block if block > 1 else 1.0)
    call = (cpu.call_cycles + cpu.fma_latency) / most if has_reduction else 0.0
    inside_share = float(nest.inside_share.prod())
    each = inside_share / (cpu.fma_per_cycle * block * cpu.reachable) + call / steps
    cycles: Floats = number * sizes.prod(axis=1) * each
    for axis, most in model.space.most_inner.items():
        cycles[tiles[:, model.space.axes.index(axis)] > most] = np.inf
    return cycles


class PointGroups:
    """The caches, constant seconds and lower bounds that all points of one packing and number of threads share."""

    def __init__(self, model: CpuScoring) -> None:
        self.model = model

    def _time(self, core_s: Floats | float, memory_s: Floats | float, fixed_s: float) -> Floats:
        exposed = self.model.machine.core.exposed_share
        return np.asarray(np.maximum(core_s, memory_s) + exposed * np.minimum(core_s, memory_s) + fixed_s)

    def _slowdown(self, threads: float) -> float:
        """Return the factor by which threads slow each other down, like `cpu.times.nest.slowdown`."""
        return max(1.0, threads / self.model.machine.core.usable_cores)

    def _conditions(self, packed: Bools, parallel: int, threads: float) -> tuple[Caches, float]:
        """Return the caches of a thread and the constant seconds, with the formulas of `cpu.times.point`."""
        nest, machine = self.model.nest, self.model.machine
        size = machine.size_bytes / np.minimum(threads, machine.shared_by)
        fill_s = 1.0 / (machine.fill_bytes_per_cycle * machine.core.clock_hz)
        slower = self._slowdown(threads)
        dram_bytes_s = min(machine.core.dram_core_bytes_s, machine.core.dram_socket_bytes_s / threads)
        fill_s[-1] = 1.0 / (dram_bytes_s * slower)
        copies_s = 0.0
        for x, is_packed in enumerate(packed.tolist()):
            moved = nest.copy_bytes[x] if is_packed else 0.0
            level = 0
            while level < len(size) - 1 and moved > size[level + 1] * threads:
                level += 1
            copies_s += moved * max(fill_s[level], 1.0 / (nest.copy_rate[x] * machine.core.clock_hz))
        caches = Caches(packed, machine.core.line_bytes, size, fill_s)
        return caches, copies_s * (slower / threads) + (machine.core.start_s if parallel else 0.0)

    def _whole_bytes(self, packed: Bools) -> tuple[Floats, Floats]:
        """Return the bytes that the whole nest moves into each cache, and its capacity bytes, (C,) each."""
        nest, machine = self.model.nest, self.model.machine
        capacity, moved = capacities(nest, machine, nest.extents[None, :], packed)
        return moved[0], capacity[0]

    def _groups(self, floor_cycles: Floats, num_chunks: Floats) -> Iterator[tuple[float, Bools, int, float]]:
        """Yield (lower bound, packed tensors, parallel, threads).

        Parameters
        ----------
        floor_cycles : (num_tiles,) float64
            Lower bounds on the core cycles on some L1 tiles; the best tile is among them.
        num_chunks : (num_chunks,) float64
            Numbers of chunks into which the result can be split.
        """
        nest, machine = self.model.nest, self.model.machine
        columns = self.model.space.columns
        must = [columns.index(f"pack.{tensor}") for tensor in self.model.space.must_pack]
        free = np.flatnonzero((nest.pack_columns >= 0) & ~np.isin(nest.pack_columns, must))
        cores = machine.core.num_cores
        options = [(0, 1.0)]
        if cores > 1:
            counts = np.unique(np.minimum(num_chunks, cores))
            options += [(1, float(n)) for n in counts if n > 1]
        floor = float(floor_cycles.min()) / machine.core.clock_hz
        for flags in itertools.product((False, True), repeat=len(free)):
            packed = np.isin(nest.pack_columns, must)
            packed[free] = flags
            moved, nest_capacity = self._whole_bytes(packed)
            for parallel, threads in options:
                caches, fixed = self._conditions(packed, parallel, threads)
                busiest = self._slowdown(threads) / threads
                filled_s = float((moved * caches.fill_s)[nest_capacity > caches.size].sum()) * (1.0 - 1e-12)
                bound_s = self._time(busiest * floor, busiest * filled_s, fixed)
                yield float(bound_s), packed, parallel, threads
