"""Predicted time of block tiles: a bottleneck model in cycles of one SM, then waves of blocks.

The functions take whole batches as NumPy arrays, for every unit that a tile compiler may choose. First the cycles of
one stage are computed (`_stage`), then those of a block with all its stages and its stores, then those of all blocks in
waves. Traffic of L2 and DRAM and the power limit overlap with these (`kernel_s`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.gpu.times.waves import cycles_in_waves, norm
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.instructions import DotUnit, has_descriptors, instruction_of
from anatune.templates.triton.memory import PART_BYTES, Grid, Traffic, adding_s
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from anatune.templates.triton.resources import WARP, Resources, is_wide, resources
from anatune.templates.triton.tiles import Tiles, stage_preference
from anatune.templates.triton.work import PRODUCT, KernelModel, Work

__all__ = ["PARTS", "TileScores", "kernel_s", "score_tiles", "sustained_flop_per_s", "tile_order"]

Floats = NDArray[np.float64]

PARTS = (
    "compute_s", "issue_s", "shared_s", "l2_s", "dram_s", "power_s", "latency_s", "tail_s", "split_s", "launch_s",
)  # fmt: skip
_TIE_SHARE = 1e-3
_SIBLING_SHARE = 0.02
_ATOMIC_COST = 4.0
"""Cost of an atomic addition of a result, relative to a store. Assumed."""


@dataclass(frozen=True)
class TileScores:
    """The model's numbers of a batch of tiles, (num_tiles,) each.

    Attributes
    ----------
    time_s
        Predicted seconds. Tiles that break a rule get a time as if the rule were not there.
    parts
        Name of `PARTS` -> seconds; most of them overlap.
    waves
        Blocks of the grid, relative to those that the device holds at once.
    moved
        Bytes that blocks take from L2 and DRAM.
    """

    time_s: Floats
    resources: Resources
    parts: dict[str, Floats]
    waves: Floats
    moved: Traffic


def score_tiles(
    problem: MatmulProblem,
    tiles: Tiles,
    spec: GpuSpec,
    *,
    warm: int = 0,
    compiled: Floats | None = None,
    constants: Constants = CONSTANTS,
    kernel: KernelModel = PRODUCT,
) -> TileScores:
    """Predict the time of every tile of a kind of kernel; `compiled`: see `resources`.

    Parameters
    ----------
    warm
        Number of right operands that take turns in a product that is repeated without a break; 1: always the same. L2
        then holds what fits, and the code is there. 0: operands and code come from DRAM.

    Raises
    ------
    anatune.errors.SpecError
        The spec does not have the rates of the device's tensor cores.
    """
    need = resources(problem, tiles, spec, compiled, kernel.extra_needs())
    grid = kernel.grid(problem, tiles, need)
    moved = kernel.traffic(problem, tiles, grid, spec, warm=warm, pieces=constants.pieces)
    work = _add_result_stores(kernel.work(problem, tiles, need, spec, constants), problem, tiles, grid, spec)
    stage = _stage(tiles, need, grid, moved, work, spec, constants)
    compute = spec.compute
    clock, num_sms = compute.clock_hz, float(compute.num_sms)
    split = tiles.split_k > 1

    # cycles of a block: first stage, all stages, results; then waves of blocks
    results = tiles.block_m * tiles.block_n
    cost = np.where(split & problem.atomic, _ATOMIC_COST, 1.0)
    stored = problem.result_bytes if problem.atomic else np.where(split, PART_BYTES, problem.result_bytes)
    stores = results * (8.0 / 128.0 + stored * stage.sm_byte * cost)
    stores += results / (4.0 * WARP) * 5.0 * cost / compute.issue_per_cycle_per_sm
    first = spec.l2.latency_cycles if moved.kept == 1.0 else spec.dram.latency_cycles
    fill = first + moved.stage * stage.sm_byte + constants.block_cycles
    overlap = constants.overlap_converted if problem.converts else constants.overlap_latency

    def block_cycles(at_once: Floats) -> Floats:
        """Return the cycles of an SM with `at_once` blocks until all of them end."""
        together = norm(overlap, at_once * stage.busy, stage.alone)
        stages = grid.steps * np.where(need.unit == DotUnit.FMA, _lane_cycles(tiles, stage, at_once, spec), together)
        # specialised warps start the next tile's products while the others store this tile
        beside = norm(constants.overlap_wide, stages, at_once * stores)
        cycles: Floats = np.where(tiles.warp_specialize == 1, beside, stages + at_once * stores) + fill
        return cycles

    hidden = fill * _hidden_share(tiles, grid)
    wave, cycles = cycles_in_waves(grid.blocks, grid.resident, num_sms, block_cycles, hidden, constants.tail_overlap)
    cycles = cycles + kernel.idle_cycles(tiles, grid, spec, constants)
    cycles = cycles + tiles.warp_specialize * stores  # no products overlap the stores of the last tile
    l2_s = moved.l2 / _tiles_bytes_per_s(tiles, grid, spec, constants)
    dram_s = moved.dram / (spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction)
    power_s = np.full(len(tiles), _power_s(problem, spec))
    # a second launch sets the result to zero, or adds up the parts of sums
    launch_s = spec.launch.overhead_s * (1.0 + split) + (0.0 if warm else constants.cold_s)
    latency = constants.queue * spec.l2.latency_cycles + constants.block_cycles
    split_s = np.zeros(len(tiles)) if problem.atomic else adding_s(problem, tiles, spec, latency)
    time_s = kernel_s(cycles / clock, l2_s, dram_s, power_s, constants) + launch_s + split_s
    total = grid.blocks * grid.steps / num_sms / clock
    waves = grid.blocks / (num_sms * grid.resident)
    parts = {
        "compute_s": stage.compute * total,
        "issue_s": (work.issue + work.convert) * total,
        "shared_s": work.shared * total,
        "l2_s": l2_s,
        "dram_s": dram_s,
        "power_s": power_s,
        "latency_s": waves * (grid.steps * np.maximum(0.0, stage.alone - stage.held * stage.busy) + fill) / clock,
        "tail_s": np.maximum(0.0, cycles - waves * wave) / clock,
        "split_s": np.where(split & problem.atomic, grid.blocks * stores / num_sms / clock, split_s),
        "launch_s": launch_s,
    }
    return TileScores(time_s, need, parts, waves, moved)


def kernel_s(sms_s: Floats, l2_s: Floats, dram_s: Floats, power_s: Floats, constants: Constants) -> Floats:
    """Return the seconds of a kernel without its launch: SMs, L2, DRAM and the power limit, which overlap."""
    time_s = norm(constants.overlap_memory, norm(constants.overlap_l2, sms_s, l2_s), dram_s)
    return norm(constants.overlap_power, time_s, power_s)


def _add_result_stores(work: Work, problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec) -> Work:
    """Return the work of a stage, plus its share of storing the results in kernels with specialised warps.

    There the results pass through shared memory while another tile is multiplied.
    """
    passing = 2.0 * tiles.block_m * tiles.block_n * problem.result_bytes / grid.steps
    passing = passing / spec.shared_memory.bytes_per_cycle_per_sm
    return replace(work, shared=work.shared + np.where(tiles.warp_specialize == 1, passing, 0.0))


@dataclass(frozen=True)
class _StageCycles:
    """Cycles of one stage of a block, (num_tiles,) each."""

    compute: Floats
    """Cycles of the multiplying unit, which the warps of all blocks share."""
    busy: Floats
    """Cycles that the stage adds to a fully occupied SM."""
    alone: Floats
    """Cycles of the stage in a block that has its SM to itself."""
    held: Floats
    """Blocks that an SM holds at once."""
    sm_byte: Floats
    """Cycles of a byte that an SM takes from L2 while all SMs do."""


def _stage(
    tiles: Tiles, need: Resources, grid: Grid, moved: Traffic, work: Work, spec: GpuSpec, constants: Constants
) -> _StageCycles:
    """Return the cycles of a stage."""
    num_sms = float(spec.compute.num_sms)
    parts = float(spec.registers.num_sub_partitions)
    warps = tiles.num_warps.astype(np.float64)
    held = np.minimum(grid.resident, np.ceil(grid.blocks / num_sms))
    compute = work.compute * np.ceil(held * warps / parts) * parts / (held * warps)
    wide = is_wide(need.unit)
    overlap = np.where(wide, constants.overlap_wide, constants.overlap_mma)
    port = moved.stage / constants.l2_port_bytes
    busy = norm(overlap, compute, work.issue + work.convert, work.shared, port)
    # wide units: the same warps wait for a product, copy, start the next; specialised warps queue products (assumed)
    busy = busy + np.where(wide & (tiles.warp_specialize == 0), constants.wide_step, 0.0)

    # cycles that one block alone cannot overlap
    l2_cycle = _tiles_bytes_per_s(tiles, grid, spec, constants) / spec.compute.clock_hz
    sm_byte = np.maximum(1.0 / constants.l2_port_bytes, np.minimum(num_sms, grid.blocks) / l2_cycle)
    chain = np.maximum(work.compute * np.ceil(warps / parts) * parts / warps, work.chain)
    is_fma = need.unit == DotUnit.FMA
    # with a serial part after the products, it includes the instructions of warps that only start products
    beside = np.where(wide & (work.serial > 0.0), 0.0, work.issue + work.convert)
    together = norm(overlap, compute, beside, work.shared)
    cycles = np.where(is_fma, np.maximum(busy * parts / warps, work.chain), np.maximum(together, chain))
    cycles = cycles + work.serial
    missing = np.minimum(1.0, moved.dram / moved.l2)
    latency = spec.l2.latency_cycles + missing * (spec.dram.latency_cycles - spec.l2.latency_cycles)
    # if products wait for the serial part, fewer loads are in flight, and each of them waits less
    load = np.minimum(1.0, moved.stage * np.minimum(num_sms, grid.blocks) * held / np.maximum(cycles, 1.0) / l2_cycle)
    queue = 1.0 + (constants.queue - 1.0) * np.where(work.serial > 0.0, load, 1.0)
    arrival = queue * latency + moved.stage * sm_byte
    alone = _cycles_alone(tiles, need, work, cycles, arrival, constants)
    return _StageCycles(compute, busy, np.where(is_fma, alone, np.maximum(alone, busy)), held, sm_byte)


def _lane_cycles(tiles: Tiles, stage: _StageCycles, at_once: Floats, spec: GpuSpec) -> Floats:
    """Return the cycles of a stage of `at_once` blocks on CUDA cores.

    Their warps wait for loads throughout a stage. Warps that share a scheduler fill each other's waits in the share of
    time in which they do not wait themselves.
    """
    of_warp = stage.busy * spec.registers.num_sub_partitions / tiles.num_warps
    waits = np.maximum(stage.alone - of_warp, 0.0)
    others = np.maximum(at_once * stage.busy - of_warp, 0.0)
    cycles: Floats = np.maximum(at_once * stage.busy, of_warp) + waits * waits / np.maximum(waits + others, 1.0)
    return cycles


def _tiles_bytes_per_s(tiles: Tiles, grid: Grid, spec: GpuSpec, constants: Constants) -> Floats:
    """Return the bytes per second that all SMs together take from L2 while they read tiles."""
    copied = spec.l2.tiles_bytes_per_s
    if copied is None:
        return np.full(len(tiles), spec.l2.bandwidth_bytes_per_s)
    gain = constants.descriptor_gain if has_descriptors(spec) else 1.0
    waves = grid.blocks / (spec.compute.num_sms * grid.resident)
    apart = np.where(grid.resident > 1, waves / (waves + constants.drift_waves), 0.0)
    rate: Floats = copied * np.where(tiles.descriptors > 0, gain, 1.0) * (constants.in_step ** (1.0 - apart))
    return rate


def sustained_flop_per_s(spec: GpuSpec, dtype: str) -> float | None:
    """Return the operations per second that the power limit allows matrix units for these operands. None: no limit."""
    cores = spec.tensor_cores
    if cores is None or dtype == "float32":
        return None
    multiplied = instruction_of(spec, dtype).as_dtype
    small = DTYPES[multiplied] == 1
    rate = spec.tensor_flop_per_s("float16" if small else "float32" if multiplied == "tf32" else multiplied)
    if rate is None:
        return None
    return rate * (2.0 * cores.fp8_sustained_fraction if small else cores.sustained_fraction)


def _power_s(problem: MatmulProblem, spec: GpuSpec) -> float:
    """Return the seconds below which the device would exceed its power limit."""
    rate = sustained_flop_per_s(spec, problem.dtype)
    return 0.0 if rate is None else 2.0 * problem.batch * problem.m * problem.n * problem.k / rate


def _cycles_alone(
    tiles: Tiles, need: Resources, work: Work, compute: Floats, arrival: Floats, constants: Constants
) -> Floats:
    """Return the cycles of a stage of a block alone on its SM: `compute`, and waiting for `arrival` of its operands."""
    ahead = np.where(work.asynchronous, tiles.num_stages, np.minimum(tiles.num_stages, 2)) - 1.0
    # operands that are read into registers free their buffer for the next copy when the last of them is read
    ahead = ahead - np.where(~is_wide(need.unit) & (ahead > 0), constants.held, 0.0)
    # one wgmma still reads its buffer when the next copy is issued, unless its sums are needed at once
    ahead = ahead - np.where((need.unit == DotUnit.WGMMA) & (work.serial == 0.0), constants.wide_pending, 0.0)
    step = np.where(is_wide(need.unit), 0.0, constants.step_cycles)
    pipelined = np.maximum(compute + step, arrival / np.maximum(ahead, 0.2))
    return np.where(ahead >= 0.2, pipelined, compute + arrival + 2.0 * constants.step_cycles)


def _hidden_share(tiles: Tiles, grid: Grid) -> Floats:
    """Return the share of a block's first loads that other blocks hide (if persistent: its previous tile)."""
    share: Floats = np.where(tiles.persistent > 0, 1.0, 1.0 - 1.0 / grid.resident)
    return share


def tile_order(scores: TileScores, problem: MatmulProblem, tiles: Tiles) -> NDArray[np.int64]:
    """Return the positions of the legal tiles, best first.

    Times within 0.1 % are ties. Among ties, three stages come first, then four, more, two, one; then rows of operands
    of 128 bytes; then the given order. The model has the same error for all tiles of a shape (block_m, block_n, warps).
    Therefore a tile counts as 2 % slower for every better tile of its shape, so that the first tiles have several
    shapes.
    """
    order = _order_by_time(np.log(scores.time_s), problem, tiles)
    order = order[scores.resources.rule[order] == 0]
    shapes = np.stack([tiles.block_m, tiles.block_n, tiles.num_warps])[:, order]
    by_shape = np.lexsort(shapes)  # stable: best first within a shape
    changes = np.concatenate([[True], (np.diff(shapes[:, by_shape]) != 0).any(axis=0)])[: len(order)]
    number = np.arange(len(order))
    better = np.empty(len(order), dtype=np.int64)
    better[by_shape] = number - np.maximum.accumulate(np.where(changes, number, 0))
    spread: NDArray[np.int64] = order[
        _order_by_time(np.log(scores.time_s[order]) + np.log1p(_SIBLING_SHARE) * better, problem, tiles.take(order))
    ]
    return spread


def _order_by_time(logarithms: Floats, problem: MatmulProblem, tiles: Tiles) -> NDArray[np.int64]:
    """Return the positions of tiles in the order of these logarithms of times, with ties broken."""
    steps = np.floor(logarithms / np.log1p(_TIE_SHARE))
    stages = stage_preference(tiles.num_stages)
    row = np.abs(np.log2(tiles.block_k * problem.element_bytes / 128.0))
    order: NDArray[np.int64] = np.lexsort((row, stages, steps))
    return order
