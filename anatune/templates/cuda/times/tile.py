"""Macro quantities: those that follow from the sizes of blocks, threads and staging steps.

Notation
--------
tile of an axis : iterations of one block (spatial axis) or of one staging step (reduction axis).
staging step : one iteration of the k0 loops, for which the operands are staged in shared memory.
accumulators : results of a thread.
fragment : elements of an operand that a thread needs for one iteration of the reduction.

All other quantities are micro quantities (`micro`).
"""

from __future__ import annotations

import math
from enum import IntEnum

from anatune.numerics._jit import jit_helper
from anatune.numerics.columns import Floats, Ints
from anatune.templates.gpu.rules import MAX_GRID
from anatune.templates.gpu.times.columns import Chunk, Col, Gpu, NestArrays
from anatune.templates.gpu.times.occupancy import blocks_from_table_one, resident_blocks_one
from anatune.templates.gpu.times.waves import is_broken_split, sector_bytes_one

__all__ = ["CudaRule", "fill_limiters", "fill_macro", "load_points", "take_compiled"]

CudaRule = IntEnum(
    "CudaRule", "threads_per_block shared_bytes_per_block grid_blocks local_bytes_per_thread split_parts"
)
"""Ids of rules -> the value of Col.RULE for points that break them."""
MAX_LOCAL_BYTES = 524288.0
"""Local memory of a thread. Source: [CUDA-guide] technical specifications."""
BASE_REGISTERS = 24
"""Registers of a thread for addresses, loop counters and staged loads: the average of what ptxas reports beyond
accumulators + fragments in 22 matmul kernels for sm_86."""
LIVE_REGISTERS = 18
"""Registers that are needed beside accumulators and half the fragments, so that nothing spills. The rest can be
reloaded. Calibrated: MI50 and K80 AutoTVM logs show spills from 46 of 64 and about 230 of 255 registers on."""
SPILL_SLOPE = 2
"""Accumulators that move to local memory for each missing register: reloading one takes a register, too."""


@jit_helper
def load_points(points: Ints, start: int, n: int, nest: NestArrays, c: Chunk) -> None:
    """Read points[start : start + n], rows in the order of GpuSpace.columns, into the chunk."""
    v = c.values
    stages, vthreads, reg_inner, reg_outer, k2 = (
        v[Col.STAGES],
        v[Col.VTHREADS],
        v[Col.REG_INNER],
        v[Col.REG_OUTER],
        v[Col.K2],
    )
    interior = v[Col.GUARDED]
    for i in range(n):
        interior[i] = 1.0
        stages[i] = 1.0
        vthreads[i] = 1.0
        reg_inner[i] = 1.0
        reg_outer[i] = 1.0
        k2[i] = 1.0
    for a in range(nest.num_spatial):
        column = 5 * a
        grid, thread, inner, reg, tile = c.grid[a], c.thread[a], c.inner[a], c.reg[a], c.tile[a]
        inside, extent = c.inside[a], float(nest.extent[a])
        for i in range(n):
            point = points[start + i]
            consecutive = point[column + 3] * point[column + 4]
            grid[i] = point[column]
            thread[i] = point[column + 2]
            inner[i] = consecutive
            reg[i] = point[column + 1] * consecutive
            tile[i] = point[column + 1] * point[column + 2] * consecutive
            inside[i] = extent / (point[column] * tile[i])
            if a == nest.unguarded:
                inside[i] = min(inside[i], point[column] / (point[column] + 1.0))
            else:
                interior[i] *= 1.0 - 1.0 / point[column] if inside[i] < 1.0 else 1.0
            vthreads[i] *= point[column + 1]
            reg_outer[i] *= point[column + 3]
            reg_inner[i] *= point[column + 4]
    for r in range(nest.num_reduction):
        column = 5 * nest.num_spatial + 3 * r
        tile, inside = c.tile[nest.num_spatial + r], c.inside[nest.num_spatial + r]
        extent = float(nest.extent[nest.num_spatial + r])
        for i in range(n):
            point = points[start + i]
            stages[i] *= point[column]
            tile[i] = point[column + 1] * point[column + 2]
            inside[i] = extent / (point[column] * tile[i])
            if nest.num_spatial + r == nest.unguarded:
                inside[i] = min(inside[i], point[column] / (point[column] + 1.0))
            else:
                interior[i] *= 1.0 - 1.0 / point[column] if inside[i] < 1.0 else 1.0
            k2[i] *= point[column + 2]
    column = 5 * nest.num_spatial + 3 * nest.num_reduction
    unroll = v[Col.UNROLL]
    for i in range(n):
        interior[i] = 1.0 - interior[i]
        unroll[i] = points[start + i, column]
    if nest.staged == 1:
        for t in range(nest.num_operands):
            width = c.width[t]
            for i in range(n):
                width[i] = points[start + i, column + 1 + t]
    for i in range(n):
        v[Col.SPLIT, i] = 1.0
    if nest.splits == 1:
        column += 1 + nest.num_operands
        for i in range(n):
            v[Col.SPLIT, i] = points[start + i, column]
            v[Col.LEFTOVERS, i] = points[start + i, column + 1]
            v[Col.ATOMIC, i] = points[start + i, column + 2]


@jit_helper
def _fill_footprints(n: int, nest: NestArrays, c: Chunk) -> None:
    span = c.temporary[0]
    contiguous = c.temporary[1]
    for t in range(nest.num_operands):
        footprint, run, pitch = c.footprint[t], c.run[t], c.pitch[t]
        inner = 1
        for i in range(n):
            footprint[i] = 1
            run[i] = 1
            pitch[i] = 0
            contiguous[i] = 1
        for d in range(nest.dim_start[t + 1] - 1, nest.dim_start[t] - 1, -1):
            size = nest.dim_size[d]
            for i in range(n):
                span[i] = 1
            for q in range(nest.term_start[d], nest.term_start[d + 1]):
                tile = c.tile[nest.term_axis[q]]
                coefficient = nest.term_coefficient[q]
                for i in range(n):
                    span[i] += coefficient * (tile[i] - 1)
            inner *= size
            row = inner if d > nest.dim_start[t] else 0  # runs of an outermost dimension follow each other
            for i in range(n):
                ends = contiguous[i] == 1 and span[i] < size
                footprint[i] *= span[i]
                run[i] *= min(span[i], size) if contiguous[i] == 1 else 1
                pitch[i] = row if ends else pitch[i]
                contiguous[i] = 0 if ends else contiguous[i]
        for i in range(n):
            run[i] = min(run[i], footprint[i])


@jit_helper
def _fill_lanes(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    remaining = c.temporary[0]
    for i in range(n):
        remaining[i] = gpu.warp_size
    for a in range(nest.num_spatial - 1, -1, -1):
        lanes, thread = c.lanes[a], c.thread[a]
        for i in range(n):
            lanes[i] = min(thread[i], remaining[i])
            next_remaining = math.ceil(remaining[i] / thread[i])
            remaining[i] = next_remaining if thread[i] < remaining[i] else 1


@jit_helper
def _add_shared_bytes(t: int, n: int, nest: NestArrays, c: Chunk) -> None:
    """Add the shared memory of operand `t`: its tile in every buffer, with padding between rows."""
    shared = c.values[Col.SHARED_BYTES]
    footprint = c.footprint[t]
    element = float(nest.element_bytes)
    if nest.pad == 0 or nest.dim_start[t] == nest.dim_start[t + 1]:
        for i in range(n):
            shared[i] += footprint[i] * element
        return
    row = c.temporary[0]
    for i in range(n):
        row[i] = 1
    last = nest.dim_start[t + 1] - 1
    for q in range(nest.term_start[last], nest.term_start[last + 1]):
        tile = c.tile[nest.term_axis[q]]
        for i in range(n):
            row[i] += nest.term_coefficient[q] * (tile[i] - 1)
    for i in range(n):
        shared[i] += (footprint[i] + nest.pad * (footprint[i] / row[i] - 1.0)) * element


@jit_helper
def _fill_fetched_share(t: int, n: int, nest: NestArrays, c: Chunk) -> None:
    """Fill the share of operand `t`'s tile that is fetched, over all blocks and steps: the product of its dimensions.

    A dimension of a tile with several axes, such as a window, has a span. Where the last tile of an axis is cut, its
    span is shorter by the iterations behind the end; the margin of the window stays.
    """
    fetched, span, kept = c.fetched[t], c.values[Col.SCRATCH], c.values[Col.SCRATCH + 1]
    for i in range(n):
        fetched[i] = 1.0
    for d in range(nest.dim_start[t], nest.dim_start[t + 1]):
        for i in range(n):
            span[i] = 1.0
            kept[i] = 1.0
        for q in range(nest.term_start[d], nest.term_start[d + 1]):
            tile, inside = c.tile[nest.term_axis[q]], c.inside[nest.term_axis[q]]
            coefficient = nest.term_coefficient[q]
            for i in range(n):
                iterations = tile[i] * inside[i]  # of the average tile, which is empty in part below one
                span[i] += coefficient * (tile[i] - 1.0)
                kept[i] += coefficient * (max(1.0, iterations) - 1.0)
                fetched[i] *= min(1.0, iterations)
        for i in range(n):
            fetched[i] *= kept[i] / span[i]


@jit_helper
def _fill_operands(n: int, nest: NestArrays, c: Chunk) -> None:
    v = c.values
    for i in range(n):
        v[Col.FRAGMENTS, i] = 0.0
        v[Col.TILE_BYTES, i] = 0.0
        v[Col.SHARED_BYTES, i] = 0.0
        v[Col.SECTOR_BYTES, i] = 0.0
        v[Col.FETCH_LINES, i] = 0.0
    for t in range(nest.num_operands):
        fragment, fetched = c.fragment[t], c.fetched[t]
        for i in range(n):
            fragment[i] = 1
        _fill_fetched_share(t, n, nest, c)
        for a in range(nest.num_spatial):
            if nest.uses[t, a] == 1:
                reg = c.reg[a]
                for i in range(n):
                    fragment[i] *= reg[i]
        fragments, tile_bytes, sector_bytes, lines = (
            v[Col.FRAGMENTS],
            v[Col.TILE_BYTES],
            v[Col.SECTOR_BYTES],
            v[Col.FETCH_LINES],
        )
        for i in range(n):
            fragments[i] += fragment[i]
        if nest.staged == 1:
            element = float(nest.element_bytes)
            misaligned = nest.misaligned[t]
            footprints, runs = c.footprint[t], c.run[t]
            for i in range(n):
                footprint, run = float(footprints[i]), float(runs[i])
                tile_bytes[i] += footprint * element
                sector_bytes[i] += fetched[i] * sector_bytes_one(footprint, run, misaligned, element)
                lines[i] += footprint / min(run, 32.0)
            _add_shared_bytes(t, n, nest, c)


@jit_helper
def _fill_split(n: int, gpu: Gpu, c: Chunk) -> None:
    """Fill SPLIT_TILES, reject splits that do not fit, and turn BLOCKS from tiles into blocks of the grid."""
    v = c.values
    num_sms = float(gpu.num_sms)
    for i in range(n):
        split, tiles = v[Col.SPLIT, i], v[Col.BLOCKS, i]
        whole = math.floor(tiles / num_sms) * num_sms if v[Col.LEFTOVERS, i] == 1.0 else 0.0
        split_tiles = tiles - whole if split > 1.0 else 0.0
        v[Col.SPLIT_TILES, i] = split_tiles
        v[Col.BLOCKS, i] = tiles + split_tiles * (split - 1.0)
        if v[Col.RULE, i] == 0.0 and is_broken_split(split, v[Col.LEFTOVERS, i], tiles, v[Col.STAGES, i], num_sms):
            v[Col.RULE, i] = 1.0 * CudaRule.split_parts.value


@jit_helper
def _fill_resources(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    v = c.values
    threads, warps, blocks = v[Col.THREADS], v[Col.WARPS], v[Col.BLOCKS]
    accumulators, steps, shared = v[Col.ACCUMULATORS], v[Col.STEPS], v[Col.SHARED_BYTES]
    for i in range(n):
        threads[i] = 1.0
        blocks[i] = 1.0
        accumulators[i] = 1.0
        steps[i] = 1.0
    for a in range(nest.num_spatial):
        thread, reg, grid = c.thread[a], c.reg[a], c.grid[a]
        for i in range(n):
            threads[i] *= thread[i]
            accumulators[i] *= reg[i]
            blocks[i] *= grid[i]
    for r in range(nest.num_reduction):
        tile = c.tile[nest.num_spatial + r]
        for i in range(n):
            steps[i] *= tile[i]
    if nest.stages > 1:
        stages = v[Col.STAGES]
        for i in range(n):  # buffers beyond the number of steps would never be filled
            shared[i] *= min(float(nest.stages), stages[i])
    rule = v[Col.RULE]
    for i in range(n):
        warps[i] = math.ceil(threads[i] / gpu.warp_size)
        local = 4.0 * accumulators[i]
        code = 1.0 * CudaRule.local_bytes_per_thread.value if local > MAX_LOCAL_BYTES else 0.0
        code = 1.0 * CudaRule.grid_blocks.value if blocks[i] > MAX_GRID else code
        code = 1.0 * CudaRule.shared_bytes_per_block.value if shared[i] > gpu.shared_block_bytes else code
        rule[i] = 1.0 * CudaRule.threads_per_block.value if threads[i] > gpu.max_threads_block else code
    fragments = v[Col.FRAGMENTS]
    most_warps = gpu.register_cap.shape[0] - 1
    for i in range(n):
        block_warps = int(min(warps[i], float(most_warps)))
        cap = gpu.register_cap[block_warps]
        registers = int(min(max(32.0, accumulators[i] + fragments[i] + BASE_REGISTERS), float(cap)))
        excess = accumulators[i] + LIVE_REGISTERS + math.floor(0.5 * fragments[i]) - cap
        v[Col.REGISTERS, i] = registers
        v[Col.REGISTER_CAP, i] = cap
        v[Col.SPILLED, i] = min(accumulators[i], max(0.0, excess) * SPILL_SLOPE)
        v[Col.RESIDENT, i] = blocks_from_table_one(block_warps, registers, shared[i], gpu)


@jit_helper
def fill_limiters(n: int, gpu: Gpu, c: Chunk) -> None:
    """Fill LIMITER: the resource that limits RESIDENT."""
    v = c.values
    for i in range(n):
        threads = int(min(v[Col.THREADS, i], float(gpu.max_threads_block)))
        shared_bytes = int(min(v[Col.SHARED_BYTES, i], 1e9))  # no overflow for huge illegal tiles
        v[Col.LIMITER, i] = resident_blocks_one(threads, int(v[Col.REGISTERS, i]), shared_bytes, gpu)[1]


@jit_helper
def _fill_dram_bytes(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Fill DRAM_BYTES.

    An operand that fits in half the L2 is read once. Otherwise each window of concurrent blocks reads its distinct
    tiles. The parts of one tile follow each other and read different data.

    Source: [Origami] window of concurrently running tiles.
    """
    v = c.values
    dram, blocks, resident, stages = v[Col.DRAM_BYTES], v[Col.BLOCKS], v[Col.RESIDENT], v[Col.STAGES]
    distinct, remaining = v[Col.SCRATCH], v[Col.SCRATCH + 1]
    for i in range(n):
        dram[i] = nest.tensor_bytes[nest.num_operands] + nest.epilogue_bytes
    for t in range(nest.num_operands):
        whole = nest.tensor_bytes[t]
        if nest.staged == 0 or whole < 0.5 * gpu.l2_bytes:
            for i in range(n):
                dram[i] += whole
            continue
        for i in range(n):
            distinct[i] = 1.0
            remaining[i] = min(blocks[i], gpu.num_sms * resident[i])
        if nest.splits == 1:
            for i in range(n):
                split = v[Col.SPLIT, i] if v[Col.LEFTOVERS, i] == 0.0 else 1.0
                distinct[i] = min(split, remaining[i])
                remaining[i] = max(1.0, remaining[i] / split)
        for a in range(nest.num_spatial - 1, -1, -1):
            grid = c.grid[a]
            used = nest.uses[t, a] == 1
            for i in range(n):
                distinct[i] *= min(float(grid[i]), remaining[i]) if used else 1.0
                remaining[i] = max(1.0, remaining[i] / grid[i])
        footprint, fetched = c.footprint[t], c.fetched[t]
        for i in range(n):
            tiles = blocks[i] - v[Col.SPLIT_TILES, i] * (v[Col.SPLIT, i] - 1.0)
            block_bytes = float(footprint[i]) * fetched[i] * nest.element_bytes * (stages[i] * tiles / blocks[i])
            traffic = block_bytes * blocks[i]
            windows = blocks[i] / min(blocks[i], gpu.num_sms * resident[i])
            dram[i] += max(min(block_bytes * distinct[i] * windows, traffic), min(whole, traffic))


@jit_helper
def fill_macro(n: int, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Fill the macro quantities of the first `n` points from grid, thread, reg, tile and STAGES."""
    _fill_footprints(n, nest, c)
    _fill_operands(n, nest, c)
    _fill_lanes(n, nest, gpu, c)
    _fill_resources(n, nest, gpu, c)
    _fill_split(n, gpu, c)
    _fill_dram_bytes(n, nest, gpu, c)


@jit_helper
def take_compiled(start: int, n: int, compiled: Floats, nest: NestArrays, gpu: Gpu, c: Chunk) -> None:
    """Replace registers, shared bytes and spills by those of a compiler, and update what follows from them."""
    v = c.values
    most_warps = gpu.register_cap.shape[0] - 1
    for i in range(n):
        warps = int(min(v[Col.WARPS, i], float(most_warps)))
        registers = int(min(compiled[0, start + i], float(gpu.register_cap[warps])))
        v[Col.REGISTERS, i] = registers
        v[Col.SHARED_BYTES, i] = compiled[1, start + i]
        v[Col.SPILLED, i] = compiled[2, start + i]
        v[Col.RESIDENT, i] = blocks_from_table_one(warps, registers, v[Col.SHARED_BYTES, i], gpu)
    _fill_dram_bytes(n, nest, gpu, c)
