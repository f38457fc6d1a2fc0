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


def _quickly_compiled(configs: list[Any], named_args: dict[str, Any], **_others: Any) -> list[Any]:
    """Leave out tiles that take minutes to compile: float32 products without tf32 are unrolled into scalar ones."""
    if named_args["a"].element_size() < 4 or _others.get("precision") != "ieee":
        return configs
    return [c for c in configs if c.kwargs["block_m"] * c.kwargs["block_n"] * c.kwargs["block_k"] <= 128 * 128 * 32]


@triton.autotune(
    configs=[
        triton.Config({"block_m": m, "block_n": n, "block_k": k, "per_group": 8}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in _TILES
    ],
    key=["m", "n", "k", "precision"],
    prune_configs_by={"early_config_prune": _quickly_compiled},
)
@triton.jit
def _kernel(
    a,
    b,
    c,
    m,
    n,
    k,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    per_group: tl.constexpr,
    precision: tl.constexpr,
):
    block = tl.program_id(0)
    rows, columns = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
    group = block // (per_group * columns)
    first = group * per_group
    height = min(rows - first, per_group)
    row = first + (block % (per_group * columns)) % height
    column = (block % (per_group * columns)) // height
    at_m = (row * block_m + tl.arange(0, block_m)) % m
    at_n = (column * block_n + tl.arange(0, block_n)) % n
    at_k = tl.arange(0, block_k)
    a_places = a + at_m[:, None] * k + at_k[None, :]
    b_places = b + at_k[:, None] * n + at_n[None, :]
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, block_k)):
        left = k - step * block_k
        a_tile = tl.load(a_places, mask=at_k[None, :] < left, other=0.0)
        b_tile = tl.load(b_places, mask=at_k[:, None] < left, other=0.0)
        total = tl.dot(a_tile, b_tile, total, input_precision=precision)
        a_places += block_k
        b_places += block_k * n
    out_m = row * block_m + tl.arange(0, block_m)
    out_n = column * block_n + tl.arange(0, block_n)
    inside = (out_m[:, None] < m) & (out_n[None, :] < n)
    tl.store(c + out_m[:, None] * n + out_n[None, :], total.to(c.dtype.element_ty), mask=inside)


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
    _kernel[lambda meta: (triton.cdiv(m, meta["block_m"]) * triton.cdiv(n, meta["block_n"]),)](
        a, b, c, m, n, k, precision=precision
    )
