"""Named tuples and columns that pass from Python objects to compiled code.

Compiled code stays readable with named tuples (``gpu.num_sms``). Their fields have fixed types, so that every compiled
function has one signature.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, int_rows

__all__ = ["Chunk", "Col", "Gpu", "Limiter", "NestArrays", "new_chunk"]


class Gpu(NamedTuple):
    """The numbers of a GPU. All are float64 except counts that integer arithmetic uses (int64)."""

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
    """Largest loop body that the device's compiler unrolls without a pragma, statements."""
    clock_hz: float
    fma_per_cycle: float
    """Multiply-adds per cycle: lanes of an SM times the reachable fraction times the rate of the dtype."""
    issue_per_cycle: float
    packing: float
    """Multiply-adds per instruction: 4 for int8 dot products, else 1."""
    fma_latency: float
    shared_bytes_cycle: float
    shared_latency: float
    l1_bytes: float
    l1_latency: float
    l2_bytes: float
    l2_bytes_cycle: float
    """Bandwidth of the whole L2, bytes per core cycle."""
    l2_latency: float
    dram_bytes_cycle: float
    """Reachable DRAM bandwidth, bytes per core cycle."""
    dram_latency: float
    launch_s: float
    register_cap: Ints
    """(warps + 1,): most registers of a thread in a block of so many warps."""
    resident_by_registers: Ints
    """(warps + 1, registers + 1): resident blocks of an SM, as far as warps and registers limit them."""


class NestArrays(NamedTuple):
    """The loops and accesses of a workload as arrays.

    Axes are numbered in loop order, spatial axes first, then reduction axes. Tensors are numbered operands first, the
    result last. Dimension d of tensor t is ``dim_start[t] <= d < dim_start[t + 1]`` (innermost last). Its terms are
    ``term_start[d] <= q < term_start[d + 1]``.
    """

    num_spatial: int
    num_reduction: int
    num_operands: int
    staged: int
    """1 if operands are staged in shared memory, which is so if there is a reduction, else 0."""
    element_bytes: int
    result_bytes: int
    epilogue_bytes: float
    """Bytes of all tensors that the epilogue reads."""
    dim_start: Ints
    term_start: Ints
    term_axis: Ints
    term_coefficient: Ints
    dim_size: Ints
    extent: Ints
    """(axes,): iterations."""
    uses: Ints
    """(tensors, axes): 1 if the index of the tensor depends on the axis."""
    inner_axis: Ints
    """(tensors,): spatial axis along the innermost dimension, -1 if there is none."""
    inner_coefficient: Ints
    """(tensors,): coefficient of that axis."""
    misaligned: Ints
    """(tensors,): 1 if rows may start inside a 32-byte sector."""
    tensor_bytes: Floats
    """(tensors,): bytes of the elements that are read or written."""
    stages: int = 1
    """Buffers of the staging pipeline. One step fewer is fetched ahead."""
    pad: int = 0
    """Elements between the rows of staged tiles."""
    splits: int = 0
    """1 if points have columns for the split of the reduction."""
    unguarded: int = -1
    """Number of the axis of a range, or -1. Times then hold for all larger extents, too: the end of the axis costs no
    tests, and its last block (or step) is almost empty."""


class Chunk(NamedTuple):
    """The columns of CHUNK_SIZE points that are evaluated together. Each thread allocates them once.

    The compiler vectorises loops over the points of a chunk, one operation at a time.
    """

    grid: Ints
    """(spatial axes, points): blocks along each axis."""
    thread: Ints
    """(spatial axes, points): threads of a block along each axis."""
    reg: Ints
    """(spatial axes, points): results of a thread along each axis (vthread x reg_outer x reg_inner)."""
    inner: Ints
    """(spatial axes, points): consecutive results of a thread (reg_outer x reg_inner)."""
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
    """(operands, points): elements that a thread needs for one iteration of the reduction."""
    pitch: Ints
    """(operands, points): elements from one run of the tile to the next. Its divisors are alignments of all runs."""
    inside: Floats
    """(axes, points): share of the tiles' iterations that lie inside the extent."""
    fetched: Floats
    """(operands, points): share of the tile that lies inside the tensor, over all blocks and steps."""
    temporary: Ints
    """(14, points): scratch memory of single functions."""
    values: Floats
    """(Col.COUNT, points): all other quantities, see Col."""


class Limiter(IntEnum):
    """The resource that limits the resident blocks of an SM."""

    THREADS, REGISTERS, SHARED, BLOCKS, GRID = range(5)


class Col(IntEnum):
    """The rows of Chunk.values, per block and staging step unless said otherwise. Cycles are those of one SM.

    Inputs. STAGES: staging steps of a whole tile, the iterations of its k0 loops (`num_steps` of `gpu.split`). DYNAMIC:
    1 if accumulators are indexed at run time. REUSE: multiply-adds between the load and the store of a spilled
    accumulator, at least 1. VTHREADS, REG_INNER, REG_OUTER: products over the spatial axes. K2: product over the
    reduction axes.

    Macro quantities follow from the sizes of blocks, threads and steps. BLOCKS: blocks of the grid, one for each tile,
    or one for each part of a split tile. STEPS: iterations of the reduction in one staging step. SPILLED: accumulators
    of a thread that live in local memory. RESIDENT: resident blocks of an SM.

    Micro quantities depend on the order of the register tile, unrolling and fetch widths. LOADS: shared-memory load
    instructions of a thread. WAVEFRONTS: shared-memory cycles of the loads of a warp. CONFLICT: largest bank-conflict
    degree of a load. FETCHES: global load instructions of a thread. FETCHES_BLOCK: those of all warps of a block.
    STORE_SECTORS: sectors that one store of a warp touches. GUARDED: share of the fetches that test whether they are
    inside, which are those of edge blocks and last steps.

    Split. SPLIT: parts of a tile, 1 if nothing is split. LEFTOVERS: 1 if only the tiles after complete rounds are
    split. ATOMIC: 1 if parts are added to the result atomically. SPLIT_TILES: tiles that are split. COMBINE_S: seconds
    of the kernel that sums the parts, or of the kernel that zeroes the result.

    Results. HELD: blocks that an SM holds, fewer than RESIDENT if the grid is small. LOCAL: local-memory accesses of a
    thread. LOCAL_L2_BYTES: bytes of local memory that the kernel moves through L2, not counted in L2_BYTES. SCRATCH:
    this row and the next are scratch memory of single functions.
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
