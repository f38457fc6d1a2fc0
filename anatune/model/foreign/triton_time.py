"""Predicted time of block tiles: a bottleneck model in cycles of one SM, then waves of blocks.

The structure is that of `tensorcore.times.time`, on NumPy batches and for every unit that a tile compiler may
choose; the constants are shared. Tiles are compared with each other; absolute times are those of a good kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.model.foreign.triton_tiles import (
    LEAST_CAPABILITY,
    TILE_FIELDS,
    WARP,
    MatmulProblem,
    Resources,
    Tiles,
    Unit,
    multiply_adds_per_cycle,
    resources,
)
from anatune.templates.gpu.times.waves import SM_FILL_BYTES, TAIL_OVERLAP
from anatune.templates.tensorcore.times.block import COPY_INSTRUCTIONS
from anatune.templates.tensorcore.times.time import BLOCK_CYCLES, QUEUE, STEP_CYCLES, STEP_INSTRUCTIONS

__all__ = ["PARTS", "TileScores", "score_tiles", "tile_order"]

Floats = NDArray[np.float64]

PARTS = ("compute_s", "issue_s", "shared_s", "l2_s", "dram_s", "latency_s", "tail_s", "split_s", "launch_s")
_REACHABLE = 0.95
"""Share of a unit's rate that a stream of independent instructions reaches, as for tensor-core schedules. Assumed."""
_CAPABILITY_OF_FP8 = 8.9
_COPY_BYTES = 16
_SECTOR = 32.0
_SPILL_BYTES = 64.0
"""Bytes of spilled registers that an SM moves a cycle. Assumed: half the width of its L1."""
_TIE_SHARE = 1e-3
_SIBLING_SHARE = 0.02
_LINES = 64.0
"""Bytes of a copied row that take a cycle: two lines of 128 bytes a cycle are looked up. Assumed."""
_ATOMIC_COST = 4.0
"""An atomic addition of a result, over a plain store. Assumed."""


@dataclass(frozen=True)
class TileScores:
    """What the model says of a batch of tiles, (num_tiles,) each.

    Attributes
    ----------
    time_s
        Predicted seconds; tiles that break a rule are timed as if the limit were not there.
    parts
        Name of `PARTS` -> seconds; most of them overlap.
    waves
        Blocks over those that the device holds at once.
    """

    time_s: Floats
    resources: Resources
    parts: dict[str, Floats]
    waves: Floats


def score_tiles(problem: MatmulProblem, tiles: Tiles, spec: GpuSpec) -> TileScores:
    """Predict the time of every tile.

    Raises
    ------
    anatune.errors.SpecError
        The spec does not say what the device's tensor cores do.
    """
    need = resources(problem, tiles, spec)
    compute = spec.compute
    clock, num_sms = compute.clock_hz, float(compute.num_sms)
    l2_cycle = spec.l2.bandwidth_bytes_per_s / clock
    dram_cycle = spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction / clock
    m, n, k = (t.astype(np.float64) for t in (tiles.block_m, tiles.block_n, tiles.block_k))
    warps = tiles.num_warps.astype(np.float64)
    rows, columns = np.ceil(problem.m / m), np.ceil(problem.n / n)
    depth = problem.k / tiles.split_k
    steps = np.maximum(1.0, np.ceil(depth / k))
    blocks = need.blocks.astype(np.float64)
    resident = need.resident.astype(np.float64)
    held = np.minimum(resident, np.ceil(blocks / num_sms))
    parts_sm = float(spec.registers.num_sub_partitions)

    # one stage of one block: cycles of each part
    work = _work(problem, tiles, need, spec)
    spread = np.ceil(held * warps / parts_sm) * parts_sm / (held * warps)
    math_cycles = work.compute * spread
    issue = work.slots / compute.issue_per_cycle_per_sm
    local_bytes = need.spilled * need.threads * 8.0
    shared = work.shared_bytes / spec.shared_memory.bytes_per_cycle_per_sm + local_bytes / _SPILL_BYTES
    fill_bytes = _fill_bytes(problem, problem.m / rows, problem.n / columns, np.minimum(k, depth))
    active = np.minimum(num_sms, blocks)
    sm_byte = np.maximum(1.0 / SM_FILL_BYTES, active / l2_cycle)
    memory = fill_bytes * sm_byte
    busy_compute = _norm4(math_cycles, issue, shared)
    busy = _norm4(busy_compute, memory)

    # what one block alone cannot overlap
    chain = np.maximum(work.compute * np.ceil(warps / parts_sm) * parts_sm / warps, work.chain)
    window = np.minimum(num_sms * resident, blocks)
    results = float(problem.m) * problem.n
    # atomic additions are made where the L2 cache is; split results are set to zero before
    split = tiles.split_k > 1
    output_bytes = results * problem.result_bytes * np.where(split, tiles.split_k, 1)
    dram_bytes = _dram_bytes(problem, tiles, rows, columns, window, spec) + results * problem.result_bytes * (1 + split)
    l2_bytes = fill_bytes * steps * blocks + output_bytes
    missing = np.minimum(1.0, dram_bytes / l2_bytes)
    latency = spec.l2.latency_cycles + missing * (spec.dram.latency_cycles - spec.l2.latency_cycles)
    arrival = QUEUE * latency + memory
    alone = np.maximum(_alone(tiles, need, work, np.maximum(busy_compute, chain), arrival), busy)

    # a block: first stages, all stages, results; then waves of blocks
    store_cost = np.where(split, _ATOMIC_COST, 1.0)
    stores = m * n * (8.0 / 128.0 + problem.result_bytes * sm_byte * store_cost)
    stores += m * n / (4.0 * WARP) * 5.0 * store_cost / compute.issue_per_cycle_per_sm
    fill = spec.dram.latency_cycles + memory + BLOCK_CYCLES

    def block_cycles(at_once: Floats) -> Floats:
        """Return the cycles of an SM with so many blocks at once."""
        cycles: Floats = steps * np.maximum(at_once * busy, alone) + at_once * stores + fill
        return cycles

    waves = blocks / (num_sms * resident)
    wave, cycles = _in_waves(blocks, num_sms, resident, block_cycles, fill)
    l2_s, dram_s = l2_bytes / l2_cycle / clock, dram_bytes / dram_cycle / clock
    launch_s = spec.launch.overhead_s * (1.0 + split)  # the result is set to zero by a launch of its own
    time_s = _norm4(cycles / clock, l2_s, dram_s) + launch_s
    total = blocks * steps / num_sms / clock
    parts = {
        "compute_s": math_cycles * total,
        "issue_s": issue * total,
        "shared_s": shared * total,
        "l2_s": l2_s,
        "dram_s": dram_s,
        "latency_s": waves * (steps * np.maximum(0.0, alone - held * busy) + fill) / clock,
        "tail_s": np.maximum(0.0, cycles - waves * wave) / clock,
        "split_s": np.where(split, blocks * stores / num_sms / clock, 0.0),
        "launch_s": launch_s,
    }
    return TileScores(time_s, need, parts, waves)


def _alone(tiles: Tiles, need: Resources, work: _Work, compute: Floats, arrival: Floats) -> Floats:
    """Return the cycles of a stage of a block that has its SM to itself: `compute`, and what waits for `arrival`."""
    ahead = np.where(work.asynchronous, tiles.num_stages, np.minimum(tiles.num_stages, 2)) - 1.0
    # operands that are read into registers leave their buffer to the next copy only when the last of them is read
    ahead = ahead - np.where((need.unit <= Unit.MMA) & (ahead > 0), 0.5, 0.0)
    pipelined = np.maximum(compute + STEP_CYCLES, arrival / np.maximum(ahead, 0.5))
    return np.where(ahead > 0, pipelined, compute + arrival + 2.0 * STEP_CYCLES)


def _in_waves(
    blocks: Floats, num_sms: float, resident: Floats, block_cycles: Callable[[Floats], Floats], fill: Floats
) -> tuple[Floats, Floats]:
    """Return the cycles of a whole wave, and of all blocks; the last wave overlaps the one before it in part."""
    per_wave = num_sms * resident
    whole = np.floor(blocks / per_wave)
    wave = block_cycles(resident)
    left = blocks - whole * per_wave
    tail = block_cycles(np.ceil(left / num_sms))
    overlap = TAIL_OVERLAP + (1.0 - TAIL_OVERLAP) / np.maximum(whole, 1.0)
    tail = np.where(whole > 0, np.maximum(tail * overlap, wave * left / per_wave), tail)
    tail = np.where(left > 0, tail, 0.0)
    hidden = (resident > 1) & (whole > 1)
    wave = wave - np.where(hidden, fill * (1.0 - 1.0 / resident), 0.0)
    return wave, whole * wave + tail


@dataclass(frozen=True)
class _Work:
    """What one stage of a block does, (num_tiles,) each."""

    compute: Floats
    """Cycles of the multiplying unit, the whole SM at work."""
    slots: Floats
    """Instructions that its warps issue."""
    shared_bytes: Floats
    """What crosses the shared memory, copies included."""
    chain: Floats
    """Cycles of dependent products."""
    asynchronous: NDArray[np.bool_]
    """Whether copies run beside the products."""


def _work(problem: MatmulProblem, tiles: Tiles, need: Resources, spec: GpuSpec) -> _Work:
    element = float(problem.element_bytes)
    m, n, k = (t.astype(np.float64) for t in (tiles.block_m, tiles.block_n, tiles.block_k))
    warps = tiles.num_warps.astype(np.float64)
    unit = need.unit
    capability = spec.compute_capability or 0.0
    products = m * n * k
    rates = np.array([_rate(spec, problem.dtype, Unit(code), unit) for code in range(4)])
    rate = rates[unit]
    deep = {4: 8.0, 2: 16.0, 1: 32.0}[problem.element_bytes]  # k of one tensor-core instruction
    if problem.dtype == "fp8" and capability < _CAPABILITY_OF_FP8:
        deep = 16.0  # converted to float16

    # mma.sync: a grid of warps; where the tile is too small for it, warps repeat each other's work
    warps_m, warps_n = _warp_grid(tiles)
    repeated = np.maximum(1.0, 16.0 * warps_m / m) * np.maximum(1.0, 8.0 * warps_n / n)
    tile_bytes_m, tile_bytes_n = m * k * element, n * k * element
    mma_reads = tile_bytes_m * warps_n + tile_bytes_n * warps_m
    mma_count = products * repeated / (128.0 * deep)
    words = 2.0 if problem.dtype == "tf32" else 1.0  # the right operand has no transposing loads of 32-bit elements
    mma_slots = mma_count + (tile_bytes_m * warps_n + words * tile_bytes_n * warps_m) / 512.0
    if problem.dtype == "fp8":
        mma_slots = mma_slots + mma_reads / (4.0 * WARP) * (1.0 if problem.b_along_n else 0.25)  # shuffles, conversions

    # wgmma, tcgen05: both operands are read from shared memory, 64 or 128 rows at a time
    groups = np.maximum(1.0, warps / 4.0)
    groups_n = np.maximum(1.0, groups / np.maximum(1.0, m / 64.0))
    wide_rows = np.where(unit == Unit.TCGEN05, 128.0, 64.0)
    wide_reads = tile_bytes_m * groups_n + tile_bytes_n * np.maximum(1.0, m / wide_rows)

    # FMA: threads along n first, patches of 4 x 4 results; rows are broadcast
    lanes_n = np.minimum(warps * WARP, np.maximum(1.0, n / 4.0))
    lanes_m = np.maximum(1.0, warps * WARP / lanes_n)
    per_n, per_m = np.maximum(1.0, n / lanes_n), np.maximum(1.0, m / lanes_m)
    wide = np.minimum(4.0, per_n)
    fma_loads = warps * k * (per_n / wide + per_m / 2.0)
    cycles_n = per_n / wide * np.maximum(1.0, np.minimum(lanes_n, WARP) * wide / WARP)
    fma_reads = warps * k * (cycles_n + per_m / 2.0) * 128.0
    fma_slots = products / WARP * np.maximum(1.0, warps * WARP / (m * n)) + fma_loads

    run_m, run_n = (k if problem.a_along_k else m) * element, (n if problem.b_along_n else k) * element
    copied = tile_bytes_m * np.maximum(1.0, _LINES / run_m) + tile_bytes_n * np.maximum(1.0, _LINES / run_n)
    width_m = _aligned_bytes(problem.k if problem.a_along_k else problem.m, problem.element_bytes)
    width_n = _aligned_bytes(problem.n if problem.b_along_n else problem.k, problem.element_bytes)
    copies = np.maximum(warps, tile_bytes_m / width_m / WARP) + np.maximum(warps, tile_bytes_n / width_n / WARP)
    asynchronous = np.full(len(tiles), capability >= LEAST_CAPABILITY and min(width_m, width_n) >= 4)
    copy_slots = copies * (COPY_INSTRUCTIONS + np.where(asynchronous, 0.0, 2.0))

    is_mma, is_fma = unit == Unit.MMA, unit == Unit.FMA
    slots = np.where(is_fma, fma_slots, np.where(is_mma, mma_slots, k / deep)) + copy_slots + warps * STEP_INSTRUCTIONS
    reads = np.where(is_fma, fma_reads, np.where(is_mma, mma_reads, wide_reads))
    cycles = products * np.where(is_mma, repeated, 1.0) / rate
    latency = spec.tensor_cores.latency_cycles if spec.tensor_cores is not None else 33.0
    chain = np.where(is_fma, k * spec.compute.fma_latency_cycles, k / deep * latency)
    return _Work(cycles, slots, reads + copied, chain, asynchronous)


def _rate(spec: GpuSpec, dtype: str, unit: Unit, used: NDArray[np.int64]) -> float:
    """Return the rate of a unit; of one that no tile uses, anything."""
    if not (used == unit).any():
        return 1.0
    return multiply_adds_per_cycle(spec, dtype, unit) * (1.0 if unit == Unit.FMA else _REACHABLE)


def _warp_grid(tiles: Tiles) -> tuple[Floats, Floats]:
    """Return the warps along m and n. Source: warpsPerTile of Triton's AcceleratedMatmul for mma.sync."""
    rows, columns = np.ones(len(tiles)), np.ones(len(tiles))
    while True:
        more = rows * columns < tiles.num_warps
        if not more.any():
            return rows, columns
        along_m = (tiles.block_m / 32.0 / rows >= tiles.block_n / 8.0 / columns) & (rows < tiles.block_m / 16.0)
        rows = np.where(more & along_m, 2.0 * rows, rows)
        columns = np.where(more & ~along_m, 2.0 * columns, columns)


def _aligned_bytes(extent: int, element: int) -> float:
    """Return the bytes that one copy of a thread moves: rows of the operand must start at multiples of it."""
    width = _COPY_BYTES
    while width > element and extent * element % width:
        width //= 2
    return float(width)


def _fill_bytes(problem: MatmulProblem, rows: Floats, columns: Floats, depth: Floats) -> Floats:
    """Return the bytes of the sectors that one stage of a block takes from L2; padding is not fetched."""
    element = float(problem.element_bytes)

    def sectors(length: Floats, pitch: int) -> Floats:
        run = length * element
        astray = 0.0 if pitch * problem.element_bytes % int(_SECTOR) == 0 else 1.0
        whole: Floats = (np.ceil(run / _SECTOR) + astray) * _SECTOR
        return whole

    left = rows * sectors(depth, problem.k) if problem.a_along_k else depth * sectors(rows, problem.m)
    right = depth * sectors(columns, problem.n) if problem.b_along_n else columns * sectors(depth, problem.k)
    return left + right


def _dram_bytes(
    problem: MatmulProblem, tiles: Tiles, rows: Floats, columns: Floats, window: Floats, spec: GpuSpec
) -> Floats:
    """Return the bytes of the operands that cross the DRAM boundary; as `tensorcore.times.time`, grouped."""
    half = 0.5 * spec.l2.size_bytes
    element = float(problem.element_bytes)
    left, right = problem.m * problem.k * element, problem.n * problem.k * element
    depth_bytes = problem.k * element / tiles.split_k
    window = np.maximum(1.0, window / tiles.split_k)
    at_once = np.maximum(np.minimum(tiles.group_m, rows), window / columns)
    total = np.full(len(tiles), left + right)
    again = np.where(right >= half, right * (np.maximum(1.0, rows / at_once) - 1.0), 0.0)
    columns_at_once = np.maximum(1.0, window / at_once)
    strip = at_once * tiles.block_m * depth_bytes
    more = left * (np.maximum(1.0, columns / columns_at_once) - 1.0)
    return total + again + np.where((left >= half) & (strip >= half), more, 0.0)


def tile_order(scores: TileScores, problem: MatmulProblem, tiles: Tiles) -> NDArray[np.int64]:
    """Return the places of the legal tiles, best first.

    Times within 0.1 % are ties: three stages come first, then four, more, two, one; then rows of operands of 128 bytes;
    then the order given. What the model gets wrong it gets wrong for all tiles of a shape, so a tile counts as 2 %
    slower for every better one of the same block_m, block_n and warps: the first few are of several shapes.
    """
    order = _plain_order(np.log(scores.time_s), problem, tiles)
    order = order[scores.resources.rule[order] == 0]
    shapes = np.stack([tiles.block_m, tiles.block_n, tiles.num_warps])[:, order]
    by_shape = np.lexsort(shapes)  # stable: best first within a shape
    changes = np.concatenate([[True], (np.diff(shapes[:, by_shape]) != 0).any(axis=0)])[: len(order)]
    number = np.arange(len(order))
    better = np.empty(len(order), dtype=np.int64)
    better[by_shape] = number - np.maximum.accumulate(np.where(changes, number, 0))
    chosen = Tiles(**{name: getattr(tiles, name)[order] for name in TILE_FIELDS})
    spread: NDArray[np.int64] = order[
        _plain_order(np.log(scores.time_s[order]) + np.log1p(_SIBLING_SHARE) * better, problem, chosen)
    ]
    return spread


def _plain_order(logarithms: Floats, problem: MatmulProblem, tiles: Tiles) -> NDArray[np.int64]:
    """Return the places of tiles in the order of these times, ties broken."""
    steps = np.floor(logarithms / np.log1p(_TIE_SHARE))
    stages = np.array([9, 4, 3, 0, 1, 2])[np.minimum(tiles.num_stages, 5)]
    row = np.abs(np.log2(tiles.block_k * problem.element_bytes / 128.0))
    order: NDArray[np.int64] = np.lexsort((row, stages, steps))
    return order


def _norm4(*values: Floats) -> Floats:
    """Return the fourth root of the sum of fourth powers: nearly the maximum, a little more where two are alike."""
    total: Floats = np.sqrt(np.sqrt(sum(np.asarray(value, dtype=np.float64) ** 4 for value in values)))
    return total
