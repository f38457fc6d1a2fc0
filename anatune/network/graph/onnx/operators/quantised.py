"""Readers of quantised operators: numbers of 8 and 16 bits with scales and zero points, and exact integer products.

Integer products are computed in float32 while no sum exceeds its exact range; longer sums are split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from anatune.network.graph.building import (
    cast,
    constant,
    elementwise,
    permute,
    reduce_axes,
    reshape,
    slice_axes,
    take_constant_slices,
    take_slices,
    where,
)
from anatune.network.graph.einsums import product
from anatune.network.graph.integers.few_bits import GROUPS, scaled_product
from anatune.network.graph.integers.scaled import QuantisationScale, constant_scale, dequantize, quantize
from anatune.network.graph.meanings import pack_bits, unpack_bits
from anatune.network.graph.nodes import Array, Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError
from anatune.network.graph.onnx.operators import elements, moves, pools, products, reductions
from anatune.network.graph.onnx.operators.pools import windows_of
from anatune.network.graph.onnx.operators.products import convolve

__all__ = ["MICROSOFT", "READERS"]

_INTEGERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 12: "uint32"}
_FLOATS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""ONNX's numbers of dtypes."""
_EXACT = 1 << 24
"""The largest integer up to which float32 represents all integers."""
_MOST_PARTS = 64
_INT8 = 4
"""The accuracy level that allows activations of 8 bits."""


def _shape_scale(value: Value, shape: Sequence[int], axis: int, block: int) -> Value:
    """Return scales or zero points in a shape that broadcasts: one, one per index of an axis, or blocks."""
    value_shape = tensor_type(value).shape
    if math.prod(value_shape) == 1:
        return reshape(value, ())
    rank = len(shape)
    axis %= rank
    if block:
        return take_slices(value, constant(np.arange(shape[axis]) // block, "int64"), axis)
    if len(value_shape) != 1 or value_shape[0] != shape[axis]:
        raise RefusedError(f"has a scale {tensor_type(value)} for {shape[axis]} elements along axis {axis}")
    return reshape(value, [value_shape[0] if dimension == axis else 1 for dimension in range(rank)])


def _saturate(value: Value, dtype: str) -> Value:
    """Return rounded numbers as integers, clipped to the range of the dtype."""
    limits = np.iinfo(dtype)
    clipped = elementwise("minimum", elementwise("maximum", value, limits.min), limits.max)
    return cast(clipped, dtype)


def _quantise_elements(value: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """Return ``round(value / scale) + zero``, rounded half to even and clipped to the range of the dtype."""
    quotient = elementwise("round", elementwise("divide", value, scale))
    if zero is not None:
        quotient = elementwise("add", quotient, cast(zero, tensor_type(quotient).dtype))
    return _saturate(quotient, dtype)


def _quantise(value: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """Return quantised numbers: a single node if the scale is constant, else elementary operators."""
    fixed_scale = _constant_scale(scale, zero, dtype)
    if fixed_scale is None or tensor_type(value).dtype != "float32":
        return _quantise_elements(value, scale, zero, dtype)
    return quantize(value, fixed_scale, dtype)


def _dequantise(value: Value, scale: Value, zero: Value | None) -> Value:
    """Return dequantised float32 numbers: a single node if the scale is constant, else elementary operators."""
    fixed_scale = _constant_scale(scale, zero, tensor_type(value).dtype)
    if fixed_scale is not None:
        return dequantize(value, fixed_scale)
    if zero is not None and not (isinstance(zero, Constant) and not zero.array.any()):
        value = elementwise("subtract", cast(value, "int32"), cast(zero, "int32"))
    return elementwise("multiply", cast(value, "float32"), scale)


def _constant_scale(scale: Value, zero: Value | None, dtype: str) -> QuantisationScale | None:
    """Return the constant scale of integers, or None as `constant_scale` does."""
    try:
        return constant_scale(scale, zero, dtype)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _widen(value: Value) -> Value:
    """Return a value in float32, or unchanged if it is float64."""
    return value if tensor_type(value).dtype == "float64" else cast(value, "float32")


def _axis(call: OnnxCall) -> int:
    """Return the axis of scales; for vectors it is the first one for any value of the attribute."""
    axis: int = call.attributes.get("axis", 1)
    return axis if call.rank > 1 else 0


def _quantize(call: OnnxCall) -> Value:
    attrs, zero = call.attributes, call.get(2)
    kind = attrs.get("output_dtype", 0)
    if kind and kind not in _INTEGERS:
        raise RefusedError(f"quantises to ONNX type {kind}, expected integers of 8 bits or more")
    dtype = call.kind(2).dtype if zero is not None else _INTEGERS.get(kind, "uint8")
    if dtype not in _INTEGERS.values():
        raise RefusedError(f"quantises to {dtype}, expected integers of 8 bits or more")
    shape, axis, block = call.kind().shape, _axis(call), attrs.get("block_size", 0)
    precision = _FLOATS.get(attrs.get("precision", 0), "float32")
    scale = _shape_scale(call[1], shape, axis, block)
    data, scale = (cast(tensor, precision if precision == "float64" else "float32") for tensor in (call[0], scale))
    return _quantise(data, scale, None if zero is None else _shape_scale(zero, shape, axis, block), dtype)


def _dequantize(call: OnnxCall) -> Value:
    attrs, shape = call.attributes, call.kind().shape
    if not call.kind().dtype.startswith(("int", "uint")):
        raise RefusedError(f"dequantises {call.kind().dtype}, expected integers of 8 bits or more")
    axis, block, zero = _axis(call), attrs.get("block_size", 0), call.get(2)
    scale = _shape_scale(cast(call[1], "float32"), shape, axis, block)
    numbers = _dequantise(call[0], scale, None if zero is None else _shape_scale(zero, shape, axis, block))
    return cast(numbers, _FLOATS.get(attrs.get("output_dtype", 0), call.kind(1).dtype))


def _dynamic_quantize(call: OnnxCall) -> Sequence[Value]:
    """Return data quantised to uint8 with a scale and a zero point computed from its extremes and 0."""
    flat = reshape(call[0], (-1,))
    high = elementwise("maximum", reduce_axes("max", flat, None, keepdims=False), 0.0)
    low = elementwise("minimum", reduce_axes("min", flat, None, keepdims=False), 0.0)
    scale = elementwise("divide", elementwise("subtract", high, low), 255.0)
    # If all elements are zero, any scale maps them to the zero point.
    safe = elementwise("add", scale, cast(elementwise("equal", scale, 0.0), "float32"))
    zero = _saturate(elementwise("round", elementwise("divide", elementwise("negative", low), safe)), "uint8")
    return [_quantise_elements(call[0], safe, zero, "uint8"), scale, zero]


# ---- products ----


def _subtract_zero(value: Value, zero: Value | None, axis: int | None) -> Value:
    """Return int32 numbers minus their zero point, which may be one for each row or column along an axis."""
    value = cast(value, "int32")
    if zero is None:
        return value
    zero = cast(zero, "int32")
    if math.prod(tensor_type(zero).shape) == 1:
        zero = reshape(zero, ())
    elif axis is not None and len(tensor_type(zero).shape) == 1:
        rank = len(tensor_type(value).shape)
        zero = reshape(zero, [-1 if dimension == axis % rank else 1 for dimension in range(rank)])
    return elementwise("subtract", value, zero)


def _largest(value: Value, dtype: str) -> int:
    """Return a bound of the absolute value of integers of a dtype after their zero point is subtracted."""
    if isinstance(value, Constant):
        return int(np.abs(value.array.astype(np.int64)).max(initial=0))
    return (1 << np.iinfo(dtype).bits) - 1


def _exact_sum(length: int, bound: int, part: Callable[[int, int, str], Value]) -> Value:
    """Return exact int32 sums of `length` products of integers up to `bound`; `part` computes the sum of a range.

    If the exact range of float32 is too small, the whole sum is computed in float64.
    """
    most = max(1, _EXACT // max(1, bound))
    count = -(-length // most)
    if bound > _EXACT or count > _MOST_PARTS:
        return _wrap_int32(part(0, length, "float64"))
    most = -(-length // count) if count else 1
    total: Value | None = None
    for begin in range(0, max(1, length), most):
        part_sum = cast(part(begin, min(length, begin + most), "float32"), "int32")
        total = part_sum if total is None else elementwise("add", total, part_sum)
    assert total is not None
    return total


def _wrap_int32(value: Value) -> Value:
    """Return float64 numbers as int32, modulo 2**32."""
    return cast(cast(value, "int64"), "int32")


def _integer_matmul(first: Value, second: Value, bound: int) -> Value:
    """Return exact products of int32 matrices."""
    (*_, length), rank = tensor_type(first).shape, len(tensor_type(second).shape)
    axis = rank - 2 if rank > 1 else 0

    def part(begin: int, end: int, dtype: str) -> Value:
        left = slice_axes(first, [len(tensor_type(first).shape) - 1], [begin], [end])
        return product(cast(left, dtype), cast(slice_axes(second, [axis], [begin], [end]), dtype))

    return _exact_sum(length, bound, part)


def _matmul_integer(call: OnnxCall) -> Value:
    """Return products of integers in int32; zero points may belong to rows of the first and columns of the second."""
    first = _subtract_zero(call[0], call.get(2), -2)
    second = _subtract_zero(call[1], call.get(3), -1)
    bound = _largest(first, call.kind(0).dtype) * _largest(second, call.kind(1).dtype)
    result = _integer_matmul(first, second, bound)
    return (
        cast(result, "uint32")
        if call.op == "MatMulInteger16" and call.kind(0).dtype == call.kind(1).dtype == "uint16"
        else result
    )


def _integer_convolution(call: OnnxCall, data: Value, weight: Value, bound: int) -> Value:
    """Return an exact convolution of int32 numbers."""
    (_, channels, *taps), groups = tensor_type(weight).shape, call.attributes["group"]
    windows, each = windows_of(call, taps), math.prod(taps)
    if groups > 1 and channels * each * bound > _EXACT:
        return _wrap_int32(convolve(cast(data, "float64"), cast(weight, "float64"), None, windows, groups))

    def part(begin: int, end: int, dtype: str) -> Value:
        weight_part = weight if end - begin == channels else slice_axes(weight, [1], [begin], [end])
        data_part = data if end - begin == channels else slice_axes(data, [1], [begin], [end])
        return convolve(cast(data_part, dtype), cast(weight_part, dtype), None, windows, groups)

    return _exact_sum(channels, bound * each, part)


def _convolution_integer(call: OnnxCall) -> Value:
    data, weight = _subtract_zero(call[0], call.get(2), None), _subtract_zero(call[1], call.get(3), 0)
    bound = _largest(data, call.kind(0).dtype) * _largest(weight, call.kind(1).dtype)
    return _integer_convolution(call, data, weight, bound)


# ---- operators on quantised tensors: dequantise, apply the operator, quantise ----


def _operand(call: OnnxCall, index: int, axis: int = 0) -> Value:
    """Return a dequantised operand, whose scale and zero point follow it; several scales lie along an axis."""
    shape, zero = call.kind(index).shape, call.get(index + 2)
    scale = _shape_scale(cast(call[index + 1], "float32"), shape, axis, 0)
    return _dequantise(call[index], scale, None if zero is None else _shape_scale(zero, shape, axis, 0))


def _requantise(call: OnnxCall, value: Value, index: int) -> Value:
    """Return numbers quantised with a scale and a zero point that are operands, or unchanged without a scale."""
    scale, zero = call.get(index), call.get(index + 1)
    if scale is None:
        return value
    shape = tensor_type(value).shape
    dtype = call.kind().dtype if zero is None else tensor_type(zero).dtype
    scale = _shape_scale(cast(scale, "float32"), shape, -1, 0)
    return _quantise(value, scale, None if zero is None else _shape_scale(zero, shape, -1, 0), dtype)


def _apply(call: OnnxCall, op: str, *operands: Value | None, **defaults: object) -> Value:
    """Return the result of an operator of the standard on other operands; `defaults` are those of its attributes."""
    attributes = call.attributes.with_defaults(defaults)
    opset = call.attributes.get("opset", _OPSET)
    results = _STANDARD[op](replace(call, op=op, opset=opset, inputs=operands, attributes=attributes, outputs=("",)))
    return results if isinstance(results, Value) else results[0]


def _quantised_convolution(call: OnnxCall) -> Value:
    """Return a convolution with a bias in units of the scale of the products."""
    bias = None
    if call.get(8) is not None:
        unit = elementwise("multiply", *(reshape(cast(call[place], "float32"), (-1,)) for place in (1, 4)))
        bias = elementwise("multiply", cast(call[8], "float32"), unit)
    result = _requantise(
        call, _apply(call, "Conv", _channels_first(call, _operand(call, 0)), _operand(call, 3), bias), 6
    )
    return _channels_first(call, result, turns_back=True)


def _quantised_gemm(call: OnnxCall) -> Value:
    """Return ``alpha a b + c`` with ``c`` in units of the scale of the products."""
    term = None
    if call.get(6) is not None:
        unit = elementwise("multiply", *(reshape(cast(call[place], "float32"), (-1,)) for place in (1, 4)))
        unit = elementwise("multiply", unit, call.attributes["alpha"])
        term = elementwise("multiply", cast(call[6], "float32"), unit)
    columns = 0 if call.attributes["transB"] else 1
    return _requantise(call, _apply(call, "Gemm", _operand(call, 0), _operand(call, 3, columns), term, beta=1.0), 7)


def _quantised_matmul(call: OnnxCall) -> Value:
    return _requantise(call, _apply(call, "MatMul", _operand(call, 0, -2), _operand(call, 3, -1)), 6)


def _read_pair(op: str) -> Convert:
    """Return a reader of an operator on two quantised tensors."""
    return lambda call: _requantise(call, _apply(call, op, _operand(call, 0), _operand(call, 3)), 6)


def _read_one(op: str) -> Callable[[OnnxCall], Value]:
    """Return a reader of an operator on a quantised tensor."""

    def read(call: OnnxCall) -> Value:
        result = _requantise(call, _apply(call, op, _channels_first(call, _operand(call, 0))), 3)
        return _channels_first(call, result, turns_back=True)

    return read


def _quantised_average_pool(call: OnnxCall) -> Value:
    if call.attributes["ceil_mode"] and call.attributes["count_include_pad"]:
        raise RefusedError("counts padding after the last windows (ceil_mode), expected count_include_pad 0")
    return _read_one("AveragePool")(call)


def _channels_first(call: OnnxCall, value: Value, *, turns_back: bool = False) -> Value:
    """Return a tensor with channels first, if the node has them last; with `turns_back` the inverse."""
    rank = call.rank
    if not call.attributes.get("channels_last"):
        return value
    return permute(value, (0, *range(2, rank), 1) if turns_back else (0, rank - 1, *range(1, rank - 1)))


def _quantised_concat(call: OnnxCall) -> Value:
    """Return concatenated tensors; operands are the scale and zero point of the result, then each tensor with its."""
    parts = [_operand(call, place) for place in range(2, len(call.inputs), 3)]
    joined = _apply(replace(call, inputs=call.inputs[2:]), "Concat", *parts)
    zero = call[1]
    return _quantise(joined, reshape(cast(call[0], "float32"), ()), reshape(zero, ()), tensor_type(zero).dtype)


def _quantised_where(call: OnnxCall) -> Value:
    selected = where(call[0], _operand(call, 1), _operand(call, 4))
    return _quantise(selected, reshape(call[7], ()), reshape(call[8], ()), tensor_type(call[8]).dtype)


_STANDARD: dict[str, Convert] = {**elements.READERS, **moves.READERS, **pools.READERS, **products.READERS,
                              **reductions.READERS}  # fmt: skip
_OPSET = 13
"""The version of the standard's operators that replace onnxruntime's; their axes are attributes in it."""


def _few_bits_matmul(call: OnnxCall) -> Value:
    """Return the product with a quantised matrix (``MatMulNBits``).

    Operands are data (..., k), packed weights (columns, blocks, bytes of a block), a scale for each block, zero points
    (packed likewise, or numbers), the group of each row (g_idx), and a bias. Rows of a group are made adjacent, and so
    are the columns of the data. Weights without a kernel are unpacked here.
    """
    attrs = call.attributes
    length, columns, block = (attrs[name] for name in ("K", "N", "block_size"))
    bits = attrs["bits"]
    if bits not in (2, 4, 8):
        raise RefusedError(f"has weights of {bits} bits, expected 2, 4 or 8")
    blocks, data = -(-length // block), _widen(call[0])
    packed = call.constant_values(1, "the weights").reshape(columns, -1)
    groups = np.arange(length) // block
    if call.get(4) is not None:
        groups = call.constant_values(4, "the groups").reshape(-1)[:length]
        if groups.size != length or groups.min() < 0 or groups.max() >= blocks:
            raise RefusedError(
                f"has groups (g_idx) of {groups.size} rows, expected one below {blocks} for each of {length} rows"
            )
        if bits in (4, 8) and np.array_equal(np.bincount(groups), [block] * blocks):
            order = np.argsort(groups, kind="stable")
            numbers, groups = unpack_bits(packed, bits)[:, order], groups[order]
            packed = pack_bits(numbers, bits)
            data = take_constant_slices(data, order, -1)
    is_sorted = bool(np.all(np.diff(groups) >= 0))
    scales = call.constant_values(2, "the scales").reshape(columns, blocks).astype(np.float32)
    if not np.isfinite(scales).all():
        raise RefusedError("has scales that are not finite, expected finite numbers")
    zeros: Array | None = None
    if call.get(3) is not None:
        zero = call.constant_values(3, "the zero points")
        is_packed = zero.dtype == np.uint8
        zeros = unpack_bits(zero.reshape(columns, -1), bits)[:, :blocks] if is_packed else zero.reshape(columns, blocks)
    is_whole = zeros is None or zeros.dtype == np.uint8
    if bits in (4, 8) and is_whole and is_sorted and block in GROUPS and length % block == 0:
        result = scaled_product(data, packed, scales, zeros, bits=bits, rounded=attrs["accuracy_level"] == _INT8)
    else:
        subtracted = np.float32(1 << (bits - 1)) if zeros is None else zeros[:, groups].astype(np.float32)
        matrix = (unpack_bits(packed, bits)[:, :length].astype(np.float32) - subtracted) * scales[:, groups]
        result = product(data, Constant(np.ascontiguousarray(matrix.T)))
    if call.get(5) is not None:
        result = elementwise("add", result, _widen(call[5]))
    return cast(result, call.kind().dtype)


READERS: dict[str, Convert] = {
    "ConvInteger": _convolution_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _quantised_convolution,
    "QLinearMatMul": _quantised_matmul,
    "QuantizeLinear": _quantize,
}
MICROSOFT: dict[str, Convert] = {
    "DequantizeLinear": _dequantize,
    "MatMulInteger16": _matmul_integer,
    "MatMulNBits": _few_bits_matmul,
    "QGemm": _quantised_gemm,
    "QLinearAdd": _read_pair("Add"),
    "QLinearAveragePool": _quantised_average_pool,
    "QLinearConcat": _quantised_concat,
    "QLinearConv": _quantised_convolution,
    "QLinearGlobalAveragePool": _read_one("GlobalAveragePool"),
    "QLinearLeakyRelu": _read_one("LeakyRelu"),
    "QLinearMul": _read_pair("Mul"),
    "QLinearReduceMean": _read_one("ReduceMean"),
    "QLinearSigmoid": _read_one("Sigmoid"),
    "QLinearSoftmax": _read_one("Softmax"),
    "QLinearWhere": _quantised_where,
    "QuantizeLinear": _quantize,
}
