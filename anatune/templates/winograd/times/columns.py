"""Records and result rows of the Winograd model."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from anatune.numerics.columns import Floats

__all__ = ["WinogradCol", "WinogradPoint", "WinogradTiling"]


class WinogradTiling(NamedTuple):
    """The numbers of a convolution and its transforms. Arrays have one entry for each size in `output_tiles`."""

    output_tiles: Floats
    """(S,) rows and columns of an output tile."""
    num_tiles: Floats
    """(S,) output tiles of all images."""
    frequencies: Floats
    """(S,) products for each tile, input channel and output channel."""
    data_operations: Floats
    """(S,) vector operations of an input transform."""
    result_operations: Floats
    """(S,) vector operations of an output transform."""
    border_share: Floats
    """(S,) share of the tiles whose inputs are gathered first, because they exceed the edge of the image."""
    filters: float
    channels: float
    lanes: float
    """Output channels of a vector."""
    group: float
    """Input channels whose products an instruction sums: 2 for integers, of which a vector has twice as many."""
    operand_bytes: float
    """Bytes of an element of V and U."""
    operations: float
    """Vector operations in a cycle, except products."""
    finish_operations: float
    """Vector operations of the epilogue for a vector of results."""
    channels_last: float
    """1 if input channels are neighbours in memory, else 0: they are then transposed."""
    filters_last: float
    """1 if output channels are neighbours in memory, else 0."""
    data_bytes: float
    result_bytes: float
    epilogue_bytes: float
    """Bytes of all tensors that the epilogue reads."""
    epilogue_loads: float
    """Vectors that the epilogue loads for each vector of results."""


class WinogradPoint(IntEnum):
    """Columns of a point."""

    CALLS, ROWS, SLIVERS, VECTORS, UNROLL, OUTPUT_TILE, SPLIT = range(7)


class WinogradCol(IntEnum):
    """Rows of the results of `time.run_points`: seconds of the busiest thread, bytes of all threads, counts.

    OVERHEAD_S: entries, drains and stores of the calls of the microkernel; it is a part of PRODUCT_S. L1_BYTES,
    L2_BYTES, L3_BYTES: bytes that enter these caches. CHUNKS: iterations of the parallel loop. WEIGHT_BYTES: bytes of
    the transformed weights. DATA_BYTES: bytes of the transformed inputs of a block. PRODUCT_BYTES: bytes of the
    products of a block with a chunk of output channels. USEFUL: share of the products that belong to existing outputs
    and channels, in (0, 1].
    """

    (
        TIME_S, PRODUCT_S, INPUT_S, OUTPUT_S, OVERHEAD_S, L2_S, L3_S, DRAM_S, START_S, CORE_S, MEMORY_S,
        L1_BYTES, L2_BYTES, L3_BYTES, REGISTERS, ACCUMULATORS, UNROLLED_FMA, THREADS, CHUNKS,
        WEIGHT_BYTES, DATA_BYTES, PRODUCT_BYTES, USEFUL, COUNT,
    ) = range(24)  # fmt: skip
