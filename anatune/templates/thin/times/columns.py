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
    """Rows of what `time.run_streams` fills.

    MEET_S: shuffles, shared memory and stores at the end of blocks. SECOND_S: second kernel of split sums. RESIDENT:
    blocks an SM holds at once; HELD: really, where the grid may be too small for more. DRAM_BYTES, L2_BYTES,
    SHARED_TRAFFIC: of the whole kernel. LOADS: of the large operand, of a thread, in flight at once. FLIGHT_BYTES: of
    all loads of an SM in flight.
    """

    (
        TIME_S, FMA_S, ISSUE_S, L1_S, L2_S, DRAM_S, LATENCY_S, MEET_S, TAIL_S, SECOND_S,
        THREADS, WARPS, BLOCKS, REGISTERS, SHARED_BYTES, RESIDENT, LIMITER, HELD, WAVES,
        DRAM_BYTES, L2_BYTES, SHARED_TRAFFIC, ACCUMULATORS, LOADS, FLIGHT_BYTES, COUNT,
    ) = range(26)  # fmt: skip
