"""Named records and columns of the tensor-core model, as `gpu.times.columns` for the CUDA-core one."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from anatune.numerics.columns import Ints

__all__ = ["Product", "TensorCol", "TensorUnits"]


class Product(NamedTuple):
    """The matrix product of a workload. Arrays have one entry an operand: left (rows along m), right (along n)."""

    batch: int
    m: int
    n: int
    k: int
    instruction_k: int
    element_bytes: int
    result_bytes: float
    """Bytes of the whole result."""
    epilogue_bytes: float
    """Bytes that the epilogue reads, whole tensors."""
    store_width: int
    """Results that are stored at once."""
    convert: int
    """1 where operands are rounded to tf32 in registers."""
    along_k: Ints
    """1 where rows of the staged tile lie along k."""
    run: Ints
    """Elements of a row that are evenly spaced in global memory."""
    step: Ints
    """Their distance, elements."""
    misaligned: Ints
    """1 where rows may start inside a sector."""
    matrix: Ints
    """1 where fragments are read with ldmatrix."""
    address: Ints
    """Instructions that a copy costs beside itself: index arithmetic along k and tests against padding."""
    whole_bytes: Ints
    """Bytes of the elements that are touched at all, all batch entries."""
    splits: int = 0
    """1 where points say how k is split."""


class TensorUnits(NamedTuple):
    """Tensor cores of one SM, float64."""

    fma_per_cycle: float
    """Multiply-adds of mma.sync per core cycle and SM."""
    latency: float
    """Cycles from one mma.sync to another that adds to its result."""


class TensorCol(IntEnum):
    """Rows of what `time.run_products` fills. Per block and stage unless said otherwise; cycles of one SM.

    RESIDENT: blocks an SM holds at once; HELD: really, where the grid may be too small for more. DRAM_BYTES, L2_BYTES,
    SHARED_TRAFFIC: of the whole kernel. USEFUL: share of the multiply-adds that are no padding, in (0, 1]. COMBINE_S:
    of the kernel that sums the parts of split tiles, or that zeroes the result before. STEPS: stages of a whole tile.
    EVEN_S: time that no split of the point beats (all SMs busy without waves and waiting, compulsory bytes, two
    launches).
    """

    (
        TIME_S, MMA_S, ISSUE_S, SHARED_S, L2_S, DRAM_S, LATENCY_S, TAIL_S,
        THREADS, WARPS, BLOCKS, REGISTERS, SHARED_BYTES, RESIDENT, LIMITER, HELD, WAVES,
        DRAM_BYTES, L2_BYTES, SHARED_TRAFFIC, ACCUMULATORS, USEFUL, COMBINE_S, STEPS, EVEN_S, COUNT,
    ) = range(26)  # fmt: skip
