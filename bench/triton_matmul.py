"""A plain autotuned matmul in Triton: C[m, n] = A[m, k] B[k, n], sums in float32; importable only where Triton is."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["matmul"]

_TILES = [  # block_m, block_n, block_k, warps, stages
    (16, 64, 64, 4, 4),
    (32, 32, 64, 4, 4),
    (32, 64, 32, 4, 5),
    (64, 32, 32, 4, 5),
    (64, 64, 32, 4, 4),
    (64, 64, 16, 8, 3),
    (64, 128, 32, 4, 4),
    (128, 32, 32, 4, 4),
    (128, 64, 32, 4, 4),
    (128, 64, 16, 8, 3),
    (128, 128, 16, 8, 3),
    (128, 128, 32, 4, 4),
    (128, 128, 32, 8, 3),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
    (64, 256, 32, 4, 4),
]


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in _TILES
    ],
    key=["M", "N", "K", "PRECISION"],
)
@triton.jit
def _kernel(  # noqa: D103
    a,
    b,
    c,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = block // (GROUP * columns)
    first = group * GROUP
    height = min(rows - first, GROUP)
    row = first + (block % (GROUP * columns)) % height
    column = (block % (GROUP * columns)) // height
    at_m = (row * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    at_n = (column * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    at_k = tl.arange(0, BLOCK_K)
    a_places = a + at_m[:, None] * K + at_k[None, :]
    b_places = b + at_k[:, None] * N + at_n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        a_tile = tl.load(a_places, mask=at_k[None, :] < left, other=0.0)
        b_tile = tl.load(b_places, mask=at_k[:, None] < left, other=0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision=PRECISION)
        a_places += BLOCK_K
        b_places += BLOCK_K * N
    out_m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (out_m[:, None] < M) & (out_n[None, :] < N)
    tl.store(c + out_m[:, None] * N + out_n[None, :], total.to(c.dtype.element_ty), mask=inside)


def matmul(a: Any, b: Any, c: Any, precision: str) -> None:
    """Queue one product; the first call for a shape measures all configurations.

    Parameters
    ----------
    a, b, c : torch.Tensor
        (m, k), (k, n), (m, n), contiguous.
    precision : {"ieee", "tf32"}
        Of float32 operands.
    """
    m, k = a.shape
    _, n = b.shape
    _kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)](
        a, b, c, m, n, k, PRECISION=precision
    )
