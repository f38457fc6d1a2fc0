"""Predicted time of points: a bottleneck model in cycles of one SM, then waves of blocks.

For each block and staging step the model counts issue slots, multiply-adds, shared-memory cycles (with vector widths
and bank conflicts), bytes from L2, and local-memory traffic of accumulators that do not fit in the registers. Parts
that overlap are combined with a p-norm, a smooth maximum: p = 2 for the pipes of an SM, p = 4 for memories beside them.
Parts that one block cannot overlap (the first load of a step, barriers, dependent instructions) are hidden by the other
resident blocks ([Volkov16] latency hiding, Little's law).

Constants marked *calibrated* were set once on the recorded Ansor, AutoTVM and CLBlast tables. Halving or doubling one
of them changes the rank correlations by a few hundredths.
"""

from __future__ import annotations

import math

from anatune.numerics._jit import jit_helper
from anatune.templates.gpu.times.columns import Chunk, Col, Gpu, NestArrays
from anatune.templates.gpu.times.waves import SECTOR, SM_FILL_BYTES, TAIL_OVERLAP, combine_s_one, even_waves_one, norm4

__all__ = ["fill_even_time", "fill_time"]

FETCH_INSTRUCTIONS = 16.0
"""Instructions per fetched element: load, store, and about 14 for the address of a fused tile index (divisions by
constants) and its bounds check. Calibrated."""
GUARD_INSTRUCTIONS = 3.0
"""Further instructions per fetched element at an edge: compare, predicate or select."""
BRANCH_INSTRUCTIONS = 4.0
"""Instructions per warp and staging step to find out whether fetches are at an edge."""
STAGE_INSTRUCTIONS = 12.0
"""Loop and barrier instructions per warp and staging step."""
STAGE_CYCLES = 30.0
"""Cycles of the barrier and the loop per staging step (one shared-memory latency)."""
FETCHES_IN_FLIGHT = 8.0
"""Global loads of a thread that overlap. The fetch loop is unrolled as far as registers allow. Calibrated."""
SINGLE_WARP_CYCLES = 2.0
"""Cycles between two instructions of one warp. Source: [Jia18] Sec. 2: a 16-lane unit executes a warp in 2 cycles."""
STEPS_IN_FLIGHT = 2.0
"""Iterations of the reduction whose shared loads overlap in one warp."""
LOCAL_IN_FLIGHT = 2.0
"""Local-memory accesses of a thread that overlap. Calibrated on spilling Ansor points (K80, MI50)."""
STORE_CYCLES = 2.0
"""Cycles of a store instruction for issue and address."""


@jit_helper
def fill_time(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Fill TIME_S and its parts for the first `n` points, after `fill_macro` and `fill_micro` (or `fill_best_micro`).

    Bounds rely on how TIME_S depends on the micro quantities; see `cuda.model.ranking`.
    """
    v = c.values
    warp = float(gpu.warp_size)
    num_sms = float(gpu.num_sms)
    staged = float(nest.staged)
    direct_bytes = 0.0
    if nest.staged == 0:
        for t in range(nest.num_operands):
            direct_bytes += nest.tensor_bytes[t]
    result_bytes = nest.tensor_bytes[nest.num_operands]
    # divisions are the most expensive operations here, so that constants are inverted once
    cycle_s = 1.0 / gpu.clock_hz
    fma_warp = warp / gpu.fma_per_cycle
    issue_slot = 1.0 / gpu.issue_per_cycle
    l2_byte = 1.0 / gpu.l2_bytes_cycle
    dram_byte = 1.0 / gpu.dram_bytes_cycle
    for i in range(n):
        warps, steps, accumulators = v[Col.WARPS, i], v[Col.STEPS, i], v[Col.ACCUMULATORS, i]
        blocks, stages, resident = v[Col.BLOCKS, i], v[Col.STAGES, i], v[Col.RESIDENT, i]
        spilled, loads = v[Col.SPILLED, i], v[Col.LOADS, i]
        split, split_tiles = v[Col.SPLIT, i], v[Col.SPLIT_TILES, i]
        tiles = blocks - split_tiles * (split - 1.0)
        active_sms = min(num_sms, blocks)
        sm_byte = max(1.0 / SM_FILL_BYTES, l2_byte * active_sms)  # cycles of an SM per byte from L2

        # accumulators in local memory: L1, then L2, then DRAM hold the spilled accumulators of all SMs
        local = 0.0
        missed = 0.0
        from_memory = 0.0
        spill_squared = 0.0
        local_wait = 0.0
        if spilled > 0.0:
            local = 2.0 * spilled * steps / v[Col.REUSE, i]
            kept = spilled * 4.0 * v[Col.THREADS, i] * resident
            in_l1 = min(1.0, gpu.l1_bytes / kept)
            in_l2 = min(1.0, gpu.l2_bytes / (kept * num_sms))
            missed = local * warps * warp * 4.0 * (1.0 - in_l1)
            from_memory = missed * (1.0 - in_l2)
            from_l2 = missed * sm_byte
            from_dram = from_memory * dram_byte * active_sms
            spill_squared = from_l2 * from_l2 + from_dram * from_dram
            beyond_l1 = in_l2 * gpu.l2_latency + (1.0 - in_l2) * gpu.dram_latency
            wait_each = in_l1 * gpu.l1_latency + (1.0 - in_l1) * beyond_l1
            local_wait = 0.5 * local * wait_each / LOCAL_IN_FLIGHT

        # cycles of one staging step of one block, alone on its SM
        fma = warps * accumulators * steps * fma_warp
        multiply_adds = accumulators * steps / gpu.packing
        guarded = v[Col.GUARDED, i]
        stage_instructions = STAGE_INSTRUCTIONS + (BRANCH_INSTRUCTIONS if guarded > 0.0 else 0.0)
        instructions = warps * (multiply_adds + loads + stage_instructions + local)
        fetch_instructions = FETCH_INSTRUCTIONS + guarded * GUARD_INSTRUCTIONS
        issue = (instructions + v[Col.FETCHES_BLOCK, i] * fetch_instructions) * issue_slot
        staging = v[Col.FETCH_LINES, i] + v[Col.TILE_BYTES, i] / 128.0
        shared = warps * v[Col.WAVEFRONTS, i] + (staging + warps * local) * warp / 32.0
        compute = math.sqrt(fma * fma + issue * issue + shared * shared + spill_squared)
        chain = max(multiply_adds * SINGLE_WARP_CYCLES + loads, steps * gpu.fma_latency)
        chain += gpu.shared_latency * max(1.0, steps / STEPS_IN_FLIGHT) * staged + local_wait

        # loads of the step; partly used sectors stay in L1 for the next step if they fit
        sector_bytes = v[Col.SECTOR_BYTES, i]
        free_l1 = max(0.125 * gpu.l1_bytes, gpu.l1_bytes - resident * v[Col.SHARED_BYTES, i])
        kept_fraction = min(1.0, free_l1 / (sector_bytes * resident + 1.0))
        step_bytes = sector_bytes - max(0.0, sector_bytes - v[Col.TILE_BYTES, i]) * kept_fraction
        step_bytes += direct_bytes / blocks
        memory = step_bytes * sm_byte
        missing = min(1.0, step_bytes / SECTOR / max(1.0, v[Col.FETCHES_BLOCK, i]))
        each_wait = gpu.l2_latency * missing + gpu.l1_latency * (1.0 - missing)
        more_waits = max(0.0, v[Col.FETCHES, i] / FETCHES_IN_FLIGHT - 1.0)
        alone = max(compute, chain) + memory + gpu.l2_latency + each_wait * more_waits + STAGE_CYCLES
        start = 0.0
        wait = gpu.l2_latency + each_wait * more_waits
        buffers = min(float(nest.stages), stages)
        if buffers > 1.0:  # later steps are fetched ahead, so that only the first fetches are waited for
            ahead = buffers - 1.0
            alone = max(max(compute, chain), max(memory, wait / ahead)) + STAGE_CYCLES
            start = min(ahead, stages) * memory + wait

        # stores of a block, then waves of blocks
        store_bytes = v[Col.STORE_SECTORS, i] * SECTOR
        store = accumulators * warps * (STORE_CYCLES + store_bytes * sm_byte)
        busy_one = norm4(compute, memory, 0.0)
        step_cycles = max(resident * busy_one, alone)
        per_wave = num_sms * resident
        waves = blocks / per_wave
        part_bytes = 0.0
        even_stages = waves * stages  # steps and cycles of an SM, if waves could be filled in part
        if split == 1.0:
            once = gpu.l2_latency + start
            even_cycles = waves * (stages * step_cycles + resident * store + once)
            cycles = even_waves_one(blocks, stages, busy_one, alone, store, once, resident, num_sms)
        else:
            # parts store their sums contiguously, in any order of the results
            part_stages = math.ceil(stages / split)
            once = gpu.l2_latency + min(start, wait + part_stages * memory)
            part_bytes = split_tiles * split * accumulators * v[Col.THREADS, i] * 4.0
            part_store = accumulators * warps * (STORE_CYCLES + warp * 4.0 * sm_byte)
            parts = split_tiles * split
            even_stages = parts / per_wave * part_stages
            even_cycles = parts / per_wave * (part_stages * step_cycles + resident * part_store + once)
            cycles = even_waves_one(parts, part_stages, busy_one, alone, part_store, once, resident, num_sms)
            if parts < blocks:  # complete rounds of whole tiles run before
                spread = parts * (part_stages * busy_one + part_store) / num_sms
                whole, whole_once = blocks - parts, gpu.l2_latency + start
                first = even_waves_one(whole, stages, busy_one, alone, store, whole_once, resident, num_sms)
                even_stages += whole / per_wave * stages
                even_cycles += whole / per_wave * (stages * step_cycles + resident * store + whole_once)
                cycles = first + max(cycles * TAIL_OVERLAP, spread)
        l2_bytes = step_bytes * stages * tiles + result_bytes + nest.epilogue_bytes + part_bytes
        l2_s = l2_bytes * l2_byte * cycle_s
        dram_s = v[Col.DRAM_BYTES, i] * dram_byte * cycle_s
        combine_s = 0.0
        if split > 1.0:
            combine_s = combine_s_one(
                split,
                split_tiles,
                accumulators,
                v[Col.THREADS, i],
                part_bytes,
                v[Col.ATOMIC, i],
                result_bytes,
                resident,
                gpu,
            )
        v[Col.COMBINE_S, i] = combine_s
        v[Col.TIME_S, i] = norm4(cycles * cycle_s, l2_s, dram_s) + gpu.launch_s + combine_s

        total_s = tiles * stages / num_sms * cycle_s
        v[Col.FMA_S, i] = fma * total_s
        v[Col.ISSUE_S, i] = issue * total_s
        v[Col.SHARED_S, i] = shared * total_s
        v[Col.SPILL_S, i] = spill_squared * total_s * total_s
        v[Col.L2_S, i] = l2_s
        v[Col.DRAM_S, i] = dram_s
        v[Col.LATENCY_S, i] = even_stages * (step_cycles - resident * busy_one) * cycle_s
        v[Col.TAIL_S, i] = max(0.0, (cycles - even_cycles) * cycle_s)
        v[Col.HELD, i] = min(resident, math.ceil(blocks / num_sms))
        v[Col.WAVES, i] = waves
        v[Col.STEP_BYTES, i] = step_bytes
        v[Col.L2_BYTES, i] = l2_bytes
        v[Col.LOCAL_L2_BYTES, i] = missed * stages * tiles
        v[Col.LOCAL_DRAM_BYTES, i] = from_memory * stages * tiles
        v[Col.LOCAL, i] = local
    for i in range(n):
        v[Col.SPILL_S, i] = math.sqrt(v[Col.SPILL_S, i])


@jit_helper
def fill_even_time(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Replace TIME_S of points without a split by a time that no split of their reductions can beat, after `fill_time`.

    It assumes that all SMs share the work evenly, without waves and waiting, that only compulsory bytes move, and that
    there is a second launch.
    """
    v = c.values
    compulsory = nest.epilogue_bytes
    for t in range(nest.num_operands + 1):
        compulsory += nest.tensor_bytes[t]
    cycle_s = 1.0 / gpu.clock_hz
    dram_s = compulsory / gpu.dram_bytes_cycle * cycle_s
    for i in range(n):
        fma_s, issue_s, shared_s = v[Col.FMA_S, i], v[Col.ISSUE_S, i], v[Col.SHARED_S, i]
        compute_s = math.sqrt(fma_s * fma_s + issue_s * issue_s + shared_s * shared_s)
        v[Col.TIME_S, i] = norm4(compute_s, v[Col.L2_S, i], dram_s) + 2.0 * gpu.launch_s
