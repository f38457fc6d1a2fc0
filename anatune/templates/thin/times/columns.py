"""Named records and columns of the thin model, as `gpu.times.columns` for the CUDA-core one."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["Stream", "ThinCol"]


class Stream(NamedTuple):
    """A workload of the template thin: one large operand that passes by, few results for each of its elements."""

    batch: int
    m: int
    n: int
    k: int
    element_bytes: int
    products: int
    """1 where a small operand is multiplied, 0 in reductions of one tensor."""
    along_k: int
    """1 where neighbours of the large operand follow k."""
    run: int
    """Elements along that index that are evenly spaced in memory."""
    step: int
    """Their distance, elements."""
    misaligned: int
    """1 where rows may start inside a sector."""
    few_width: int
    """Most elements of the small operand along k that are loaded at once."""
    convert: float
    """Instructions that an element costs before it is multiplied."""
    dots: int
    """1 where four products of neighbours along k are one instruction, if both operands are loaded in words."""
    address: float
    """Instructions that a load of the large operand costs beside itself; then one of the small operand."""
    few_address: float
    large_bytes: float
    """Bytes of the elements that are touched at all; then of the small operand."""
    small_bytes: float
    result_bytes: float
    epilogue_bytes: float
    """Bytes that the epilogue reads, whole tensors."""


class ThinCol(IntEnum):
    """Rows of what `time.run_streams` fills."""

    TIME_S = 0
    FMA_S = 1
    ISSUE_S = 2
    L1_S = 3
    L2_S = 4
    DRAM_S = 5
    LATENCY_S = 6
    MEET_S = 7
    """Shuffles, shared memory and stores at the end of blocks."""
    TAIL_S = 8
    SECOND_S = 9
    """Second kernel of split sums."""
    THREADS = 10
    WARPS = 11
    BLOCKS = 12
    REGISTERS = 13
    SHARED_BYTES = 14
    RESIDENT = 15
    """Blocks an SM holds at once."""
    LIMITER = 16
    HELD = 17
    """Blocks an SM really holds (the grid may be too small for more)."""
    WAVES = 18
    DRAM_BYTES = 19
    """Of the whole kernel, as L2_BYTES and SHARED_TRAFFIC."""
    L2_BYTES = 20
    SHARED_TRAFFIC = 21
    ACCUMULATORS = 22
    LOADS = 23
    """Loads of the large operand of a thread that are in flight at once."""
    FLIGHT_BYTES = 24
    """Bytes that all loads of an SM have in flight."""
    COUNT = 25
