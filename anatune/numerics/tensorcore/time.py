"""Predicted time of tensor-core points: a bottleneck model in cycles of one SM, then waves of blocks.

Per block and stage: tensor-core cycles, issue slots (instructions, copies and their index arithmetic), cycles of the
shared memory (fragments and copies; swizzled, so without bank conflicts) and bytes from L2. A ring of `stages` buffers
keeps ``stages - 1`` loads in flight; what one block cannot hide is hidden by the other resident blocks.

Not modelled: wgmma and TMA of sm_90 (the kernels do not use them), clocks that sink under load.

Constants marked *assumed* have not been compared with measurements yet.
"""

from __future__ import annotations

import math
from typing import Any

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.cuda.columns import Gpu
from anatune.numerics.cuda.occupancy import ceil_div, resident_blocks_one
from anatune.numerics.cuda.tile import MAX_GRID, sector_bytes_one
from anatune.numerics.cuda.time import SM_FILL_BYTES, TAIL_OVERLAP, norm4
from anatune.numerics.tensorcore.columns import Product, TensorCol, TensorUnits

__all__ = [
    "MOST_COPIES",
    "RULE_COPIES",
    "RULE_GRID",
    "RULE_REGISTERS",
    "RULE_SHARED",
    "RULE_THREADS",
    "registers_one",
    "run_products",
    "shared_bytes_one",
]

RULE_THREADS, RULE_SHARED, RULE_REGISTERS, RULE_COPIES, RULE_GRID = 1, 2, 3, 4, 5
MOST_COPIES = 64
"""Copies of a thread and stage: they are unrolled, and code must fit the instruction cache."""
BASE_REGISTERS = 18
"""Loop counters and addresses. This and the weights in `registers_one` fit 147 kernels compiled for sm_80 to sm_90
(16-bit and tf32, products and convolutions): 20 registers off on average, as the compiler keeps addresses in whatever
registers are left; 5 off for 64 x 64 results a warp with wide copies."""
LEAST_REGISTERS = 24
"""Addresses and loop counters when registers are short."""
STEP_INSTRUCTIONS = 24.0
"""Loop, ring index, barrier and address instructions of a warp and stage. Assumed."""
STEP_CYCLES = 40.0
"""Barrier and drain of a stage, cycles, which only other blocks hide. Assumed: one shared-memory latency and more."""
BLOCK_CYCLES = 600.0
"""Start of a block, index arithmetic before its loop, last barrier. Assumed."""
QUEUE = 1.5
"""Latency of a load beside others, over that of a load alone. Assumed."""
COPY_INSTRUCTIONS = 3.0
"""Copy and the additions that move its two addresses."""
WARP = 32.0

_TIME_S = int(TensorCol.TIME_S)
_MMA_S = int(TensorCol.MMA_S)
_ISSUE_S = int(TensorCol.ISSUE_S)
_SHARED_S = int(TensorCol.SHARED_S)
_L2_S = int(TensorCol.L2_S)
_DRAM_S = int(TensorCol.DRAM_S)
_LATENCY_S = int(TensorCol.LATENCY_S)
_TAIL_S = int(TensorCol.TAIL_S)
_THREADS = int(TensorCol.THREADS)
_WARPS = int(TensorCol.WARPS)
_BLOCKS = int(TensorCol.BLOCKS)
_REGISTERS = int(TensorCol.REGISTERS)
_SHARED_BYTES = int(TensorCol.SHARED_BYTES)
_RESIDENT = int(TensorCol.RESIDENT)
_LIMITER = int(TensorCol.LIMITER)
_HELD = int(TensorCol.HELD)
_WAVES = int(TensorCol.WAVES)
_DRAM_BYTES = int(TensorCol.DRAM_BYTES)
_L2_BYTES = int(TensorCol.L2_BYTES)
_SHARED_TRAFFIC = int(TensorCol.SHARED_TRAFFIC)
_ACCUMULATORS = int(TensorCol.ACCUMULATORS)
_USEFUL = int(TensorCol.USEFUL)
_STEPS = int(TensorCol.STEPS)


@jit_inline
def registers_one(m_mma: int, n_mma: int, k_mma: int, copies: int, guarded: int) -> int:
    """Return the registers that a thread would like: accumulators, fragments (two sets from k_mma 2 on), addresses."""
    accumulators, fragments = 4 * m_mma * n_mma, 4 * m_mma + 2 * n_mma
    more = 3 * fragments // 4 if k_mma > 1 else 0
    return BASE_REGISTERS + accumulators + 7 * fragments // 4 + more + copies // 2 + 3 * k_mma + 10 * guarded


@jit_inline
def shared_bytes_one(
    block_m: int, block_n: int, block_k: int, warps: int, n_mma: int, stages: int, element_bytes: int
) -> int:
    """Return the shared memory of a block: the ring, or the results on their way out, which take its place."""
    columns = 8 * n_mma
    pitch = columns + (8 if columns % 16 == 0 else 16)
    return max(stages * (block_m + block_n) * block_k * element_bytes, warps * 16 * pitch * 4)


@jit_inline
def _tile_bytes_one(rows: float, row: float, t: int, product: Product) -> float:
    """Return the bytes of the sectors that an operand's tile lies in."""
    element = float(product.element_bytes)
    run = min(row, float(product.run[t]))
    pieces = rows * row / run
    if product.step[t] <= 1:
        return sector_bytes_one(pieces * run, run, product.misaligned[t], element)
    return pieces * max(32.0, run * float(product.step[t]) * element)


@jit_inline
def _dram_bytes_one(
    block_m: float, block_n: float, rows: float, columns: float, group: float, window: float, gpu: Gpu, product: Product
) -> float:
    """Return the bytes that cross the DRAM boundary.

    Blocks are walked in groups of `group` rows, column by column; `window` of them run at once. An operand that fits
    half the L2 is read once. Of a larger one, the rows of a group stay in L2 if they fit, and the right operand is read
    once for each group (or for as many rows as run at once). Source: as `cuda.tile._dram`, for a grouped order.
    """
    half = 0.5 * float(gpu.l2_bytes)
    depth_bytes = float(product.k * product.element_bytes)
    left, right = float(product.whole_bytes[0]), float(product.whole_bytes[1])
    at_once = max(min(group, rows), window / columns)  # rows of blocks that are walked together
    total: float = product.result_bytes + product.epilogue_bytes + left + right
    if right / product.batch >= half:
        total += right * (max(1.0, rows / at_once) - 1.0)
    if left / product.batch >= half and at_once * block_m * depth_bytes >= half:
        columns_at_once = max(1.0, window / at_once)
        total += left * (max(1.0, columns / columns_at_once) - 1.0)
    return total


@jit
def run_products(
    points: Any, product: Product, gpu: Gpu, units: TensorUnits, known: Any, rules: Any, times: Any, columns: Any
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
    element = float(product.element_bytes)
    mma_fma = 128.0 * product.instruction_k  # multiply-adds of an instruction
    parts = float(gpu.sub_partitions)
    interval = mma_fma / (units.fma_per_cycle / parts)  # cycles that an instruction keeps a sub-partition's unit busy
    for i in range(points.shape[0]):
        m_warp, m_mma, n_warp, n_mma, k_mma = points[i, 0], points[i, 1], points[i, 2], points[i, 3], points[i, 4]
        stages, group = points[i, 5], points[i, 6]
        block_m, block_n = 16 * m_warp * m_mma, 8 * n_warp * n_mma
        block_k = product.instruction_k * k_mma
        rows, blocks_n = ceil_div(product.m, block_m), ceil_div(product.n, block_n)
        steps = ceil_div(product.k, block_k)
        blocks = float(product.batch) * rows * blocks_n
        warps = m_warp * n_warp
        threads = 32 * warps

        # resources and rules
        most_copies = 0
        through_registers = 0
        all_copies = 0
        copy_slots = 0.0
        copy_lines = 0.0
        fill_bytes = 0.0
        for t in range(2):
            edge = block_m if t == 0 else block_n
            width = points[i, 7 + t]
            copies = ceil_div(edge * block_k // width, threads)
            most_copies = max(most_copies, copies)
            all_copies += copies
            issued = math.ceil(edge * block_k / width / WARP)  # instructions of all warps
            cost = COPY_INSTRUCTIONS + product.address[t]
            if width * product.element_bytes < 4:
                through_registers += copies
                cost += 2.0
            copy_slots += issued * cost
            copy_lines += issued * max(1.0, WARP * width * element / 128.0)
            inside = float(product.m) / rows if t == 0 else float(product.n) / blocks_n  # padding is not fetched
            depth = float(product.k) / steps
            if product.along_k[t] == 1:
                fill_bytes += _tile_bytes_one(inside, depth, t, product)
            else:
                fill_bytes += _tile_bytes_one(depth, inside, t, product)
        shared_bytes = shared_bytes_one(block_m, block_n, block_k, warps, n_mma, stages, product.element_bytes)
        accumulators = 4 * m_mma * n_mma
        cap = gpu.register_cap[min(warps, gpu.register_cap.shape[0] - 1)]
        need = accumulators + 4 * m_mma + 2 * n_mma + through_registers // 2 + LEAST_REGISTERS
        guarded = 1 if product.address[0] + product.address[1] > 0 else 0
        registers = min(registers_one(m_mma, n_mma, k_mma, all_copies, guarded), cap)
        if known.shape[0] > 0:
            registers = int(known[0, i])
            shared_bytes = int(known[1, i])
        code = 0
        if threads > gpu.max_threads_block:
            code = RULE_THREADS
        elif shared_bytes > gpu.shared_block_bytes:
            code = RULE_SHARED
        elif need > cap:
            code = RULE_REGISTERS
        elif most_copies > MOST_COPIES:
            code = RULE_COPIES
        elif blocks > MAX_GRID:
            code = RULE_GRID
        rules[i] = code
        resident, limiter = resident_blocks_one(min(threads, gpu.max_threads_block), registers, shared_bytes, gpu)
        resident = max(1, resident)
        held = min(float(resident), math.ceil(blocks / num_sms))

        # one stage of one block: cycles of each part
        active_sms = min(num_sms, blocks)
        instructions = float(m_mma * n_mma * k_mma)  # of a warp
        spread = math.ceil(held * warps / parts) * parts / (held * warps)  # sub-partitions without a warp idle
        mma = warps * instructions * interval / parts * spread
        reads = k_mma * (m_mma * (1.0 if product.matrix[0] == 1 else 4.0) + 0.5 * n_mma)
        if product.matrix[1] == 0:
            reads += 1.5 * k_mma * n_mma
        conversions = product.convert * k_mma * (4.0 * m_mma + 2.0 * n_mma)
        warp_slots = instructions + reads + conversions + STEP_INSTRUCTIONS
        issue = (warps * warp_slots + copy_slots) / gpu.issue_per_cycle
        fragments = warps * k_mma * (512.0 * m_mma + 256.0 * n_mma)  # bytes
        shared = fragments / gpu.shared_bytes_cycle + copy_lines
        sm_byte = max(1.0 / SM_FILL_BYTES, active_sms / gpu.l2_bytes_cycle)  # cycles a byte from L2 takes an SM
        memory = fill_bytes * sm_byte
        compute = norm4(mma, issue, shared)
        busy = norm4(compute, memory, 0.0)

        # what one block alone cannot overlap
        warps_part = math.ceil(warps / parts)
        chain = max(warps_part * instructions * interval, k_mma * units.latency)
        if k_mma == 1 or stages == 1:
            chain += gpu.shared_latency  # nothing is read ahead
        window = min(num_sms * resident, float(rows) * blocks_n)
        dram_bytes = _dram_bytes_one(
            float(block_m), float(block_n), float(rows), float(blocks_n), float(group), window, gpu, product
        )
        l2_bytes = fill_bytes * steps * blocks + product.result_bytes + product.epilogue_bytes
        missing = min(1.0, dram_bytes / l2_bytes)
        latency = gpu.l2_latency + missing * (gpu.dram_latency - gpu.l2_latency)
        arrival = QUEUE * latency + memory
        if stages == 1:
            alone = max(compute, chain) + arrival + 2.0 * STEP_CYCLES
        else:
            alone = max(max(compute, chain) + STEP_CYCLES, arrival / (stages - 1))
            alone = max(alone, busy)
        step = max(held * busy, alone)

        # a block: filling the ring, all stages, results; then waves of blocks
        results = float(block_m * block_n)
        result_bytes = product.result_bytes / (product.batch * float(product.m) * product.n)
        stores = results * (8.0 / 128.0 + result_bytes * sm_byte)
        stores += results / (4.0 * WARP) * (4.0 + 4.0 / product.store_width) / gpu.issue_per_cycle
        fill = gpu.dram_latency + memory + BLOCK_CYCLES
        per_wave = num_sms * resident
        waves = blocks / per_wave
        wave = steps * max(resident * busy, alone) + resident * stores + fill
        whole_waves = math.floor(waves)
        left = blocks - whole_waves * per_wave
        tail = 0.0
        if left > 0.0:
            last = math.ceil(left / num_sms)
            tail = steps * max(last * busy, alone) + last * stores + fill
            if whole_waves > 0.0:
                # equal blocks that started together end together; after many waves they no longer do
                overlap = TAIL_OVERLAP + (1.0 - TAIL_OVERLAP) / whole_waves
                tail = max(tail * overlap, wave * left / per_wave)
        # blocks of later waves start as earlier ones end: their ring fills while others compute, if there are others
        if resident > 1 and whole_waves > 1.0:
            wave -= fill * (1.0 - 1.0 / resident)
        cycles = whole_waves * wave + tail
        l2_s = l2_bytes / gpu.l2_bytes_cycle * cycle_s
        dram_s = dram_bytes / gpu.dram_bytes_cycle * cycle_s
        seconds = norm4(cycles * cycle_s, l2_s, dram_s) + gpu.launch_s
        times[i] = seconds
        if columns.shape[0] == 0:
            continue
        total_s = blocks * steps / num_sms * cycle_s
        columns[_TIME_S, i] = seconds
        columns[_MMA_S, i] = mma * total_s
        columns[_ISSUE_S, i] = issue * total_s
        columns[_SHARED_S, i] = shared * total_s
        columns[_L2_S, i] = l2_s
        columns[_DRAM_S, i] = dram_s
        columns[_LATENCY_S, i] = waves * (steps * max(0.0, step - held * busy) + fill) * cycle_s
        columns[_TAIL_S, i] = max(0.0, (cycles - waves * wave) * cycle_s)
        columns[_THREADS, i] = threads
        columns[_WARPS, i] = warps
        columns[_BLOCKS, i] = blocks
        columns[_REGISTERS, i] = registers
        columns[_SHARED_BYTES, i] = shared_bytes
        columns[_RESIDENT, i] = resident
        columns[_LIMITER, i] = limiter
        columns[_HELD, i] = held
        columns[_WAVES, i] = waves
        columns[_DRAM_BYTES, i] = dram_bytes
        columns[_L2_BYTES, i] = l2_bytes
        columns[_SHARED_TRAFFIC, i] = fragments * steps * blocks
        columns[_ACCUMULATORS, i] = accumulators
        tiles = float(rows * block_m) * (blocks_n * block_n) * (steps * block_k)
        columns[_USEFUL, i] = float(product.m) * product.n * product.k / tiles
        columns[_STEPS, i] = steps
