"""Streams: products with a vector or few rows and long reductions, of awkward extents and every number format."""

from __future__ import annotations

from collections.abc import Iterator

from anatune import batch_matmul, conv2d, matmul
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import reduction

__all__ = ["thin_workloads"]


def thin_workloads() -> Iterator[tuple[str, Workload]]:
    """Yield small workloads of the template thin, by name."""
    yield "primes", matmul(1, 523, 127)
    yield "primes transposed", matmul(1, 521, 131, transpose_b=True)
    yield "rows epilogue", matmul(3, 260, 128, epilogue=("bias", "add", "relu"))
    yield "sixteen rows", matmul(16, 130, 136, transpose_b=True, epilogue=("bias", "relu"))
    yield "tall", matmul(515, 5, 64, epilogue=("bias",))
    yield "tall transposed", matmul(512, 2, 96, transpose_a=True)
    yield "batch", batch_matmul(12, 1, 64, 64)
    yield "batch transposed", batch_matmul(3, 7, 130, 66, transpose_b=True)
    yield "float16", matmul(2, 512, 136, dtype="float16", transpose_b=True, epilogue=("bias",))
    yield "float16 along n", matmul(2, 512, 135, dtype="float16")
    yield "bfloat16", matmul(4, 264, 131, dtype="bfloat16", transpose_b=True)
    yield "int8", matmul(2, 512, 144, dtype="int8", transpose_b=True)
    yield "int8 along n", matmul(3, 520, 71, dtype="int8")
    yield "int8 misaligned", matmul(1, 520, 71, dtype="int8", transpose_b=True)
    yield "both small", matmul(16, 16, 1100)
    yield "one result", matmul(1, 1, 17000)
    yield "conv2d padding", conv2d(1, 40, 3, 3, 50, 3, 3, padding=1, epilogue=("relu",))
    yield "sums of rows", reduction((37, 700), axes=1)
    yield "largest of columns", reduction((500, 37), axes=0, kind="max")
    yield "means float16", reduction((16, 1100), axes=1, kind="mean", dtype="float16")
    yield "largest int8", reduction((16, 1101), axes=1, kind="max", dtype="int8")
