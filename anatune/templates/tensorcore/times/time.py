"""Predicted time of tensor-core points: a bottleneck model in cycles of one SM, then waves of blocks.

Per block and stage: tensor-core cycles, issue slots (instructions, copies and their index arithmetic), cycles of the
shared memory (fragments and copies; swizzled, so without bank conflicts) and bytes from L2. A ring of `stages` buffers
keeps ``stages - 1`` loads in flight; what one block cannot hide is hidden by the other resident blocks.

Not modelled: wgmma and TMA of sm_90 (the kernels do not use them), clocks that sink under load.

Constants marked *assumed* have not been compared with measurements yet.

Notation
--------
interval : cycles that an mma.sync keeps the tensor cores of a sub-partition busy.
sm_byte : cycles that a byte from L2 takes an SM.
resident, held : blocks that an SM can hold at once; that it holds, as the grid may be too small for more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.numerics._jit import jit, jit_sequence
from anatune.numerics.columns import Floats, Ints
from anatune.templates.gpu.times.columns import Gpu
from anatune.templates.gpu.times.occupancy import resident_blocks_one
from anatune.templates.gpu.times.waves import SM_FILL_BYTES, TAIL_OVERLAP, combine_s_one, norm4, waves_one
from anatune.templates.tensorcore.times.block import (
    WARP,
    Block,
    Copies,
    block_one,
    copies_one,
    registers_one,
    rule_one,
    shared_bytes_one,
)
from anatune.templates.tensorcore.times.columns import Product, TensorCol, TensorUnits

__all__ = ["BLOCK_CYCLES", "QUEUE", "STEP_CYCLES", "STEP_INSTRUCTIONS", "run_products"]

STEP_INSTRUCTIONS = 24.0
"""Loop, ring index, barrier and address instructions of a warp and stage. Assumed."""
STEP_CYCLES = 40.0
"""Barrier and drain of a stage, cycles, which only other blocks hide. Assumed: one shared-memory latency and more."""
BLOCK_CYCLES = 600.0
"""Start of a block, index arithmetic before its loop, last barrier. Assumed."""
QUEUE = 1.5
"""Latency of a load beside others, over that of a load alone. Assumed."""


class Stage(NamedTuple):
    """One stage of one block: cycles of each part."""

    mma: float
    issue: float
    shared: float
    compute: float
    """These three together."""
    memory: float
    busy: float
    """All of them together."""
    fragments: float
    """Bytes that warps read of the shared memory."""


@jit_sequence
def _stage_one(
    block: Block, copies: Copies, held: float, interval: float, sm_byte: float, product: Product, gpu: Gpu
) -> Stage:
    warps, parts = block.warps, float(gpu.sub_partitions)
    instructions = float(block.m_mma * block.n_mma * block.k_mma)  # of a warp
    spread = math.ceil(held * warps / parts) * parts / (held * warps)  # sub-partitions without a warp idle
    mma = warps * instructions * interval / parts * spread
    reads = block.k_mma * (block.m_mma * (1.0 if product.matrix[0] == 1 else 4.0) + 0.5 * block.n_mma)
    if product.matrix[1] == 0:
        reads += 1.5 * block.k_mma * block.n_mma
    conversions = product.convert * block.k_mma * (4.0 * block.m_mma + 2.0 * block.n_mma)
    warp_slots = instructions + reads + conversions + STEP_INSTRUCTIONS
    issue = (warps * warp_slots + copies.slots) / gpu.issue_per_cycle
    fragments = warps * block.k_mma * (512.0 * block.m_mma + 256.0 * block.n_mma)
    shared = fragments / gpu.shared_bytes_cycle + copies.lines
    memory = copies.fill_bytes * sm_byte
    compute = norm4(mma, issue, shared)
    return Stage(mma, issue, shared, compute, memory, norm4(compute, memory, 0.0), fragments)


@jit_sequence
def _dram_bytes_one(block: Block, resident: int, product: Product, gpu: Gpu) -> float:
    """Return the bytes that cross the DRAM boundary.

    Blocks are walked in groups of rows, column by column; a window of them runs at once. An operand that fits half the
    L2 is read once. Of a larger one, the rows of a group stay in L2 if they fit, and the right operand is read once for
    each group (or for as many rows as run at once). Source: as `cuda.times.tile._dram`, for a grouped order.
    """
    rows, columns = float(block.rows), float(block.columns)
    at_work = float(gpu.num_sms) * resident
    if block.split_tiles == block.tiles:
        at_work = max(1.0, at_work / block.split)  # the parts of a tile follow one another
    window = min(at_work, rows * columns)
    half = 0.5 * float(gpu.l2_bytes)
    depth_bytes = float(product.k * product.element_bytes)
    left, right = float(product.whole_bytes[0]), float(product.whole_bytes[1])
    at_once = max(min(float(block.group), rows), window / columns)  # rows of blocks that are walked together
    total: float = product.result_bytes + product.epilogue_bytes + left + right
    if right / product.batch >= half:
        total += right * (max(1.0, rows / at_once) - 1.0)
    if left / product.batch >= half and at_once * float(block.m) * depth_bytes >= half:
        columns_at_once = max(1.0, window / at_once)
        total += left * (max(1.0, columns / columns_at_once) - 1.0)
    return total


@jit_sequence
def _alone_one(block: Block, stage: Stage, missing: float, interval: float, gpu: Gpu, units: TensorUnits) -> float:
    """Return the cycles of a stage that one block alone cannot overlap; `missing` is the share of loads from DRAM."""
    warps_part = math.ceil(block.warps / float(gpu.sub_partitions))
    instructions = float(block.m_mma * block.n_mma * block.k_mma)
    chain = max(warps_part * instructions * interval, block.k_mma * units.latency)
    if block.k_mma == 1 or block.stages == 1:
        chain += gpu.shared_latency  # nothing is read ahead
    latency = gpu.l2_latency + missing * (gpu.dram_latency - gpu.l2_latency)
    arrival = QUEUE * latency + stage.memory
    if block.stages == 1:
        return max(stage.compute, chain) + arrival + 2.0 * STEP_CYCLES
    return max(max(max(stage.compute, chain) + STEP_CYCLES, arrival / (block.stages - 1)), stage.busy)


@jit_sequence
def _store_cycles_one(block: Block, sm_byte: float, product: Product, gpu: Gpu) -> float:
    """Return the cycles that the results of a block take on their way out."""
    results = float(block.m * block.n)
    result_bytes = product.result_bytes / (product.batch * float(product.m) * product.n)
    stores = results * (8.0 / 128.0 + result_bytes * sm_byte)
    stores += results / (4.0 * WARP) * (4.0 + 4.0 / product.store_width) / gpu.issue_per_cycle
    return stores


@jit
def run_products(
    points: Ints,
    product: Product,
    gpu: Gpu,
    units: TensorUnits,
    known: Floats,
    rules: Ints,
    times: Floats,
    columns: Floats,
) -> None:
    """Check and predict `points` (num_points, columns of `TensorCoreSpace`) int64.

    Points that break a rule are timed as if the limit were not there.

    Parameters
    ----------
    known : (3, num_points) float64, or (0, 0)
        What a compiler said: registers, shared bytes, accumulators in local memory (unused).
    rules : (num_points,) int64
        Filled with the code of the first broken rule, 0 where legal.
    times : (num_points,) float64
        Filled with seconds.
    columns : (TensorCol.COUNT, num_points) float64, or (0, 0)
        Filled with every quantity if it has rows.
    """
    cycle_s = 1.0 / gpu.clock_hz
    num_sms = float(gpu.num_sms)
    # 128 multiply-adds of an instruction for each k
    interval = 128.0 * product.instruction_k / (units.fma_per_cycle / float(gpu.sub_partitions))
    guarded = 1 if product.address[0] + product.address[1] > 0 else 0
    for i in range(points.shape[0]):
        block = block_one(points[i], product, num_sms)
        copies = copies_one(points[i], block, product)
        cap = gpu.register_cap[min(block.warps, gpu.register_cap.shape[0] - 1)]
        registers = min(registers_one(block, copies.both, guarded), cap)
        shared_bytes = shared_bytes_one(block, product.element_bytes)
        if known.shape[0] > 0:
            registers = int(known[0, i])
            shared_bytes = int(known[1, i])
        rules[i] = rule_one(block, copies, shared_bytes, cap, gpu)
        resident, limiter = resident_blocks_one(min(block.threads, gpu.max_threads_block), registers, shared_bytes, gpu)
        resident = max(1, resident)
        held = min(float(resident), math.ceil(block.blocks / num_sms))

        sm_byte = max(1.0 / SM_FILL_BYTES, min(num_sms, block.blocks) / gpu.l2_bytes_cycle)
        stage = _stage_one(block, copies, held, interval, sm_byte, product, gpu)
        dram_bytes = _dram_bytes_one(block, resident, product, gpu)
        part_bytes = block.split_tiles * block.split * float(block.m * block.n) * 4.0
        l2_bytes = copies.fill_bytes * block.steps * block.tiles + product.result_bytes + product.epilogue_bytes
        l2_bytes += part_bytes
        alone = _alone_one(block, stage, min(1.0, dram_bytes / l2_bytes), interval, gpu, units)
        fill = gpu.dram_latency + stage.memory + BLOCK_CYCLES
        stores = _store_cycles_one(block, sm_byte, product, gpu)
        waves = waves_one(block.tiles, block.steps, stage.busy, alone, fill, (stores, 0.0), resident, num_sms)
        cycles, combine_s = waves.cycles, 0.0
        # cycles of an SM if waves could be filled in part, and those that it waits
        waiting = max(0.0, max(held * stage.busy, alone) - held * stage.busy)
        even_cycles = waves.number * waves.each
        waiting_cycles = waves.number * (block.part_steps * waiting + fill)
        if block.split > 1:
            parts = block.split_tiles * block.split
            part_stores = float(block.m * block.n) * 4.0 * sm_byte
            waves = waves_one(parts, block.part_steps, stage.busy, alone, fill, (part_stores, 0.0), resident, num_sms)
            cycles = waves.cycles
            even_cycles = waves.number * waves.each
            waiting_cycles = waves.number * (block.part_steps * waiting + fill)
            if parts < block.blocks:  # full rounds before
                spread = parts * (block.part_steps * stage.busy + part_stores) / num_sms
                whole = block.blocks - parts
                first = waves_one(whole, block.steps, stage.busy, alone, fill, (stores, 0.0), resident, num_sms)
                cycles = first.cycles + max(cycles * TAIL_OVERLAP, spread)
                even_cycles += first.number * first.each
                waiting_cycles += first.number * (block.steps * waiting + fill)
            accumulators = 4.0 * block.m_mma * block.n_mma
            combine_s = combine_s_one(
                float(block.split), block.split_tiles, accumulators, float(block.threads), part_bytes,
                float(block.atomic), product.result_bytes, float(resident), gpu,
            )  # fmt: skip
        l2_s = l2_bytes / gpu.l2_bytes_cycle * cycle_s
        dram_s = dram_bytes / gpu.dram_bytes_cycle * cycle_s
        times[i] = norm4(cycles * cycle_s, l2_s, dram_s) + gpu.launch_s + combine_s
        if columns.shape[0] == 0:
            continue

        total_s = block.tiles * block.steps / num_sms * cycle_s
        columns[TensorCol.TIME_S, i] = times[i]
        columns[TensorCol.MMA_S, i] = stage.mma * total_s
        columns[TensorCol.ISSUE_S, i] = stage.issue * total_s
        columns[TensorCol.SHARED_S, i] = stage.shared * total_s
        columns[TensorCol.L2_S, i] = l2_s
        columns[TensorCol.DRAM_S, i] = dram_s
        columns[TensorCol.LATENCY_S, i] = waiting_cycles * cycle_s
        columns[TensorCol.TAIL_S, i] = max(0.0, (cycles - even_cycles) * cycle_s)
        columns[TensorCol.THREADS, i] = block.threads
        columns[TensorCol.WARPS, i] = block.warps
        columns[TensorCol.BLOCKS, i] = block.blocks
        columns[TensorCol.REGISTERS, i] = registers
        columns[TensorCol.SHARED_BYTES, i] = shared_bytes
        columns[TensorCol.RESIDENT, i] = resident
        columns[TensorCol.LIMITER, i] = limiter
        columns[TensorCol.HELD, i] = held
        columns[TensorCol.WAVES, i] = block.blocks / (num_sms * resident)
        columns[TensorCol.DRAM_BYTES, i] = dram_bytes
        columns[TensorCol.L2_BYTES, i] = l2_bytes
        columns[TensorCol.SHARED_TRAFFIC, i] = stage.fragments * block.steps * block.tiles
        columns[TensorCol.COMBINE_S, i] = combine_s
        columns[TensorCol.STEPS, i] = block.steps
        compulsory = product.result_bytes + product.epilogue_bytes + product.whole_bytes[0] + product.whole_bytes[1]
        columns[TensorCol.EVEN_S, i] = 2.0 * gpu.launch_s + norm4(
            stage.compute * total_s, l2_s, compulsory / gpu.dram_bytes_cycle * cycle_s
        )
        columns[TensorCol.ACCUMULATORS, i] = 4 * block.m_mma * block.n_mma
        tiles = float(block.rows * block.m) * (block.columns * block.n) * (block.steps * block.k)
        columns[TensorCol.USEFUL, i] = float(product.m) * product.n * product.k / tiles
