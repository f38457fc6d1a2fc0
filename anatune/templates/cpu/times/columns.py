"""The columns of quantities of CPU points that are evaluated together, in chunks.

Loops over a chunk have a constant extent, and their columns do not alias, so that compilers vectorise them well.
The last chunk of a batch is filled with copies of its last point, whose results are ignored.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, float_rows

__all__ = ["NUM_RESULTS", "CpuChunk", "CpuCol", "new_chunk"]


class CpuCol(IntEnum):
    """Offset of each column in `CpuChunk.values`; those before RULE are results, see `cpu.model.scoring`.

    Compiled code reads entry `i` of a column as ``values[CpuCol.X + i]``. A constant offset from one address tells the
    compiler that columns do not overlap.

    Results. L2_S, L3_S, DRAM_S: transfers into L1, L2, L3, named by their source. L1_BYTES, L2_BYTES, L3_BYTES: bytes
    that enter these caches. SHARE: share of all work that the busiest thread does.

    The microkernel. PAIRS: number of axes other than the SIMD axis that a pair of microkernels covers. PAIR_AXIS: the
    last of them, or -1. TILES: calls of each microkernel of the pair. SMALL_VECTORS: vectors of the smaller
    microkernel; the larger one has one more. VECTOR_LOADS: loads for each vector of the microkernel. VECTORS_HELD: held
    registers for each vector. HELD: held registers that do not depend on the vectors. VECTOR_CONVERSIONS: conversions
    for each vector. CONVERSIONS: conversions that do not depend on the vectors. RELOADED: loads for a result vector.
    INSIDE, RUNNING: shares of products and of steps that remain if padding is skipped. PADDING: cycles of padded
    copies. OWN_COPY: work space, the last padded tensor.

    Footprints. RUN: contiguous elements (the last dimension, and further ones while all later ones are whole).
    IS_SHORT: 1 if a tile covers the last dimension in part, so that its rows are apart. SPREAD: rows that can collide
    in few sets of a cache. WRITTEN: bytes of MOVED that are written back.

    Copies. COPY_S: seconds to fetch a byte from the nearest cache that holds the copy. IS_BEYOND: 1 while no cache so
    far holds it.
    """

    @property
    def row(self) -> int:
        """Row of a result in the output of `point.run_points`."""
        return self.value // CHUNK_SIZE

    (
        TIME_S, FMA_S, LOAD_S, LATENCY_S, ISSUE_S, OVERHEAD_S, CORE_S, MEMORY_S, PACKING_S, START_S,
        L2_S, L3_S, DRAM_S, L1_BYTES, L2_BYTES, L3_BYTES, THREADS, SHARE, CHUNKS, ACCUMULATORS, REGISTERS, STEPS,
        UNROLLED_FMA, L1_TILE_BYTES, L2_TILE_BYTES, L3_TILE_BYTES, RULE,
        PARALLEL, PAIRS, PAIR_AXIS, UNROLL, TILES, PARTIAL, SMALL_ROWS_CALLS, LARGE_ROWS_CALLS,
        SMALL_VECTORS, SMALL_VECTORS_CALLS, LARGE_VECTORS_CALLS, ROWS, OWN, VECTOR_LOADS, VECTORS_HELD, HELD,
        BROADCAST, VECTOR_CONVERSIONS, CONVERSIONS, RELOADED, CYCLES, INSIDE, RUNNING, PADDING, OWN_COPY,
        RUN, ROW_COUNT, IS_OPEN, IS_SHORT, SPAN, TOUCHED, BYTES, SPREAD, MOVED, WRITTEN, OUTSIDE,
        COPY_S, COPY_BYTES, IS_BEYOND,
    ) = range(0, 66 * CHUNK_SIZE, CHUNK_SIZE)  # fmt: skip


NUM_RESULTS = CpuCol.RULE.row + 1
"""Number of columns that are results."""


class CpuChunk(NamedTuple):
    """The columns of one chunk. Each thread needs its own."""

    raw: Floats
    """(columns of a point, points)."""
    calls: Floats
    """(A, points): iterations of l1, or calls of a pair."""
    inner: Floats
    """(A, points): extents of the L1 tile."""
    is_pair: Floats
    """(A, points): 1 if a pair of microkernels covers the axis."""
    small: Floats
    """(A, points): rows of the (smaller) microkernel; 1 on the SIMD axis and reductions."""
    tile: Floats
    """(A, points): the tile whose footprint is computed."""
    grown: Floats
    """(A, points): the tile after the loops of a level."""
    trips: Floats
    """(A, points): iterations of these loops."""
    packed: Floats
    """(X, points): 0 or 1."""
    choice: Ints
    """(points,): number of the order of a level."""
    capacity: Floats
    """(C, points): bytes that a tile occupies of each cache."""
    colliding: Floats
    """(C, points): capacity bytes of one tensor, if iterations of one dimension collide in few sets."""
    size: Floats
    """(C, points): bytes that one thread has of each cache."""
    fill_s: Floats
    """(C, points): seconds to fetch a byte into each cache."""
    traffic: Floats
    """(C, points): bytes fetched and written back; -1 if not decided yet."""
    timed: Floats
    """(C, points): the bytes of `traffic` whose transfer takes time.

    They are 0 if the cache holds the whole nest, which it keeps from one call to the next. Bytes written back take no
    time beside those that come, except on the memory bus.
    """
    held: Floats
    """(3, points): bytes that the tiles of l1, l2, l3 occupy of L1, L2, L3."""
    values: Floats
    """(columns * points,): see `CpuCol`."""


def new_chunk(num_columns: int, num_axes: int, num_tensors: int, num_levels: int) -> CpuChunk:
    """Allocate the columns of one chunk."""
    return CpuChunk(
        raw=float_rows(num_columns),
        calls=float_rows(num_axes),
        inner=float_rows(num_axes),
        is_pair=float_rows(num_axes),
        small=float_rows(num_axes),
        tile=float_rows(num_axes),
        grown=float_rows(num_axes),
        trips=float_rows(num_axes),
        packed=float_rows(num_tensors),
        choice=np.zeros(CHUNK_SIZE, dtype=np.int64),
        capacity=float_rows(num_levels),
        colliding=float_rows(num_levels),
        size=float_rows(num_levels),
        fill_s=float_rows(num_levels),
        traffic=float_rows(num_levels),
        timed=float_rows(num_levels),
        held=float_rows(3),
        values=np.zeros(len(CpuCol) * CHUNK_SIZE),
    )
