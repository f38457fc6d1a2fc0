"""Predicted time of attention's tiles: a bottleneck model in cycles of one SM, then waves of blocks.

Notation
--------
stream : warps that compute a step together, one for each quarter of an SM: 4 warps, or fewer if there are fewer. The
    products and the softmax of one stream follow each other. Those of several streams overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.visible import first_key
from anatune.templates.gpu.times.waves import cycles_in_uneven_waves, cycles_in_waves, norm
from anatune.templates.triton.attention.constants import ATTENTION, AttentionConstants
from anatune.templates.triton.attention.problem import AttentionProblem, AttentionTiles
from anatune.templates.triton.attention.resources import attention_resources, repetition, warp_grid
from anatune.templates.triton.attention.steps import StepCounts, count_steps
from anatune.templates.triton.constants import Constants
from anatune.templates.triton.instructions import DotUnit, has_descriptors
from anatune.templates.triton.memory import PART_BYTES, Traffic, combining_s, kept_share
from anatune.templates.triton.resources import Resources, is_wide, multiply_adds_per_cycle
from anatune.templates.triton.times import TileScores, kernel_s, sustained_flop_per_s

__all__ = ["PARTS", "score_attention"]

Floats = NDArray[np.float64]

PARTS = (
    "mma_s", "exp_s", "issue_s", "shared_s", "l2_s", "dram_s", "power_s", "latency_s", "tail_s", "combine_s",
    "launch_s",
)  # fmt: skip
_SPILL_BYTES = 64.0
"""Bytes of spilled registers that an SM moves per cycle. Assumed: half the width of its L1."""

_TURNING, _BYTE_STORE = 2.0, 4.0
"""Instructions to transpose an 8-bit value, and bytes of shared memory that its store occupies. Read off kernels of
Triton 3.9 for sm_90 (PRMT, STS.U8). sm_100 needs no transposition."""
_COPIES = 2.0
"""Copies in L2 of a line that several SMs read: each half of L2 keeps what its own SMs read. Source: NVIDIA A100
whitepaper, L2 partitions. Assumed for other devices."""


@dataclass(frozen=True)
class _StepCycles:
    """Cycles of one step of a block if the whole SM works for it, (num_tiles,) each."""

    mma: Floats
    exp: Floats
    issue: Floats
    shared: Floats
    spilled: Floats
    """Cycles to move registers that do not fit. Softmax waits for them."""
    moved: Floats
    """Bytes from L2."""


def score_attention(
    problem: AttentionProblem,
    tiles: AttentionTiles,
    spec: GpuSpec,
    *,
    warm: bool = False,
    compiled: Floats | None = None,
    steps: StepCounts | None = None,
    costs: AttentionConstants = ATTENTION,
) -> TileScores:
    """Predict the time of every tile.

    Parameters
    ----------
    warm
        Whether the kernel is repeated without a break, so that L2 holds what fits and the code is there.
    compiled
        A compiler's numbers, see `attention_resources`.
    steps
        Numbers of steps, if they do not follow from the problem.

    Raises
    ------
    anatune.errors.SpaceError, anatune.errors.SpecError
        The device has no instruction for the operands, or its spec does not have the rates of its matrix units.
    """
    constants = costs.common
    need = attention_resources(problem, tiles, spec, compiled)
    steps = count_steps(problem, tiles) if steps is None else steps
    compute, split = spec.compute, tiles.split_kv > 1
    clock, num_sms = compute.clock_hz, float(compute.num_sms)
    resident, blocks = need.resident.astype(np.float64), steps.blocks
    step = _step(problem, tiles, need, steps, spec, costs)
    moved = _count_traffic(problem, tiles, steps, spec, resident, warm)
    l2_cycle = _l2_bytes_per_s(tiles, spec, constants) / clock
    flow = _flow(tiles, need, step, blocks, moved, l2_cycle, spec, costs)
    rows = tiles.block_m.astype(np.float64) * problem.depth
    stored = np.where(split, PART_BYTES, float(problem.out_bytes))
    ends = rows * (problem.element_bytes + stored) * flow.sm_byte
    ends = ends + rows / 32.0 * 3.0 / compute.issue_per_cycle_per_sm
    fill = flow.latency * 2.0 + costs.start_cycles + step.moved * flow.sm_byte

    def block_cycles(at_once: Floats, count: Floats) -> Floats:
        """Return the cycles of an SM with `at_once` blocks of `count` steps until all of them end."""
        stages = count * norm(constants.overlap_latency, at_once * flow.busy, flow.alone)
        cycles: Floats = stages + at_once * ends + fill
        return cycles

    hidden, average = fill * (1.0 - 1.0 / resident), partial(block_cycles, count=steps.mean)
    if problem.causal:
        longest = partial(block_cycles, count=steps.most)
        wave, cycles = cycles_in_uneven_waves(blocks, resident, num_sms, average, longest, hidden)
    else:
        wave, cycles = cycles_in_waves(blocks, resident, num_sms, average, hidden, constants.tail_overlap)
    power_s = np.full(len(tiles), _power_s(problem, steps, tiles, spec) if len(tiles) else 0.0)
    l2_s = moved.l2 / (l2_cycle * clock)
    dram_s = moved.dram / (spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction)
    combine_s = _combine_s(problem, tiles, spec, constants)
    launch_s = spec.launch.overhead_s * (1.0 + split) + (0.0 if warm else constants.cold_s)
    time_s = kernel_s(cycles / clock, l2_s, dram_s, power_s, constants) + launch_s + combine_s
    total = blocks * steps.mean / num_sms / clock
    waves = blocks / (num_sms * resident)
    parts = {
        "mma_s": step.mma * total,
        "exp_s": step.exp * total,
        "issue_s": step.issue * total,
        "shared_s": step.shared * total,
        "l2_s": l2_s,
        "dram_s": dram_s,
        "power_s": power_s,
        "latency_s": waves * (steps.mean * np.maximum(0.0, flow.alone - flow.held * flow.busy) + fill) / clock,
        "tail_s": np.maximum(0.0, cycles - waves * wave) / clock,
        "combine_s": combine_s,
        "launch_s": np.broadcast_to(launch_s, len(tiles)),
    }
    return TileScores(time_s, need, parts, waves, moved)


@dataclass(frozen=True)
class _Flow:
    """The overlap of steps, (num_tiles,) each."""

    busy: Floats
    """Cycles that a step adds to a fully occupied SM."""
    alone: Floats
    """Cycles of a step in a block that has its SM to itself."""
    held: Floats
    """Blocks that an SM holds at once."""
    sm_byte: Floats
    """Cycles of a byte that an SM takes from L2 while all SMs do."""
    latency: Floats
    """Cycles of a load."""


def _flow(
    tiles: AttentionTiles,
    need: Resources,
    step: _StepCycles,
    blocks: Floats,
    moved: Traffic,
    l2_cycle: Floats,
    spec: GpuSpec,
    costs: AttentionConstants,
) -> _Flow:
    """Return how the parts of a step overlap, in a fully occupied SM and in a block alone."""
    constants = costs.common
    num_sms, wide = float(spec.compute.num_sms), is_wide(need.unit)
    held = np.minimum(need.resident.astype(np.float64), np.ceil(blocks / num_sms))
    # warps that issue every product themselves issue nothing else meanwhile; wide units are only started
    vector = np.maximum(step.exp, step.issue)
    by_warps = norm(costs.overlap_mma, step.mma, step.exp, step.issue)
    started = np.where(need.unit == DotUnit.TCGEN05, costs.overlap_tcgen05, costs.overlap_wgmma)
    together = np.where(wide, norm(started, step.mma, vector), by_warps) + step.spilled
    port = step.moved / constants.l2_port_bytes
    busy = norm(np.where(wide, constants.overlap_wide, constants.overlap_mma), together, step.shared, port)
    warps, parts = tiles.num_warps.astype(np.float64), float(spec.registers.num_sub_partitions)
    busy = busy * np.maximum(1.0, parts / (warps * held))  # fewer warps leave quarters of the SM idle
    product = spec.tensor_cores.latency_cycles if spec.tensor_cores is not None else 33.0
    # maxima, sums and powers of scores pass through shared memory if warps lie along keys
    exchanges = np.where(~wide & (warp_grid(tiles)[1] > 1), costs.exchange_cycles, 0.0)
    chain = costs.step_cycles + 2.0 * product + exchanges
    streams = np.maximum(1.0, warps / parts)
    alone = (step.mma + vector + step.spilled) * np.maximum(1.0, parts / warps) / streams + chain
    alone = np.maximum(alone, np.maximum(busy, step.shared))
    sm_byte = np.maximum(1.0 / constants.l2_port_bytes, np.minimum(num_sms, blocks) / l2_cycle)
    missing = np.minimum(1.0, moved.dram / np.maximum(moved.l2, 1.0))
    latency = spec.l2.latency_cycles + missing * (spec.dram.latency_cycles - spec.l2.latency_cycles)
    arrival = constants.queue * latency + step.moved * sm_byte
    ahead = tiles.num_stages - 1.0
    alone = np.where(ahead > 0, np.maximum(alone, arrival / np.maximum(ahead, 1.0)), alone + arrival)
    return _Flow(busy, alone, held, sm_byte, latency)


def _step(
    problem: AttentionProblem,
    tiles: AttentionTiles,
    need: Resources,
    steps: StepCounts,
    spec: GpuSpec,
    costs: AttentionConstants,
) -> _StepCycles:
    """Return the work of one step of every tile."""
    constants = costs.common
    m, n, warps = (t.astype(np.float64) for t in (tiles.block_m, tiles.block_n, tiles.num_warps))
    depth, element = float(problem.depth), float(problem.element_bytes)
    unit, wide = need.unit, is_wide(need.unit)
    lanes, issue = float(spec.compute.warp_size), spec.compute.issue_per_cycle_per_sm
    repeated = np.where(wide, 1.0, repetition(problem, tiles))
    warps_m, warps_n = warp_grid(tiles)
    rate = np.ones(len(tiles))
    for code in np.unique(unit):
        reach = constants.reach_wide if code in (DotUnit.WGMMA, DotUnit.TCGEN05) else constants.reach_mma
        rate[unit == code] = multiply_adds_per_cycle(spec, problem.dtype, DotUnit(code)) * reach
    mma = 2.0 * m * n * depth * repeated / rate
    scores = m * n * repeated
    exp = scores / costs.exponentials
    instructions = scores * (costs.element_instructions + costs.masked_instructions * steps.masked) / lanes
    instructions += m * depth * repeated * np.where(unit == DotUnit.TCGEN05, 2.0, 1.0) / lanes  # rescaling of sums
    instructions += costs.row_instructions * m * repeated + warps * constants.step_instructions / 2.0
    stage = 2.0 * n * depth * element
    reads = np.where(wide, stage * np.maximum(1.0, m / np.where(unit == DotUnit.TCGEN05, 128.0, 64.0)), stage * warps_m)
    # warps along keys read the queries in each step, and pass the powers of scores to each other
    shared_rows = m * (depth + 2.0 * n) * element * warps_n
    reads = reads + np.where(wide, m * depth * element, np.where(warps_n > 1, shared_rows, 0.0))
    # without wide units, products are instructions of 16 x 8 results (AMD: 16 x 16) with operands in groups of four
    products = 2.0 * m * n * depth * repeated / (128.0 * {2: 16.0, 1: 32.0}[problem.element_bytes])
    instructions += np.where(wide, 8.0 * warps, products + reads / 512.0)
    # wgmma needs 8-bit values along keys: they are transposed, with a permutation and a store for each byte
    turned = n * depth * ((unit == DotUnit.WGMMA) & (element == 1.0))
    instructions += turned * _TURNING / lanes
    reads = reads + turned * (element + _BYTE_STORE)
    instructions += np.where(tiles.descriptors > 0, 1.0, stage / 16.0 / lanes * constants.copy_instructions)
    spilled = need.spilled * need.threads * 8.0 / _SPILL_BYTES
    shared = (reads + stage) / spec.shared_memory.bytes_per_cycle_per_sm
    return _StepCycles(mma, exp, instructions / issue, shared, spilled, stage)


def _count_traffic(
    problem: AttentionProblem, tiles: AttentionTiles, steps: StepCounts, spec: GpuSpec, resident: Floats, warm: bool
) -> Traffic:
    """Return the bytes that cross DRAM and L2."""
    element = float(problem.element_bytes)
    row_elements = float(problem.groups * problem.rows * problem.head_dim)
    rows = row_elements * (element + problem.out_bytes)
    seen = float(problem.seq_kv - first_key(problem.seq_q, problem.seq_kv, problem.window))
    keys = 2.0 * problem.groups * seen * problem.head_dim * element
    split = tiles.split_kv > 1
    parts = np.where(split, 2.0 * row_elements * PART_BYTES * tiles.split_kv, 0.0)
    per_group = steps.blocks / problem.groups
    at_once = np.minimum(steps.blocks, spec.compute.num_sms * resident)
    groups = np.minimum(problem.groups, np.ceil(at_once / per_group))
    held = keys / problem.groups * groups
    # keys are read again for each round of blocks, unless L2 holds them until all tiles of a head have read them
    again = np.maximum(1.0, np.ceil(per_group / np.maximum(at_once, 1.0)))
    read = keys * np.where(held > 0.5 * spec.l2.size_bytes, again, 1.0)
    kept = kept_share(_COPIES * (keys + rows), spec) if warm else 0.0
    dram = (rows + read) * (1.0 - kept) + np.where(parts > 0.5 * spec.l2.size_bytes, parts, 0.0)
    stage = 2.0 * tiles.block_n.astype(np.float64) * problem.head_dim * element
    return Traffic(stage, rows + parts + steps.blocks * steps.mean * stage, dram, kept)


def _l2_bytes_per_s(tiles: AttentionTiles, spec: GpuSpec, constants: Constants) -> Floats:
    """Return the bytes per second that all SMs together take from L2 while they read keys."""
    copied = spec.l2.tiles_bytes_per_s or spec.l2.bandwidth_bytes_per_s
    gain = constants.descriptor_gain if spec.l2.tiles_bytes_per_s and has_descriptors(spec) else 1.0
    rate: Floats = copied * np.where(tiles.descriptors > 0, gain, 1.0)
    return rate


def _power_s(problem: AttentionProblem, steps: StepCounts, tiles: AttentionTiles, spec: GpuSpec) -> float:
    """Return the seconds below which the device would exceed its power limit, as for products."""
    rate = sustained_flop_per_s(spec, problem.dtype)
    flop = 4.0 * float((steps.blocks * steps.mean * tiles.block_m * tiles.block_n).min()) * problem.depth
    return 0.0 if rate is None else flop / rate


def _combine_s(problem: AttentionProblem, tiles: AttentionTiles, spec: GpuSpec, constants: Constants) -> Floats:
    """Return the seconds of the kernel that combines parts, without its launch; 0 if nothing is split."""
    num_rows = float(problem.groups * problem.rows)
    parts = num_rows * (problem.head_dim + 1.0) * PART_BYTES * tiles.split_kv.astype(np.float64)
    start = 2.0 * constants.queue * spec.l2.latency_cycles + constants.block_cycles
    seconds = combining_s(parts, num_rows * problem.head_dim * problem.out_bytes, spec, start)
    combine_s: Floats = np.where(tiles.split_kv > 1, seconds, 0.0)
    return combine_s
