"""Predicted time of block tiles: a bottleneck model in cycles of one SM, then waves of blocks.

NumPy on whole batches, for every unit that a tile compiler may choose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.gpu.times.waves import in_waves, norm
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.instructions import Unit, has_descriptors, instruction_of
from anatune.templates.triton.memory import PART_BYTES, Grid, Traffic, adding_s
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from anatune.templates.triton.resources import WARP, Resources, is_wide, resources
from anatune.templates.triton.tiles import Tiles, stage_preference
from anatune.templates.triton.work import PRODUCT, Walk, Work

__all__ = ["PARTS", "TileScores", "kernel_s", "score_tiles", "sustained_flop_per_s", "tile_order"]

Floats = NDArray[np.float64]

PARTS = (
    "compute_s", "issue_s", "shared_s", "l2_s", "dram_s", "power_s", "latency_s", "tail_s", "split_s", "launch_s",
)  # fmt: skip
_TIE_SHARE = 1e-3
_SIBLING_SHARE = 0.02
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
    known: Floats | None = None,
    constants: Constants = CONSTANTS,
    walk: Walk = PRODUCT,
) -> TileScores:
    """Predict the time of every tile; `known`: see `resources`; `walk`: how blocks cover the product.

    Parameters
    ----------
    warm
        How many right operands take turns when the product is repeated without a break, so that L2 holds what fits and
        the code is there (1: always the same one); 0: operands and code come from DRAM.

    Raises
    ------
    anatune.errors.SpecError
        The spec does not say what the device's tensor cores do.
    """
    need = resources(problem, tiles, spec, known, walk.beside())
    grid = walk.grid(problem, tiles, need)
    moved = walk.traffic(problem, tiles, grid, spec, warm=warm, pieces=constants.pieces)
    work = _with_results(walk.work(problem, tiles, need, spec, constants), problem, tiles, grid, spec)
    stage = _stage(tiles, need, grid, moved, work, spec, constants)
    compute = spec.compute
    clock, num_sms = compute.clock_hz, float(compute.num_sms)
    split = tiles.split_k > 1

    # a block: first stages, all stages, results; then waves of blocks
    results = tiles.block_m * tiles.block_n
    cost = np.where(split & problem.atomic, _ATOMIC_COST, 1.0)
    stored = problem.result_bytes if problem.atomic else np.where(split, PART_BYTES, problem.result_bytes)
    stores = results * (8.0 / 128.0 + stored * stage.sm_byte * cost)
    stores += results / (4.0 * WARP) * 5.0 * cost / compute.issue_per_cycle_per_sm
    first = spec.l2.latency_cycles if moved.kept == 1.0 else spec.dram.latency_cycles
    fill = first + moved.stage * stage.sm_byte + constants.block_cycles

    overlap = constants.overlap_converted if problem.converts else constants.overlap_latency

    def block_cycles(at_once: Floats) -> Floats:
        """Return the cycles of an SM with so many blocks at once."""
        together = norm(overlap, at_once * stage.busy, stage.alone)
        stages = grid.steps * np.where(need.unit == Unit.FMA, _of_lanes(tiles, stage, at_once, spec), together)
        # warps of their own start the next tile's products while the others store this one
        beside = norm(constants.overlap_wide, stages, at_once * stores)
        cycles: Floats = np.where(tiles.warp_specialize == 1, beside, stages + at_once * stores) + fill
        return cycles

    hidden = fill * _hidden(tiles, grid)
    wave, cycles = in_waves(grid.blocks, grid.resident, num_sms, block_cycles, hidden, constants.tail_overlap)
    cycles = cycles + walk.idle_cycles(tiles, grid, spec, constants)
    cycles = cycles + tiles.warp_specialize * stores  # behind the last tile there is no other one
    l2_s = moved.l2 / _tiles_bytes_per_s(tiles, grid, spec, constants)
    dram_s = moved.dram / (spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction)
    power_s = np.full(len(tiles), _power_s(problem, spec))
    # the result is set to zero, or the parts of sums are added up, by a launch of its own
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
    """Return the seconds of a kernel without its launch: its SMs, L2, DRAM and the power limit beside each other."""
    time_s = norm(constants.overlap_memory, norm(constants.overlap_l2, sms_s, l2_s), dram_s)
    return norm(constants.overlap_power, time_s, power_s)


def _with_results(work: Work, problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec) -> Work:
    """Return the work of a stage with its part of what results cost beside the next tile's operands.

    They pass the shared memory on their way out; where warps are specialised, another tile is multiplied meanwhile.
    """
    passing = 2.0 * tiles.block_m * tiles.block_n * problem.result_bytes / grid.steps
    passing = passing / spec.shared_memory.bytes_per_cycle_per_sm
    return replace(work, shared=work.shared + np.where(tiles.warp_specialize == 1, passing, 0.0))


@dataclass(frozen=True)
class _Stage:
    """Cycles of one stage of a block, (num_tiles,) each."""

    compute: Floats
    """Of the multiplying unit, as warps share it."""
    busy: Floats
    """What it adds to an SM that is full."""
    alone: Floats
    """Of a block that has its SM to itself."""
    held: Floats
    """Blocks that an SM has at once."""
    sm_byte: Floats
    """Of a byte that an SM takes from L2 while all of them do."""


def _stage(
    tiles: Tiles, need: Resources, grid: Grid, moved: Traffic, work: Work, spec: GpuSpec, constants: Constants
) -> _Stage:
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
    # the same warps wait for a product, copy, and start the next one; specialised ones queue products up (assumed)
    busy = busy + np.where(wide & (tiles.warp_specialize == 0), constants.wide_step, 0.0)

    # what one block alone cannot overlap
    l2_cycle = _tiles_bytes_per_s(tiles, grid, spec, constants) / spec.compute.clock_hz
    sm_byte = np.maximum(1.0 / constants.l2_port_bytes, np.minimum(num_sms, grid.blocks) / l2_cycle)
    chain = np.maximum(work.compute * np.ceil(warps / parts) * parts / warps, work.chain)
    is_fma = need.unit == Unit.FMA
    # what follows the products of a stage (`serial`) holds the instructions of warps that only start them
    beside = np.where(wide & (work.serial > 0.0), 0.0, work.issue + work.convert)
    together = norm(overlap, compute, beside, work.shared)
    own = np.where(is_fma, np.maximum(busy * parts / warps, work.chain), np.maximum(together, chain))
    own = own + work.serial
    missing = np.minimum(1.0, moved.dram / moved.l2)
    latency = spec.l2.latency_cycles + missing * (spec.dram.latency_cycles - spec.l2.latency_cycles)
    # where products wait for what follows them, few loads are on their way at a time: the less, the less each waits
    load = np.minimum(1.0, moved.stage * np.minimum(num_sms, grid.blocks) * held / np.maximum(own, 1.0) / l2_cycle)
    queue = 1.0 + (constants.queue - 1.0) * np.where(work.serial > 0.0, load, 1.0)
    arrival = queue * latency + moved.stage * sm_byte
    alone = _alone(tiles, need, work, own, arrival, constants)
    return _Stage(compute, busy, np.where(is_fma, alone, np.maximum(alone, busy)), held, sm_byte)


def _of_lanes(tiles: Tiles, stage: _Stage, at_once: Floats, spec: GpuSpec) -> Floats:
    """Return the cycles of a stage of so many blocks at once, on CUDA cores.

    Their warps wait for loads all along a stage. Those that share a scheduler fill the waits of each other in the share
    of time in which they do not wait themselves.
    """
    of_warp = stage.busy * spec.registers.num_sub_partitions / tiles.num_warps
    waits = np.maximum(stage.alone - of_warp, 0.0)
    others = np.maximum(at_once * stage.busy - of_warp, 0.0)
    found: Floats = np.maximum(at_once * stage.busy, of_warp) + waits * waits / np.maximum(waits + others, 1.0)
    return found


def _tiles_bytes_per_s(tiles: Tiles, grid: Grid, spec: GpuSpec, constants: Constants) -> Floats:
    """Return the bytes per second that all SMs take from L2 together while they read tiles."""
    copied = spec.l2.tiles_bytes_per_s
    if copied is None:
        return np.full(len(tiles), spec.l2.bandwidth_bytes_per_s)
    gain = constants.descriptor_gain if has_descriptors(spec) else 1.0
    waves = grid.blocks / (spec.compute.num_sms * grid.resident)
    apart = np.where(grid.resident > 1, waves / (waves + constants.drift_waves), 0.0)
    found: Floats = copied * np.where(tiles.descriptors > 0, gain, 1.0) * (constants.in_step ** (1.0 - apart))
    return found


def sustained_flop_per_s(spec: GpuSpec, dtype: str) -> float | None:
    """Return the operations a second that the device's power lets matrix units make of operands; None: no limit."""
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
    """Return the seconds below which the device would need more power than it is allowed."""
    rate = sustained_flop_per_s(spec, problem.dtype)
    return 0.0 if rate is None else 2.0 * problem.batch * problem.m * problem.n * problem.k / rate


def _alone(tiles: Tiles, need: Resources, work: Work, compute: Floats, arrival: Floats, constants: Constants) -> Floats:
    """Return the cycles of a stage of a block that has its SM to itself: `compute`, and what waits for `arrival`."""
    ahead = np.where(work.asynchronous, tiles.num_stages, np.minimum(tiles.num_stages, 2)) - 1.0
    # operands that are read into registers leave their buffer to the next copy only when the last of them is read
    ahead = ahead - np.where(~is_wide(need.unit) & (ahead > 0), constants.held, 0.0)
    # one wgmma is still at work on its buffer when the next copy is issued, unless its sums are needed at once
    ahead = ahead - np.where((need.unit == Unit.WGMMA) & (work.serial == 0.0), constants.wide_pending, 0.0)
    step = np.where(is_wide(need.unit), 0.0, constants.step_cycles)
    pipelined = np.maximum(compute + step, arrival / np.maximum(ahead, 0.2))
    return np.where(ahead >= 0.2, pipelined, compute + arrival + 2.0 * constants.step_cycles)


def _hidden(tiles: Tiles, grid: Grid) -> Floats:
    """Return the share of a block's first loads that other blocks hide; its last tile, where it is persistent."""
    share: Floats = np.where(tiles.persistent > 0, 1.0, 1.0 - 1.0 / grid.resident)
    return share


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
    spread: NDArray[np.int64] = order[
        _plain_order(np.log(scores.time_s[order]) + np.log1p(_SIBLING_SHARE) * better, problem, tiles.take(order))
    ]
    return spread


def _plain_order(logarithms: Floats, problem: MatmulProblem, tiles: Tiles) -> NDArray[np.int64]:
    """Return the places of tiles in the order of these times, ties broken."""
    steps = np.floor(logarithms / np.log1p(_TIE_SHARE))
    stages = stage_preference(tiles.num_stages)
    row = np.abs(np.log2(tiles.block_k * problem.element_bytes / 128.0))
    order: NDArray[np.int64] = np.lexsort((row, stages, steps))
    return order
