"""Readers of products: matrix products, convolutions, transposed convolutions, Einstein sums."""

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
    take_slices,
    where,
    widen_to_float32,
)
from anatune.network.graph.einsums import einsum, product
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError
from anatune.network.graph.onnx.operators.pools import Windows, check_kernel, windows_of
from anatune.network.graph.transposed import transposed_convolution, transposed_sizes

__all__ = ["MICROSOFT", "READERS", "convolve"]


def _matmul(call: OnnxCall) -> Value:
    return product(call[0], call[1])


def _transpose(value: Value) -> Value:
    """Return transposed matrices."""
    rank = len(tensor_type(value).shape)
    return permute(value, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else value


def _scale(value: Value, factor: float) -> Value:
    return value if factor == 1 else elementwise("multiply", value, factor)


def _gemm(call: OnnxCall) -> Value:
    attrs, dtype = call.attributes, call.kind().dtype
    first, second = widen_to_float32(call[0]), widen_to_float32(call[1])
    first = _transpose(first) if attrs["transA"] else first
    second = _transpose(second) if attrs["transB"] else second
    result = product(first, _scale(second, attrs["alpha"]))
    if call.get(2) is not None and attrs["beta"] != 0:
        result = elementwise("add", result, _scale(widen_to_float32(call[2]), attrs["beta"]))
    return cast(result, dtype)


def _fused_matmul(call: OnnxCall) -> Value:
    """Return a product of matrices that may be transposed, also with the first dimension as that of the rows."""
    operands = []
    for index, name in enumerate("AB"):
        value = call[index]
        rank = len(tensor_type(value).shape)
        if call.attributes.get(f"transBatch{name}") and rank > 2:
            value = permute(value, (*range(1, rank - 1), 0, rank - 1))
        operands.append(_transpose(value) if call.attributes.get(f"trans{name}") else value)
    return _scale(product(*operands), call.attributes.get("alpha", 1.0))


def _einsum(call: OnnxCall) -> Value:
    values = [call[place] for place in range(len(call.inputs))]
    dtype = call.kind().dtype
    return cast(einsum(call.attributes["equation"], [widen_to_float32(value) for value in values]), dtype)


def _along_channels(bias: Value, rank: int) -> Value:
    return reshape(bias, (-1, *(1,) * rank))


def convolve(data: Value, weight: Value, bias: Value | None, windows: Windows, groups: int) -> Value:
    """Return a convolution; 16-bit floats are computed in float32."""
    (_, channels, *sizes), (outputs, each, *_) = tensor_type(data).shape, tensor_type(weight).shape
    if len(sizes) > 3:
        raise RefusedError(f"is a convolution over {len(sizes)} dimensions, expected 1 to 3")
    if channels != each * groups or outputs % groups:
        raise RefusedError(f"has {channels} channels, {outputs} outputs, expected {groups} groups of {each} channels")
    dtype = tensor_type(data).dtype
    result = convolution(
        widen_to_float32(data), widen_to_float32(weight), strides=windows.strides, padding=windows.padding,
        dilation=windows.dilation, groups=groups,
    )  # fmt: skip
    if bias is not None:
        result = elementwise("add", result, _along_channels(widen_to_float32(bias), len(sizes)))
    return cast(result, dtype)


def _convolution(call: OnnxCall) -> Value:
    return convolve(call[0], call[1], call.get(2), windows_of(call, call.kind(1).shape[2:]), call.attributes["group"])


def _transposed_convolution(call: OnnxCall) -> Value:
    attrs, (_, _, *sizes), taps = call.attributes, call.kind().shape, call.kind(1).shape[2:]
    rank = len(sizes)
    if not 1 <= rank <= 3:
        raise RefusedError(f"is a convolution over {rank} dimensions, expected 1 to 3")
    check_kernel(call, taps)
    strides, dilation = attrs.get("strides") or [1] * rank, attrs.get("dilations") or [1] * rank
    more, padding = attrs.get("output_padding") or [0] * rank, attrs.get("pads") or [0] * 2 * rank
    is_same = attrs["auto_pad"] in ("SAME_UPPER", "SAME_LOWER")
    output_sizes = attrs.get("output_shape") or []
    if output_sizes or is_same:
        output_sizes = output_sizes[-rank:] or [size * stride for size, stride in zip(sizes, strides, strict=True)]
        full_sizes = transposed_sizes(sizes, taps, strides, [0] * 2 * rank, more, dilation)
        total = [one - size for one, size in zip(full_sizes, output_sizes, strict=True)]
        cropped = [max(0, one) for one in total]  # outputs beyond the full result are added at the end
        before = [one // 2 if attrs["auto_pad"] == "SAME_UPPER" else one - one // 2 for one in cropped]
        padding = before + [one - first for one, first in zip(total, before, strict=True)]
    elif attrs["auto_pad"] == "VALID":
        padding = [0] * 2 * rank
    bias = call.get(2)
    result = transposed_convolution(
        widen_to_float32(call[0]), widen_to_float32(call[1]), None if bias is None else widen_to_float32(bias),
        strides=strides, padding=padding, output_padding=more, dilation=dilation, groups=attrs["group"],
    )  # fmt: skip
    return cast(result, call.kind().dtype)


def _deformable_convolution(call: OnnxCall) -> Value:
    """Return a deformable convolution: its taps are interpolated between pixels and then multiplied by the weights.

    Operands are data (n, c, ...), weights, offsets (n, offset groups * taps * dimensions, ...), a bias, and factors of
    the taps.
    """
    attrs, (batch, channels, *sizes) = call.attributes, call.kind().shape
    (outputs, depth, *taps), rank = call.kind(1).shape, call.rank - 2
    groups, parts, count = attrs["group"], attrs["offset_group"], int(np.prod(taps))
    windows = windows_of(call, taps)
    image = windows.outputs(sizes)
    dtype = tensor_type(widen_to_float32(call[0])).dtype
    offsets = reshape(widen_to_float32(call[2]), (batch, parts, count, rank, *image))
    grid = np.indices((*taps, *image)).reshape(2 * rank, count, *image)
    positions = [
        elementwise(
            "add",
            reshape(take_slices(offsets, constant(axis, "int64"), 3), (batch, parts, count, *image)),
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
    samples = _interpolate(reshape(data, (-1, channels // parts)), positions, sizes)
    if call.get(4) is not None:
        factors = reshape(widen_to_float32(call[4]), (batch, parts, count, *image, 1))
        samples = elementwise("multiply", samples, factors)
    samples = permute(samples, (0, 1, last := len(tensor_type(samples).shape) - 1, *range(2, last)))
    columns = reshape(samples, (batch, groups, depth * count, -1))
    weight = reshape(widen_to_float32(call[1]), (groups, outputs // groups, depth * count))
    product_ = reshape(product(weight, columns), (batch, outputs, *image))
    if call.get(3) is not None:
        product_ = elementwise("add", product_, _along_channels(widen_to_float32(call[3]), rank))
    return cast(product_, call.kind().dtype)


def _interpolate(rows: Value, positions: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return rows interpolated linearly between pixels, with zeros around the image.

    Parameters
    ----------
    rows : Value
        (images * pixels, channels).
    positions : sequence of Value
        Positions along each dimension, (n, offset groups, ...) for ``n * offset groups`` images.
    """
    kind = tensor_type(positions[0])
    number = np.arange(int(np.prod(kind.shape[:2]))).reshape(*kind.shape[:2], *(1,) * (len(kind.shape) - 2))
    lower = [elementwise("floor", position) for position in positions]
    shares = [elementwise("subtract", position, low) for position, low in zip(positions, lower, strict=True)]
    total: Value | None = None
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        flat: Value = constant(number, "int64")
        weight: Value | None = None
        for axis, side in enumerate(corner):
            index = elementwise("add", lower[axis], float(side))
            last = float(sizes[axis] - 1)
            clamped = elementwise("minimum", elementwise("maximum", index, 0.0), last)
            share = shares[axis] if side else elementwise("subtract", constant(1, kind.dtype), shares[axis])
            share = where(elementwise("equal", index, clamped), share, constant(0, kind.dtype))
            weight = share if weight is None else elementwise("multiply", weight, share)
            flat = elementwise("add", elementwise("multiply", flat, sizes[axis]), cast(clamped, "int64"))
        assert weight is not None
        part = elementwise("multiply", take_slices(rows, flat, 0), reshape(weight, (*kind.shape, 1)))
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return total


READERS: dict[str, Convert] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DeformConv": _deformable_convolution,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
MICROSOFT: dict[str, Convert] = {"FusedMatMul": _fused_matmul, "TransposeMatMul": _fused_matmul}
