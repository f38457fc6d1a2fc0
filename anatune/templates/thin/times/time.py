"""Predicted times of thin points: a bottleneck model in cycles of one SM, then waves of blocks.

A stream is bound by memory if enough bytes are in flight (Little's law): a step of a block takes at least one latency,
and in that time the blocks of an SM read what they have in flight. The step also needs issue slots (loads with their
predicates and addresses, conversions, products), multiply-adds, cycles of L1 (through which both operands go) and bytes
from L2. The small operand comes from L2 once for each block, and from L1 afterwards.

At the end of a block its threads add their sums: shuffles, shared memory, stores. Split sums are written to memory, and
a second kernel adds them.

*Assumed* constants are guesses that no measurement has confirmed yet.

Notation
--------
resident, held : blocks that an SM can hold at the same time; blocks that it holds, which are fewer if the grid is too
small.
sm_byte : cycles that a byte from L2 takes an SM.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.numerics._jit import jit, jit_helper, jit_inline
from anatune.numerics.columns import Floats, Ints
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import resident_blocks_one
from anatune.templates.gpu.times.waves import SM_FILL_BYTES, norm4, sector_bytes_one, waves_one
from anatune.templates.thin.times.block import ThinBlock, broken_rule, loads_in_flight, make_block, thread_registers
from anatune.templates.thin.times.columns import ThinCol, ThinStream

__all__ = ["BLOCK_CYCLES", "LOAD_INSTRUCTIONS", "QUEUE", "STEP_INSTRUCTIONS", "run_streams"]

LOAD_INSTRUCTIONS = 3.0
"""Instructions of a load, with its predicate and the addition to its address. Counted from the generated code.

In addition, the registers of a load are cleared in case its predicate is false, two in one instruction.
"""
STEP_INSTRUCTIONS = 8.0
"""Loop and address instructions of a warp and step. Assumed."""
BLOCK_CYCLES = 600.0
"""Cycles for the start of a block and for the index arithmetic before its loop. Assumed."""
QUEUE = 1.5
"""Ratio of the latency of a load among others to that of a load alone. Assumed."""
RESULT_INSTRUCTIONS = 12.0
"""Instructions of the index arithmetic, test, epilogue and store of a result. Assumed."""
WARP = 32.0
LINE = 128.0
"""Bytes of a line of L1. Source: [Jia18]. That L1 looks up one line in a cycle is assumed."""


class _ThinStepCycles(NamedTuple):
    """Cycles of one step of one block, by part."""

    fma: float
    issue: float
    l1: float
    compute: float
    """The three parts above together."""
    memory: float
    busy: float
    """All parts together."""
    bytes: float
    """Bytes from L2."""


@jit_helper
def _large_step_bytes(block: ThinBlock, stream: ThinStream) -> float:
    """Return the bytes of the sectors that a step of a block reads of the large operand, without the tail."""
    element = float(stream.element_bytes)
    num_columns = float(stream.batch) * stream.n / block.tiles
    depth = float(stream.k) / block.all_steps
    row, rows = (depth, num_columns) if stream.along_k == 1 else (num_columns, depth)
    run = max(1.0, min(row, float(stream.run)))
    pieces = rows * row / run
    if stream.step <= 1:
        return sector_bytes_one(pieces * run, run, stream.misaligned, element)
    return pieces * max(32.0, run * float(stream.step) * element)


@jit_inline
def _cache_lines(count: float, step: int, element: float) -> float:
    """Return the number of cache lines of `count` neighbouring elements; L1 looks up one in a cycle."""
    return max(1.0, count * max(1.0, float(step)) * element / LINE)


@jit_helper
def _step_cycles(point: Ints, block: ThinBlock, sm_byte: float, stream: ThinStream, gpu: Gpu) -> _ThinStepCycles:
    element = float(stream.element_bytes)
    words = stream.dots == 1 and block.load % 4 == 0 and block.small_load % 4 == 0
    products = float(block.products)
    large = block.loads * (LOAD_INSTRUCTIONS + 0.5 * block.load_words + stream.address)
    small = block.small_loads * (
        LOAD_INSTRUCTIONS + 0.5 * math.ceil(block.small_load * element / 4.0) + stream.small_address
    )
    convert = stream.convert * (block.loads * block.load + block.small_loads * block.small_load)
    if words:
        products *= 0.25
        convert = 0.0
    issue = block.warps * (large + small + convert + products + STEP_INSTRUCTIONS) / gpu.issue_per_cycle
    # gpu.fma_per_cycle counts products of bytes in words
    fma = block.warps * WARP * products * gpu.packing / gpu.fma_per_cycle
    side = min(float(point[3] if stream.along_k == 1 else point[0]), WARP)  # lanes of a warp that read neighbours
    together = side if stream.along_k == 1 else 1.0  # different loads of the small operand
    l1 = block.loads * WARP / side * _cache_lines(side * block.load, stream.step, element)
    l1 += block.small_loads * _cache_lines(together * block.small_load, 1, element)
    l1 *= block.warps * LINE / gpu.shared_bytes_cycle
    small_step_bytes = stream.products * max(32.0, float(stream.m) * stream.k / block.all_steps * element)
    num_bytes = _large_step_bytes(block, stream) + small_step_bytes
    compute = norm4(fma, issue, l1)
    memory = num_bytes * sm_byte
    return _ThinStepCycles(fma, issue, l1, compute, memory, norm4(compute, memory, 0.0), num_bytes)


@jit_helper
def _lone_step_cycles(block: ThinBlock, step: _ThinStepCycles, missing: float, stream: ThinStream, gpu: Gpu) -> float:
    """Return the cycles of a step of a block that is alone on its SM; `missing` is the share of loads from DRAM."""
    warp_issue = step.issue / block.warps * gpu.issue_per_cycle  # one instruction a cycle
    chain = max(block.chain * gpu.fma_latency, warp_issue)
    latency = gpu.l2_latency + missing * (gpu.dram_latency - gpu.l2_latency)
    turns = math.ceil(block.loads / float(loads_in_flight(block)))
    return turns * QUEUE * latency + step.memory + max(chain, step.compute)


@jit_helper
def _end_cycles(block: ThinBlock, sm_byte: float, stream: ThinStream, gpu: Gpu) -> tuple[float, float]:
    """Return the cycles that the end of a block keeps an SM busy, and the cycles that it takes.

    A shuffle step is two instructions (shuffle, addition), and so is a write to shared memory.
    """
    result_bytes = stream.result_bytes / (float(stream.batch) * stream.m * stream.n)
    if block.split > 1:
        result_bytes = 4.0
    turns = float(block.turns)
    warp_slots = block.accumulators * (2.0 * block.rounds + 2.0)
    warp_slots += turns * (2.0 * block.slots + RESULT_INSTRUCTIONS)
    issue = block.warps * warp_slots / gpu.issue_per_cycle
    shared = block.results * block.slots * 4.0 * 2.0 / gpu.shared_bytes_cycle
    stores = (block.results if block.split == 1 else block.kept) * result_bytes * sm_byte
    passed = (block.rounds + 2.0) * gpu.shared_latency + turns * gpu.shared_latency
    passed += block.accumulators * (2.0 * block.rounds + 2.0)
    passed += turns * block.slots * gpu.fma_latency
    busy = norm4(issue, shared, stores)
    return busy, max(busy, passed)


@jit_helper
def _dram_bytes(block: ThinBlock, step_bytes: float, workspace: float, stream: ThinStream, gpu: Gpu) -> float:
    """Return the bytes that cross the DRAM boundary: the large operand once, and again only where windows overlap.

    A tensor that fits half the L2 is read once. Partial sums that fit it do not leave it. (Half is assumed.)
    """
    half = 0.5 * gpu.l2_bytes
    total = stream.large_bytes + stream.small_bytes + stream.result_bytes + stream.epilogue_bytes
    if stream.large_bytes > half:
        total += max(0.0, float(stream.batch) * stream.n * stream.k * stream.element_bytes - stream.large_bytes)
    if workspace > half:
        total += workspace
    return total


@jit_helper
def _second_kernel_cycles(workspace: float, stream: ThinStream, gpu: Gpu) -> float:
    """Return the cycles of the kernel that adds split sums and stores results, without its launch."""
    rate = gpu.l2_bytes_cycle if workspace <= 0.5 * gpu.l2_bytes else gpu.dram_bytes_cycle
    streams = (workspace + stream.result_bytes + stream.epilogue_bytes) / rate
    return streams + BLOCK_CYCLES + QUEUE * gpu.l2_latency


@jit
def run_streams(
    points: Ints, stream: ThinStream, gpu: Gpu, compiled: Floats, rules: Ints, times: Floats, columns: Floats
) -> None:
    """Check and predict `points` (num_points, columns of `ThinSpace`) int64.

    Points that break a rule are timed as if there were no limit.

    Parameters
    ----------
    compiled : (3, num_points) float64, or (0, 0)
        Facts from a compiler: registers, shared bytes, accumulators in local memory (unused).
    rules : (num_points,) int64
        Filled with the code of the first broken rule, 0 if legal.
    times : (num_points,) float64
        Filled with seconds.
    columns : (ThinCol.COUNT, num_points) float64, or (0, 0)
        Filled with every quantity if it has rows.
    """
    cycle_s = 1.0 / gpu.clock_hz
    num_sms = float(gpu.num_sms)
    for i in range(points.shape[0]):
        block = make_block(points[i], stream)
        cap = gpu.register_cap[min(block.warps, gpu.register_cap.shape[0] - 1)]
        registers = min(thread_registers(block, stream.m), cap)
        shared_bytes = block.slots * block.results * 4
        if compiled.shape[0] > 0:
            registers = int(compiled[0, i])
            shared_bytes = int(compiled[1, i])
        rules[i] = broken_rule(block, shared_bytes, cap, gpu)
        resident, limiter = resident_blocks_one(min(block.threads, gpu.max_threads_block), registers, shared_bytes, gpu)
        resident = max(1, resident)
        held = min(float(resident), math.ceil(block.blocks / num_sms))

        sm_byte = max(1.0 / SM_FILL_BYTES, min(num_sms, block.blocks) / gpu.l2_bytes_cycle)
        step = _step_cycles(points[i], block, sm_byte, stream, gpu)
        workspace = 4.0 * block.blocks * block.kept if block.split > 1 else 0.0
        l2_bytes = step.bytes * block.all_steps * block.tiles
        dram_bytes = _dram_bytes(block, step.bytes, workspace, stream, gpu)
        alone = _lone_step_cycles(block, step, min(1.0, dram_bytes / l2_bytes), stream, gpu)
        l2_bytes += 2.0 * workspace + stream.result_bytes + stream.epilogue_bytes
        meeting = _end_cycles(block, sm_byte, stream, gpu)
        waves = waves_one(block.blocks, block.steps, step.busy, alone, BLOCK_CYCLES, meeting, resident, num_sms)
        l2_s = l2_bytes / gpu.l2_bytes_cycle * cycle_s
        dram_s = dram_bytes / gpu.dram_bytes_cycle * cycle_s
        second_s = 0.0
        if block.split > 1:
            second_s = _second_kernel_cycles(workspace, stream, gpu) * cycle_s + gpu.launch_s
        times[i] = norm4(waves.cycles * cycle_s, l2_s, dram_s) + second_s + gpu.launch_s
        if columns.shape[0] == 0:
            continue

        total_s = block.tiles * block.all_steps / num_sms * cycle_s
        waiting = max(held * step.busy, alone) - held * step.busy
        columns[ThinCol.TIME_S, i] = times[i]
        columns[ThinCol.FMA_S, i] = step.fma * total_s
        columns[ThinCol.ISSUE_S, i] = step.issue * total_s
        columns[ThinCol.L1_S, i] = step.l1 * total_s
        columns[ThinCol.L2_S, i] = l2_s
        columns[ThinCol.DRAM_S, i] = dram_s
        columns[ThinCol.LATENCY_S, i] = waves.number * (block.steps * waiting + BLOCK_CYCLES) * cycle_s
        columns[ThinCol.MEET_S, i] = waves.number * max(held * meeting[0], meeting[1]) * cycle_s
        columns[ThinCol.TAIL_S, i] = max(0.0, (waves.cycles - waves.number * waves.each) * cycle_s)
        columns[ThinCol.SECOND_S, i] = second_s
        columns[ThinCol.THREADS, i] = block.threads
        columns[ThinCol.WARPS, i] = block.warps
        columns[ThinCol.BLOCKS, i] = block.blocks
        columns[ThinCol.REGISTERS, i] = registers
        columns[ThinCol.SHARED_BYTES, i] = shared_bytes
        columns[ThinCol.RESIDENT, i] = resident
        columns[ThinCol.LIMITER, i] = limiter
        columns[ThinCol.HELD, i] = held
        columns[ThinCol.WAVES, i] = waves.number
        columns[ThinCol.DRAM_BYTES, i] = dram_bytes
        columns[ThinCol.L2_BYTES, i] = l2_bytes
        columns[ThinCol.SHARED_TRAFFIC, i] = block.blocks * block.results * block.slots * 8.0
        columns[ThinCol.ACCUMULATORS, i] = block.accumulators
        columns[ThinCol.LOADS, i] = loads_in_flight(block)
        columns[ThinCol.FLIGHT_BYTES, i] = (
            held * block.threads * loads_in_flight(block) * block.load * stream.element_bytes
        )
