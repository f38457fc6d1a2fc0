"""Products as Triton programs, by pointers and by tensor descriptors; importable only where Triton is."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["by_descriptors", "by_pointers", "by_scales"]


@triton.jit
def _tile_of(m, n, block_m: tl.constexpr, block_n: tl.constexpr, group_m: tl.constexpr):
    block = tl.program_id(0)
    rows, columns = tl.cdiv(m, block_m), tl.cdiv(n, block_n)
    group = block // (group_m * columns)
    first = group * group_m
    height = min(rows - first, group_m)
    row = first + (block % (group_m * columns)) % height
    column = (block % (group_m * columns)) // height
    return row * block_m, column * block_n


@triton.jit
def by_pointers(
    a,
    b,
    c,
    m,
    n,
    k,
    pitch_a,
    pitch_b,
    pitch_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    a_along_k: tl.constexpr,
    b_along_n: tl.constexpr,
    masks: tl.constexpr,
    sums: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute a b as Triton's tutorial writes it; rows of an operand lie `pitch_...` elements apart."""
    row, column = _tile_of(m, n, block_m, block_n, group_m)
    at_m = (row + tl.arange(0, block_m)) % m
    at_n = (column + tl.arange(0, block_n)) % n
    at_k = tl.arange(0, block_k)
    a_places = a + at_m[:, None] * (pitch_a if a_along_k else 1) + at_k[None, :] * (1 if a_along_k else pitch_a)
    b_places = b + at_k[:, None] * (pitch_b if b_along_n else 1) + at_n[None, :] * (1 if b_along_n else pitch_b)
    total = tl.zeros((block_m, block_n), dtype=sums)
    for step in range(0, tl.cdiv(k, block_k)):
        if masks:
            left = k - step * block_k
            a_tile = tl.load(a_places, mask=at_k[None, :] < left, other=0.0)
            b_tile = tl.load(b_places, mask=at_k[:, None] < left, other=0.0)
        else:
            a_tile = tl.load(a_places)
            b_tile = tl.load(b_places)
        total = tl.dot(a_tile, b_tile.to(a_tile.dtype), total, input_precision=precision)
        a_places += block_k if a_along_k else block_k * pitch_a
        b_places += block_k * pitch_b if b_along_n else block_k
    out_m = row + tl.arange(0, block_m)
    out_n = column + tl.arange(0, block_n)
    c_places = c + out_m[:, None] * pitch_c + out_n[None, :]
    tl.store(c_places, total.to(c.dtype.element_ty), mask=(out_m[:, None] < m) & (out_n[None, :] < n))


@triton.jit
def by_descriptors(
    a,
    b,
    c,
    m,
    n,
    k,
    pitch_a,
    pitch_b,
    pitch_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    a_along_k: tl.constexpr,
    b_along_n: tl.constexpr,
    masks: tl.constexpr,
    sums: tl.constexpr,
    precision: tl.constexpr,
):
    """Compute a b with operands by tensor descriptors; with `masks` results are stored by pointers, else by one."""
    row, column = _tile_of(m, n, block_m, block_n, group_m)
    if a_along_k:
        a_tensor = tl.make_tensor_descriptor(a, [m, k], [pitch_a, 1], [block_m, block_k])
    else:
        a_tensor = tl.make_tensor_descriptor(a, [k, m], [pitch_a, 1], [block_k, block_m])
    if b_along_n:
        b_tensor = tl.make_tensor_descriptor(b, [k, n], [pitch_b, 1], [block_k, block_n])
    else:
        b_tensor = tl.make_tensor_descriptor(b, [n, k], [pitch_b, 1], [block_n, block_k])
    total = tl.zeros((block_m, block_n), dtype=sums)
    for at in range(0, k, block_k):
        a_tile = a_tensor.load([row, at]) if a_along_k else a_tensor.load([at, row]).T
        b_tile = b_tensor.load([at, column]) if b_along_n else b_tensor.load([column, at]).T
        total = tl.dot(a_tile, b_tile.to(a_tile.dtype), total, input_precision=precision)
    if masks:
        out_m = row + tl.arange(0, block_m)
        out_n = column + tl.arange(0, block_n)
        c_places = c + out_m[:, None] * pitch_c + out_n[None, :]
        tl.store(c_places, total.to(c.dtype.element_ty), mask=(out_m[:, None] < m) & (out_n[None, :] < n))
    else:
        c_tensor = tl.make_tensor_descriptor(c, [m, n], [pitch_c, 1], [block_m, block_n])
        c_tensor.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def by_scales(
    a,
    b,
    a_scales,
    b_scales,
    c,
    m,
    n,
    k,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    kind_a: tl.constexpr,
    kind_b: tl.constexpr,
    pack_a: tl.constexpr,
    pack_b: tl.constexpr,
    run: tl.constexpr,
):
    """Compute a b^T whose operands have a scale for every `run` elements along k; 16-bit ones have none."""
    row, column = _tile_of(m, n, block_m, block_n, 8)
    at_m, at_n, at_run = row + tl.arange(0, block_m), column + tl.arange(0, block_n), tl.arange(0, block_k // run)
    total = tl.zeros((block_m, block_n), dtype=tl.float32)
    for at in range(0, k, block_k):
        a_tile = tl.load(a + at_m[:, None] * (k // pack_a) + at // pack_a + tl.arange(0, block_k // pack_a)[None, :])
        b_tile = tl.load(b + at_n[:, None] * (k // pack_b) + at // pack_b + tl.arange(0, block_k // pack_b)[None, :])
        b_scale = tl.load(b_scales + at_n[:, None] * (k // run) + at // run + at_run[None, :])
        if kind_a == "bf16":
            total = tl.dot_scaled(a_tile, None, kind_a, b_tile.T, b_scale, kind_b, total)
        else:
            a_scale = tl.load(a_scales + at_m[:, None] * (k // run) + at // run + at_run[None, :])
            total = tl.dot_scaled(a_tile, a_scale, kind_a, b_tile.T, b_scale, kind_b, total)
    tl.store(c + at_m[:, None] * n + at_n[None, :], total.to(c.dtype.element_ty))
