"""Products: of matrices, convolutions and transposed ones, sums by Einstein's notation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    cast,
    constant,
    convolution,
    elementwise,
    permute,
    reshape,
    taken,
    where,
    widen_to_float32,
)
from anatune.network.graph.einsums import einsum, product
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError
from anatune.network.graph.onnx.operators.pools import Windows, check_kernel, windows_of
from anatune.network.graph.transposed import transposed_convolution, transposed_sizes

__all__ = ["MICROSOFT", "READERS", "convolved"]


def _matmul(call: Call) -> Value:
    return product(call[0], call[1])


def _turned(value: Value) -> Value:
    """Return matrices with rows for columns."""
    rank = len(tensor_type(value).shape)
    return permute(value, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else value


def _scaled(value: Value, factor: float) -> Value:
    return value if factor == 1 else elementwise("multiply", value, factor)


def _gemm(call: Call) -> Value:
    own, dtype = call.attributes, call.kind().dtype
    first, second = widen_to_float32(call[0]), widen_to_float32(call[1])
    first = _turned(first) if own["transA"] else first
    second = _turned(second) if own["transB"] else second
    found = product(first, _scaled(second, own["alpha"]))
    if call.get(2) is not None and own["beta"] != 0:
        found = elementwise("add", found, _scaled(widen_to_float32(call[2]), own["beta"]))
    return cast(found, dtype)


def _fused_matmul(call: Call) -> Value:
    """Return a product of matrices that may be turned, and whose first dimension may be that of their rows."""
    operands = []
    for place, name in enumerate("AB"):
        value = call[place]
        rank = len(tensor_type(value).shape)
        if call.attributes.get(f"transBatch{name}") and rank > 2:
            value = permute(value, (*range(1, rank - 1), 0, rank - 1))
        operands.append(_turned(value) if call.attributes.get(f"trans{name}") else value)
    return _scaled(product(*operands), call.attributes.get("alpha", 1.0))


def _einsum(call: Call) -> Value:
    values = [call[place] for place in range(len(call.inputs))]
    dtype = call.kind().dtype
    return cast(einsum(call.attributes["equation"], [widen_to_float32(value) for value in values]), dtype)


def _along_channels(bias: Value, rank: int) -> Value:
    return reshape(bias, (-1, *(1,) * rank))


def convolved(data: Value, weight: Value, bias: Value | None, windows: Windows, groups: int) -> Value:
    """Return a convolution, of numbers of 16 bits in float32."""
    (_, channels, *sizes), (outputs, own, *_) = tensor_type(data).shape, tensor_type(weight).shape
    if len(sizes) > 3:
        raise RefusedError(f"convolves {len(sizes)} dimensions, expected 1 to 3")
    if channels != own * groups or outputs % groups:
        raise RefusedError(f"has {channels} channels and {outputs} outputs in {groups} groups of {own} channels")
    dtype = tensor_type(data).dtype
    found = convolution(
        widen_to_float32(data), widen_to_float32(weight), strides=windows.strides, padding=windows.padding,
        dilation=windows.dilation, groups=groups,
    )  # fmt: skip
    if bias is not None:
        found = elementwise("add", found, _along_channels(widen_to_float32(bias), len(sizes)))
    return cast(found, dtype)


def _convolution(call: Call) -> Value:
    return convolved(call[0], call[1], call.get(2), windows_of(call, call.kind(1).shape[2:]), call.attributes["group"])


def _transposed(call: Call) -> Value:
    own, (_, _, *sizes), taps = call.attributes, call.kind().shape, call.kind(1).shape[2:]
    rank = len(sizes)
    if not 1 <= rank <= 3:
        raise RefusedError(f"convolves {rank} dimensions, expected 1 to 3")
    check_kernel(call, taps)
    strides, dilation = own.get("strides") or [1] * rank, own.get("dilations") or [1] * rank
    more, padding = own.get("output_padding") or [0] * rank, own.get("pads") or [0] * 2 * rank
    is_same = own["auto_pad"] in ("SAME_UPPER", "SAME_LOWER")
    wanted = own.get("output_shape") or []
    if wanted or is_same:
        wanted = wanted[-rank:] or [size * stride for size, stride in zip(sizes, strides, strict=True)]
        whole = transposed_sizes(sizes, taps, strides, [0] * 2 * rank, more, dilation)
        total = [one - size for one, size in zip(whole, wanted, strict=True)]
        kept = [max(0, one) for one in total]  # what is wanted beyond the whole comes behind it
        before = [one // 2 if own["auto_pad"] == "SAME_UPPER" else one - one // 2 for one in kept]
        padding = before + [one - first for one, first in zip(total, before, strict=True)]
    elif own["auto_pad"] == "VALID":
        padding = [0] * 2 * rank
    bias = call.get(2)
    found = transposed_convolution(
        widen_to_float32(call[0]), widen_to_float32(call[1]), None if bias is None else widen_to_float32(bias),
        strides=strides, padding=padding, output_padding=more, dilation=dilation, groups=own["group"],
    )  # fmt: skip
    return cast(found, call.kind().dtype)


def _deformed(call: Call) -> Value:
    """Return a convolution whose taps read elsewhere, between pixels: its taps are taken apart, then multiplied.

    Operands are data (n, c, ...), weights, offsets (n, offset groups * taps * dimensions, ...), a bias and factors of
    the taps.
    """
    own, (batch, channels, *sizes) = call.attributes, call.kind().shape
    (outputs, depth, *taps), rank = call.kind(1).shape, call.rank - 2
    groups, parts, count = own["group"], own["offset_group"], int(np.prod(taps))
    windows = windows_of(call, taps)
    image = windows.outputs(sizes)
    dtype = tensor_type(widen_to_float32(call[0])).dtype
    offsets = reshape(widen_to_float32(call[2]), (batch, parts, count, rank, *image))
    grid = np.indices((*taps, *image)).reshape(2 * rank, count, *image)
    places = [
        elementwise(
            "add",
            reshape(taken(offsets, constant(axis, "int64"), 3), (batch, parts, count, *image)),
            constant(
                grid[axis] * windows.dilation[axis] + grid[rank + axis] * windows.strides[axis] - windows.padding[axis],
                dtype,
            ),
        )
        for axis in range(rank)
    ]
    data = permute(
        reshape(widen_to_float32(call[0]), (batch, parts, channels // parts, -1)), (0, 1, 3, 2)
    )  # pixels, each with its channels
    found = _between(reshape(data, (-1, channels // parts)), places, sizes)
    if call.get(4) is not None:
        factors = reshape(widen_to_float32(call[4]), (batch, parts, count, *image, 1))
        found = elementwise("multiply", found, factors)
    found = permute(found, (0, 1, found_rank := len(tensor_type(found).shape) - 1, *range(2, found_rank)))
    columns = reshape(found, (batch, groups, depth * count, -1))
    weight = reshape(widen_to_float32(call[1]), (groups, outputs // groups, depth * count))
    product_ = reshape(product(weight, columns), (batch, outputs, *image))
    if call.get(3) is not None:
        product_ = elementwise("add", product_, _along_channels(widen_to_float32(call[3]), rank))
    return cast(product_, call.kind().dtype)


def _between(rows: Value, places: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return what lies between pixels, zeros around the image, weighted along each dimension.

    Parameters
    ----------
    rows : Value
        (images * pixels, channels).
    places : sequence of Value
        Along each dimension, (n, offset groups, ...): ``n * offset groups`` images.
    """
    kind = tensor_type(places[0])
    number = np.arange(int(np.prod(kind.shape[:2]))).reshape(*kind.shape[:2], *(1,) * (len(kind.shape) - 2))
    lower = [elementwise("floor", place) for place in places]
    shares = [elementwise("subtract", place, low) for place, low in zip(places, lower, strict=True)]
    total: Value | None = None
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        flat: Value = constant(number, "int64")
        weight: Value | None = None
        for axis, side in enumerate(corner):
            at = elementwise("add", lower[axis], float(side))
            last = float(sizes[axis] - 1)
            inside = elementwise("minimum", elementwise("maximum", at, 0.0), last)
            share = shares[axis] if side else elementwise("subtract", constant(1, kind.dtype), shares[axis])
            share = where(elementwise("equal", at, inside), share, constant(0, kind.dtype))
            weight = share if weight is None else elementwise("multiply", weight, share)
            flat = elementwise("add", elementwise("multiply", flat, sizes[axis]), cast(inside, "int64"))
        assert weight is not None
        part = elementwise("multiply", taken(rows, flat, 0), reshape(weight, (*kind.shape, 1)))
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return total


READERS: dict[str, Convert] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed,
    "DeformConv": _deformed,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
MICROSOFT: dict[str, Convert] = {"FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul}
