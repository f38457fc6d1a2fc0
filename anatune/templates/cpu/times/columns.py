"""Columns of CPU points that are evaluated together.

Loops over a chunk have a constant trip count and no aliasing columns, which the compiler vectorises best. The last
chunk of a batch computes some leftovers that nobody reads.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, float_rows

__all__ = ["NUM_RESULTS", "CpuChunk", "CpuCol", "new_chunk"]


class CpuCol(IntEnum):
    """Where the columns of a chunk begin in `CpuChunk.values`; up to RULE they are results, see `cpu.model.scoring`.

    Compiled code reads entry `i` of a column as ``values[CpuCol.X + i]``: a constant offset from one address, so that
    the compiler knows that columns do not overlap.

    Results. L2_S, L3_S, DRAM_S: transfers into L1, L2, L3, by where they come from. L1_BYTES, L2_BYTES, L3_BYTES: bytes
    that enter these. SHARE: share of all work that the busiest thread does.

    The microkernel. PAIRS: axes other than the SIMD axis that a pair of microkernels covers; PAIR_AXIS: the last of
    them, or -1. TILES: calls of each kind of microkernel in the pair. SMALL_VECTORS: vectors of the smaller
    microkernel; the larger one has one more. VECTOR_LOADS: loads for each vector of the microkernel. VECTORS_HELD: held
    registers for each vector; HELD: besides. VECTOR_CONVERSIONS: conversions for each vector; CONVERSIONS: besides.
    RELOADED: loads for a result vector. INSIDE: share of the steps that is left when padding is left out. PADDING:
    cycles of padded copies, and work space of their tensor.

    Footprints. RUN: contiguous elements; the last dimension, and those before it while the later ones are whole.
    IS_SHORT: 1 where the last dimension is cut, so that rows are its size apart. SPREAD: rows that may collide in few
    sets of a cache. WRITTEN: those MOVED that are written back.

    Copies. COPY_S: seconds to bring a byte in from the first cache that holds the copy. IS_BEYOND: 1 while no cache so
    far holds it.
    """

    @property
    def row(self) -> int:
        """Row of a result in what `point.run_points` fills."""
        return self.value // CHUNK_SIZE

    (
        TIME_S, FMA_S, LOAD_S, LATENCY_S, ISSUE_S, OVERHEAD_S, CORE_S, MEMORY_S, PACKING_S, START_S,
        L2_S, L3_S, DRAM_S, L1_BYTES, L2_BYTES, L3_BYTES, THREADS, SHARE, CHUNKS, ACCUMULATORS, REGISTERS, STEPS,
        UNROLLED_FMA, L1_TILE_BYTES, L2_TILE_BYTES, L3_TILE_BYTES, RULE,
        PARALLEL, PAIRS, PAIR_AXIS, UNROLL, TILES, PARTIAL, SMALL_ROWS_CALLS, LARGE_ROWS_CALLS,
        SMALL_VECTORS, SMALL_VECTORS_CALLS, LARGE_VECTORS_CALLS, ROWS, OWN, VECTOR_LOADS, VECTORS_HELD, HELD,
        BROADCAST, VECTOR_CONVERSIONS, CONVERSIONS, RELOADED, CYCLES, INSIDE, PADDING, OWN_COPY,
        RUN, ROW_COUNT, IS_OPEN, IS_SHORT, SPAN, TOUCHED, BYTES, SPREAD, MOVED, WRITTEN, OUTSIDE,
        COPY_S, COPY_BYTES, IS_BEYOND,
    ) = range(0, 65 * CHUNK_SIZE, CHUNK_SIZE)  # fmt: skip


NUM_RESULTS = CpuCol.RULE.row + 1
"""Columns that are results."""


class CpuChunk(NamedTuple):
    """Columns of one chunk; a thread needs its own."""

    raw: Floats
    """(columns of a point, points)."""
    calls: Floats
    """(A, points): iterations of l1, or calls of a pair."""
    inner: Floats
    """(A, points): tile of the l1 loops."""
    is_pair: Floats
    """(A, points): 1 where a pair of microkernels covers the axis."""
    small: Floats
    """(A, points): rows of the (smaller) microkernel; 1 on the SIMD axis and reductions."""
    tile: Floats
    """(A, points): the tile whose footprint is wanted."""
    grown: Floats
    """(A, points): the tile after the loops of a level."""
    trips: Floats
    """(A, points): iterations of these loops."""
    packed: Floats
    """(X, points): 0 or 1."""
    choice: Ints
    """(points,): order of a level."""
    capacity: Floats
    """(C, points): bytes that a tile occupies of each cache."""
    colliding: Floats
    """(C, points): the same of one tensor, if iterations of one dimension collide in few sets."""
    size: Floats
    """(C, points): bytes that one thread has of each cache."""
    fill_s: Floats
    """(C, points): seconds to bring a byte into it."""
    traffic: Floats
    """(C, points): bytes brought in and written back; -1 while open."""
    timed: Floats
    """(C, points): those whose transfer takes time: none where the cache holds the whole nest, and keeps it from one
    call to the next; what is written back travels beside what comes, but for memory's bus."""
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
