"""Columns of CPU points that are evaluated together.

Loops over a chunk have a constant trip count and no aliasing columns, which the compiler vectorises best. The last
chunk of a batch computes some leftovers that nobody reads.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, float_rows

__all__ = ["CpuChunk", "CpuCol", "new_chunk"]


class CpuCol(IntEnum):
    """Blocks of CHUNK_SIZE entries in CpuChunk.values; up to RULE they are results, see `cpu.model.model.COLUMNS`."""

    TIME_S = 0
    FMA_S = 1
    LOAD_S = 2
    LATENCY_S = 3
    ISSUE_S = 4
    OVERHEAD_S = 5
    CORE_S = 6
    MEMORY_S = 7
    PACKING_S = 8
    START_S = 9
    L2_S = 10
    """This and the next two: transfers into L1, L2, L3, by where they come from."""
    L3_S = 11
    DRAM_S = 12
    L1_BYTES = 13
    """This and the next two: bytes that enter L1, L2, L3."""
    L2_BYTES = 14
    L3_BYTES = 15
    THREADS = 16
    SHARE = 17
    """Share of all work that the busiest thread does."""
    CHUNKS = 18
    ACCUMULATORS = 19
    REGISTERS = 20
    STEPS = 21
    UNROLLED_FMA = 22
    L1_TILE_BYTES = 23
    L2_TILE_BYTES = 24
    L3_TILE_BYTES = 25
    RULE = 26
    NUM_RESULTS = 27
    # the microkernel
    PARALLEL = 27
    PAIRS = 28
    """Axes other than the SIMD axis that a pair of microkernels covers."""
    PAIR_AXIS = 29
    """The last of them, or -1."""
    UNROLL = 30
    TILES = 31
    """Calls of each kind of microkernel in the pair."""
    PARTIAL = 32
    SMALL_ROWS_CALLS = 33
    LARGE_ROWS_CALLS = 34
    SMALL_VECTORS = 35
    """Vectors of the smaller microkernel; the larger one has one more."""
    SMALL_VECTORS_CALLS = 36
    LARGE_VECTORS_CALLS = 37
    ROWS = 38
    OWN = 39
    VECTOR_LOADS = 40
    """Loads for each vector of the microkernel."""
    VECTORS_HELD = 41
    """Held registers for each vector of the microkernel; the next: besides."""
    HELD = 42
    BROADCAST = 43
    RELOADED = 44
    """Loads for a result vector."""
    CYCLES = 45
    INSIDE = 46
    """Share of the steps that is left when padding is left out."""
    PADDING = 47
    """Cycles of padded copies; work space of their tensor."""
    OWN_COPY = 48
    # footprints
    RUN = 49
    """Contiguous elements: the last dimension, and those before it while the later ones are whole."""
    ROW_COUNT = 50
    IS_OPEN = 51
    IS_SHORT = 52
    """1 where the last dimension is cut: rows are its size apart."""
    SPAN = 53
    TOUCHED = 54
    BYTES = 55
    SPREAD = 56
    """Rows that may collide in few sets of a cache."""
    MOVED = 57
    WRITTEN = 58
    """Those of them that are written back."""
    OUTSIDE = 59
    COUNT = 60


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
    """(CpuCol.COUNT * points,): block `c` begins at ``c * CHUNK_SIZE``."""


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
        values=np.zeros(int(CpuCol.COUNT) * CHUNK_SIZE),
    )
