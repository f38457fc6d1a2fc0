"""Named records and columns that cross the border between objects and compiled code.

Named tuples of numbers and arrays keep compiled code readable (``gpu.num_sms``) without objects; their fields have
fixed types, so every compiled function keeps one signature.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, int_rows

__all__ = ["Chunk", "Col", "Gpu", "Limiter", "Nest", "new_chunk"]


class Gpu(NamedTuple):
    """Numbers of a GPU, all float64 except the counts used in integer arithmetic (int64)."""

    num_sms: int
    warp_size: int
    max_threads_block: int
    max_warps_sm: int
    max_blocks_sm: int
    registers_sm: int
    registers_block: int
    registers_thread: int
    register_unit: int
    sub_partitions: int
    shared_sm_bytes: int
    shared_block_bytes: int
    shared_reserved_bytes: int
    shared_unit_bytes: int
    unroll_statements: int
    """Largest loop body that the device's compiler unrolls without being told, statements."""
    clock_hz: float
    fma_per_cycle: float
    """Lanes of an SM times the reachable fraction times the dtype's rate: multiply-adds a cycle."""
    issue_per_cycle: float
    packing: float
    """Multiply-adds of one instruction (4 for int8 dot products, else 1)."""
    fma_latency: float
    shared_bytes_cycle: float
    shared_latency: float
    l1_bytes: float
    l1_latency: float
    l2_bytes: float
    l2_bytes_cycle: float
    """Bandwidth of the whole L2, bytes a core cycle."""
    l2_latency: float
    dram_bytes_cycle: float
    """Reachable DRAM bandwidth, bytes a core cycle."""
    dram_latency: float
    launch_s: float
    register_cap: Ints
    """(warps + 1,): most registers a thread can have in a block of so many warps."""
    resident_by_registers: Ints
    """(warps + 1, registers + 1): blocks of an SM as far as warps and registers limit them."""


class Nest(NamedTuple):
    """A workload's loops and accesses as arrays.

    Axes are numbered spatial first, then reduction, each in loop order. Tensors are numbered operands first, the
    result last. Dimension d of tensor t runs over ``dim_start[t] <= d < dim_start[t + 1]`` (innermost last), its
    terms over ``term_start[d] <= q < term_start[d + 1]``.
    """

    num_spatial: int
    num_reduction: int
    num_operands: int
    staged: int
    """1 where operands are staged in shared memory (there is a reduction), else 0."""
    element_bytes: int
    result_bytes: int
    epilogue_bytes: float
    """Bytes that the epilogue reads, whole tensors."""
    dim_start: Ints
    term_start: Ints
    term_axis: Ints
    term_coefficient: Ints
    dim_size: Ints
    extent: Ints
    """(axes,): iterations."""
    uses: Ints
    """(tensors, axes): 1 where the tensor's index depends on the axis."""
    inner_axis: Ints
    """(tensors,): spatial axis that moves along the innermost dimension, -1 if none."""
    inner_coefficient: Ints
    """(tensors,): its coefficient there."""
    misaligned: Ints
    """(tensors,): 1 where rows do not start at multiples of a 32-byte sector."""
    tensor_bytes: Floats
    """(tensors,): bytes of the elements that are touched at all."""
    stages: int = 1
    """Buffers of the staging pipeline: one fewer steps are fetched ahead."""
    pad: int = 0
    """Elements between the rows of staged tiles."""
    splits: int = 0
    """1 where points say how the reduction is split."""
    unguarded: int = -1
    """Axis of a range, for times that hold for all larger extents, too: its end costs no tests, and its last block, or
    step, holds next to nothing; -1: none."""


class Chunk(NamedTuple):
    """Columns of CHUNK_SIZE points that are evaluated together; allocated once a thread.

    Column-wise loops over a chunk are what the compiler vectorises: one operation, many points.
    """

    grid: Ints
    """(spatial axes, points): blocks along each axis."""
    thread: Ints
    """(spatial axes, points): threads of a block along each axis."""
    reg: Ints
    """(spatial axes, points): results of a thread along each axis."""
    inner: Ints
    """(spatial axes, points): results of a thread that are consecutive (reg_outer x reg_inner)."""
    tile: Ints
    """(axes, points): iterations of a block (spatial) or of one staging step (reduction)."""
    lanes: Ints
    """(spatial axes, points): threads of one warp along each axis."""
    width: Ints
    """(operands, points): fetch width, elements."""
    footprint: Ints
    """(operands, points): elements of the staged tile."""
    run: Ints
    """(operands, points): elements of the tile that are contiguous in global memory."""
    fragment: Ints
    """(operands, points): elements a thread needs for one step of the reduction."""
    pitch: Ints
    """(operands, points): elements from one run of the tile to the next; what divides it aligns all of them."""
    inside: Floats
    """(axes, points): share of the tiles' iterations that are not behind the end of the axis."""
    fetched: Floats
    """(operands, points): share of the tile that is inside the tensor, over all blocks and steps."""
    temporary: Ints
    """(14, points): work space of single functions."""
    values: Floats
    """(Col.COUNT, points): every other quantity, see Col."""


class Limiter(IntEnum):
    """What limits the resident blocks of an SM."""

    THREADS, REGISTERS, SHARED, BLOCKS, GRID = range(5)


class Col(IntEnum):
    """Rows of Chunk.values. Per block and staging step unless said otherwise; cycles are core cycles of one SM.

    Input. STAGES: turns of the k0 loops of a whole tile, `num_steps` of `gpu.split`. DYNAMIC: 1 where accumulators are
    indexed at run time. REUSE: multiply-adds between a load and a store of a spilled accumulator, >= 1. VTHREADS,
    REG_INNER, REG_OUTER: products over the spatial axes; K2: over the reduction axes.

    Macro quantities follow from block, thread and stage sizes. BLOCKS: of the grid; tiles, and of split ones as many as
    they have parts. STEPS: iterations of the reduction in one of the STAGES. SPILLED: accumulators of a thread that
    live in local memory. RESIDENT: blocks an SM holds at once.

    Micro quantities depend on the order of the register tile, unrolling and fetch widths. LOADS: shared-memory load
    instructions of one thread. WAVEFRONTS: shared-memory cycles of one warp's loads. CONFLICT: worst bank-conflict
    degree of a load. FETCHES: global load instructions of one thread; FETCHES_BLOCK: those that all warps of the block
    issue. STORE_SECTORS: sectors that one warp-wide store touches.

    Results. HELD: blocks an SM really holds (the grid may be too small for more). LOCAL: local-memory accesses of a
    thread. LOCAL_L2_BYTES: bytes of local memory that the whole kernel moves through L2, not in L2_BYTES. GUARDED:
    share of the fetches that test whether they are inside, those of edge blocks and of last steps. SPLIT: parts of a
    tile's steps, 1 where nothing is split. LEFTOVERS: 1 where only the tiles behind full rounds are split. ATOMIC: 1
    where parts are added to the result atomically. SPLIT_TILES: tiles whose steps are split. COMBINE_S: time of the
    kernel that sums the parts, or that zeroes the result before. SCRATCH: this row and the next are work space of
    single functions.
    """

    (
        STAGES, DYNAMIC, REUSE, VTHREADS, REG_INNER, REG_OUTER, K2, UNROLL,
        RULE, THREADS, WARPS, BLOCKS, ACCUMULATORS, STEPS, SHARED_BYTES, FRAGMENTS, REGISTERS, REGISTER_CAP, SPILLED,
        RESIDENT, LIMITER, TILE_BYTES, SECTOR_BYTES, FETCH_LINES, DRAM_BYTES,
        LOADS, WAVEFRONTS, CONFLICT, FETCHES, FETCHES_BLOCK, STORE_SECTORS,
        TIME_S, FMA_S, ISSUE_S, SHARED_S, SPILL_S, L2_S, DRAM_S, LATENCY_S, TAIL_S, HELD, WAVES, STEP_BYTES, L2_BYTES,
        LOCAL, LOCAL_L2_BYTES, LOCAL_DRAM_BYTES, GUARDED, SPLIT, LEFTOVERS, ATOMIC, SPLIT_TILES, COMBINE_S, SCRATCH,
    ) = range(54)  # fmt: skip
    COUNT = SCRATCH + 2


def new_chunk(num_spatial: int, num_axes: int, num_operands: int) -> Chunk:
    """Allocate the columns of one chunk."""
    return Chunk(
        grid=int_rows(num_spatial),
        thread=int_rows(num_spatial),
        reg=int_rows(num_spatial),
        inner=int_rows(num_spatial),
        tile=int_rows(num_axes),
        lanes=int_rows(num_spatial),
        width=int_rows(num_operands),
        footprint=int_rows(num_operands),
        run=int_rows(num_operands),
        fragment=int_rows(num_operands),
        pitch=int_rows(num_operands),
        inside=np.ones((num_axes, CHUNK_SIZE)),
        fetched=np.ones((num_operands, CHUNK_SIZE)),
        temporary=int_rows(14),
        values=np.zeros((int(Col.COUNT), CHUNK_SIZE)),
    )
