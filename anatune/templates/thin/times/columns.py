"""Records and result rows of the thin model, like `gpu.times.columns` for the CUDA-core model."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

__all__ = ["ThinCol", "ThinStream"]


class ThinStream(NamedTuple):
    """The numbers of a thin workload: one large operand that is read once, few results for each of its elements."""

    batch: int
    m: int
    n: int
    k: int
    element_bytes: int
    products: int
    """1 if a small operand is multiplied, 0 in reductions of one tensor."""
    along_k: int
    """1 if neighbouring elements of the large operand follow k."""
    run: int
    """Elements along that index that are evenly spaced in memory."""
    step: int
    """Distance of these elements in memory, in elements."""
    misaligned: int
    """1 if rows can start inside a sector."""
    small_width: int
    """Most elements of the small operand along k in one load."""
    convert: float
    """Instructions to convert an element before it is multiplied."""
    dots: int
    """1 if one instruction sums four products of neighbours along k, given that both operands are loaded in words."""
    address: float
    """Address instructions of a load of the large operand; the next field is that of the small one."""
    small_address: float
    large_bytes: float
    """Bytes of the elements of the large operand that are touched; the next field is that of the small one."""
    small_bytes: float
    result_bytes: float
    epilogue_bytes: float
    """Bytes of the tensors that the epilogue reads."""


class ThinCol(IntEnum):
    """Rows of the results of `time.run_streams`.

    MEET_S: shuffles, shared memory and stores at the end of blocks. SECOND_S: the second kernel of split sums.
    RESIDENT: blocks that an SM can hold at the same time. HELD: blocks that it holds, which are fewer if the grid is
    too small. DRAM_BYTES, L2_BYTES, SHARED_TRAFFIC: bytes of the whole kernel. LOADS: loads of the large operand of a
    thread that are in flight. FLIGHT_BYTES: bytes of all loads of an SM in flight.
    """

    (
        TIME_S, FMA_S, ISSUE_S, L1_S, L2_S, DRAM_S, LATENCY_S, MEET_S, TAIL_S, SECOND_S,
        THREADS, WARPS, BLOCKS, REGISTERS, SHARED_BYTES, RESIDENT, LIMITER, HELD, WAVES,
        DRAM_BYTES, L2_BYTES, SHARED_TRAFFIC, ACCUMULATORS, LOADS, FLIGHT_BYTES, COUNT,
    ) = range(26)  # fmt: skip
