"""Named records and columns of the Winograd model."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from anatune.numerics.columns import Floats

__all__ = ["Tiling", "WinogradCol", "WinogradPoint"]


class Tiling(NamedTuple):
    """A convolution and its transforms. Arrays have one entry an output tile size, as `output_tiles` lists them."""

    output_tiles: Floats
    """(S,) rows and columns of an output tile."""
    num_tiles: Floats
    """(S,) output tiles of all images."""
    frequencies: Floats
    """(S,) products of a tile, an input and an output channel."""
    data_operations: Floats
    """(S,) vector operations of an input transform."""
    result_operations: Floats
    """(S,) vector operations of an output transform."""
    border_share: Floats
    """(S,) share of the tiles whose inputs are gathered first: those that reach over the edge of the image."""
    filters: float
    channels: float
    lanes: float
    """Output channels of a vector."""
    group: float
    """Input channels whose products an instruction sums: 2 of integers, of which a vector has twice as many."""
    operand_bytes: float
    """Of an element of V and U."""
    operations: float
    """Operations on vectors a cycle, beside products."""
    finish_operations: float
    """Operations of the epilogue on a vector of results."""
    channels_last: float
    """1 where input channels are neighbours in memory, else 0: they are transposed on the way."""
    filters_last: float
    """1 where output channels are neighbours in memory, else 0."""
    data_bytes: float
    result_bytes: float
    epilogue_bytes: float
    """Bytes of the whole tensors."""
    epilogue_loads: float
    """Vectors that the epilogue loads for each vector of results."""


class WinogradPoint(IntEnum):
    """Columns of a point."""

    CALLS, ROWS, SLIVERS, VECTORS, UNROLL, OUTPUT_TILE, SPLIT = range(7)


class WinogradCol(IntEnum):
    """Rows of what `time.run_points` fills: seconds of the busiest thread, bytes of all, counts.

    OVERHEAD_S: entries, drains and stores of the microkernel's calls; part of PRODUCT_S, too. L1_BYTES, L2_BYTES,
    L3_BYTES: what crosses into these. CHUNKS: iterations of the parallel loop. WEIGHT_BYTES: of the transformed
    weights. DATA_BYTES: of a block's transformed inputs. PRODUCT_BYTES: of its products with a chunk of the output
    channels. USEFUL: share of the products that belong to outputs and channels there are, in (0, 1].
    """

    (
        TIME_S, PRODUCT_S, INPUT_S, OUTPUT_S, OVERHEAD_S, L2_S, L3_S, DRAM_S, START_S, CORE_S, MEMORY_S,
        L1_BYTES, L2_BYTES, L3_BYTES, REGISTERS, ACCUMULATORS, UNROLLED_FMA, THREADS, CHUNKS,
        WEIGHT_BYTES, DATA_BYTES, PRODUCT_BYTES, USEFUL, COUNT,
    ) = range(24)  # fmt: skip
