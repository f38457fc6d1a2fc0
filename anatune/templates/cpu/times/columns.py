"""Columns of CPU points that are evaluated together.

Loops over a chunk have a constant trip count and no aliasing columns, which the compiler vectorises best. The last
chunk of a batch computes some leftovers that nobody reads.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np

from anatune.numerics.columns import CHUNK_SIZE, Floats, Ints, float_rows

__all__ = ["NUM_RESULTS", "CpuChunk", "CpuCol", "new_chunk"]


class CpuCol(IntEnum):
    """Where the columns of a chunk begin in `CpuChunk.values`; up to RULE they are results, see `cpu.model.scoring`.

    Compiled code reads entry `i` of a column as ``values[CpuCol.X + i]``: a constant offset from one address, so that
    the compiler knows that columns do not overlap.
    """

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        """Return where the next column begins, behind the `count` columns so far."""
        return count * CHUNK_SIZE

    @property
    def row(self) -> int:
        """Row of a result in what `point.run_points` fills."""
        return self.value // CHUNK_SIZE

    TIME_S = auto()
    FMA_S = auto()
    LOAD_S = auto()
    LATENCY_S = auto()
    ISSUE_S = auto()
    OVERHEAD_S = auto()
    CORE_S = auto()
    MEMORY_S = auto()
    PACKING_S = auto()
    START_S = auto()
    L2_S = auto()
    """This and the next two: transfers into L1, L2, L3, by where they come from."""
    L3_S = auto()
    DRAM_S = auto()
    L1_BYTES = auto()
    """This and the next two: bytes that enter L1, L2, L3."""
    L2_BYTES = auto()
    L3_BYTES = auto()
    THREADS = auto()
    SHARE = auto()
    """Share of all work that the busiest thread does."""
    CHUNKS = auto()
    ACCUMULATORS = auto()
    REGISTERS = auto()
    STEPS = auto()
    UNROLLED_FMA = auto()
    L1_TILE_BYTES = auto()
    L2_TILE_BYTES = auto()
    L3_TILE_BYTES = auto()
    RULE = auto()
    # the microkernel
    PARALLEL = auto()
    PAIRS = auto()
    """Axes other than the SIMD axis that a pair of microkernels covers."""
    PAIR_AXIS = auto()
    """The last of them, or -1."""
    UNROLL = auto()
    TILES = auto()
    """Calls of each kind of microkernel in the pair."""
    PARTIAL = auto()
    SMALL_ROWS_CALLS = auto()
    LARGE_ROWS_CALLS = auto()
    SMALL_VECTORS = auto()
    """Vectors of the smaller microkernel; the larger one has one more."""
    SMALL_VECTORS_CALLS = auto()
    LARGE_VECTORS_CALLS = auto()
    ROWS = auto()
    OWN = auto()
    VECTOR_LOADS = auto()
    """Loads for each vector of the microkernel."""
    VECTORS_HELD = auto()
    """Held registers for each vector of the microkernel; the next: besides."""
    HELD = auto()
    BROADCAST = auto()
    VECTOR_CONVERSIONS = auto()
    """Conversions for each vector of the microkernel; the next: besides."""
    CONVERSIONS = auto()
    RELOADED = auto()
    """Loads for a result vector."""
    CYCLES = auto()
    INSIDE = auto()
    """Share of the steps that is left when padding is left out."""
    PADDING = auto()
    """Cycles of padded copies; work space of their tensor."""
    OWN_COPY = auto()
    # footprints
    RUN = auto()
    """Contiguous elements: the last dimension, and those before it while the later ones are whole."""
    ROW_COUNT = auto()
    IS_OPEN = auto()
    IS_SHORT = auto()
    """1 where the last dimension is cut: rows are its size apart."""
    SPAN = auto()
    TOUCHED = auto()
    BYTES = auto()
    SPREAD = auto()
    """Rows that may collide in few sets of a cache."""
    MOVED = auto()
    WRITTEN = auto()
    """Those of them that are written back."""
    OUTSIDE = auto()
    # copies
    COPY_S = auto()
    """Seconds to bring a byte in from the first cache that holds the copy."""
    COPY_BYTES = auto()
    IS_BEYOND = auto()
    """1 while no cache so far holds it."""


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
