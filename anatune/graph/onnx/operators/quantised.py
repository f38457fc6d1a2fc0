"""Numbers of 8 and 16 bits with scales and zero points: conversions, and products of them, exact until they are scaled.

Products of small integers are products of float32 while no sum exceeds what float32 counts; longer sums are several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from anatune.graph.building import (
    cast,
    constant,
    elementwise,
    reduced,
    reshape,
    sliced,
    taken,
)
from anatune.graph.einsums import product
from anatune.graph.meanings import unpacked
from anatune.graph.nodes import Array, Constant, Value, tensor_type
from anatune.graph.onnx.call import Call, Convert, RefusedError
from anatune.graph.onnx.operators.pools import windows_of
from anatune.graph.onnx.operators.products import convolved
from anatune.graph.scaled import GROUPS, scaled_product

__all__ = ["READERS"]

_INTEGERS = {2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 12: "uint32"}
_FLOATS = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}
"""ONNX's numbers of dtypes."""
_EXACT = 1 << 24
"""Integers up to here are numbers of float32."""
_MOST_PARTS = 64
_INT8 = 4
"""The accuracy level that allows activations of 8 bits."""


def _spread(value: Value, shape: Sequence[int], axis: int, block: int) -> Value:
    """Return scales or zero points as they are broadcast along data: one, along an axis, or of blocks along it."""
    own = tensor_type(value).shape
    if math.prod(own) == 1:
        return reshape(value, ())
    rank = len(shape)
    axis %= rank
    if block:
        return taken(value, constant(np.arange(shape[axis]) // block, "int64"), axis)
    if len(own) != 1 or own[0] != shape[axis]:
        raise RefusedError(f"has {tensor_type(value)} for {shape[axis]} elements along axis {axis}")
    return reshape(value, [own[0] if place == axis else 1 for place in range(rank)])


def _saturated(value: Value, dtype: str) -> Value:
    """Return rounded numbers as integers, cut off at the ends of the dtype."""
    limits = np.iinfo(dtype)
    cut = elementwise("minimum", elementwise("maximum", value, limits.min), limits.max)
    return cast(cut, dtype)


def _quantised(value: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """Return ``round(value / scale) + zero``, halves to even, cut off at the ends of the dtype."""
    found = elementwise("round", elementwise("divide", value, scale))
    if zero is not None:
        found = elementwise("add", found, cast(zero, tensor_type(found).dtype))
    return _saturated(found, dtype)


def _wide(value: Value) -> Value:
    """Return numbers in float32, or in float64 where they are."""
    return value if tensor_type(value).dtype == "float64" else cast(value, "float32")


def _quantize(call: Call) -> Value:
    own, zero = call.attributes, call.get(2)
    kind = own.get("output_dtype", 0)
    if kind and kind not in _INTEGERS:
        raise RefusedError(f"converts to type {kind} of ONNX, expected integers of 8 bits or more")
    dtype = call.kind(2).dtype if zero is not None else _INTEGERS.get(kind, "uint8")
    if dtype not in _INTEGERS.values():
        raise RefusedError(f"converts to {dtype}, expected integers of 8 bits or more")
    shape, axis, block = call.kind().shape, own.get("axis", 1), own.get("block_size", 0)
    axis = axis if call.rank > 1 else 0
    precision = _FLOATS.get(own.get("precision", 0), "float32")
    scale = _spread(call[1], shape, axis, block)
    data, scale = (cast(one, precision if precision == "float64" else "float32") for one in (call[0], scale))
    return _quantised(data, scale, None if zero is None else _spread(zero, shape, axis, block), dtype)


def _dequantize(call: Call) -> Value:
    own, shape = call.attributes, call.kind().shape
    if not call.kind().dtype.startswith(("int", "uint")):
        raise RefusedError(f"converts from {call.kind().dtype}, expected integers of 8 bits or more")
    axis, block = own.get("axis", 1) if call.rank > 1 else 0, own.get("block_size", 0)
    data, zero = call[0], call.get(2)
    if zero is not None and not (isinstance(zero, Constant) and not zero.array.any()):
        data = elementwise("subtract", cast(data, "int32"), _spread(cast(zero, "int32"), shape, axis, block))
    found = elementwise("multiply", cast(data, "float32"), _spread(cast(call[1], "float32"), shape, axis, block))
    return cast(found, _FLOATS.get(own.get("output_dtype", 0), call.kind(1).dtype))


def _dynamically_quantized(call: Call) -> Sequence[Value]:
    """Return data as uint8, whose scale and zero point come from its extremes and 0."""
    flat = reshape(call[0], (-1,))
    high = elementwise("maximum", reduced("max", flat, None, keepdims=False), 0.0)
    low = elementwise("minimum", reduced("min", flat, None, keepdims=False), 0.0)
    scale = elementwise("divide", elementwise("subtract", high, low), 255.0)
    # Of nothing but zeros: any scale makes them the zero point.
    safe = elementwise("add", scale, cast(elementwise("equal", scale, 0.0), "float32"))
    zero = _saturated(elementwise("round", elementwise("divide", elementwise("negative", low), safe)), "uint8")
    return [_quantised(call[0], safe, zero, "uint8"), scale, zero]


# ---- products ----


def _centred(value: Value, zero: Value | None, axis: int | None) -> Value:
    """Return int32 numbers without their zero point: one, or of each row or column along an axis."""
    value = cast(value, "int32")
    if zero is None:
        return value
    zero = cast(zero, "int32")
    if math.prod(tensor_type(zero).shape) == 1:
        zero = reshape(zero, ())
    elif axis is not None and len(tensor_type(zero).shape) == 1:
        rank = len(tensor_type(value).shape)
        zero = reshape(zero, [-1 if place == axis % rank else 1 for place in range(rank)])
    return elementwise("subtract", value, zero)


def _largest(value: Value, dtype: str) -> int:
    """Return a bound of integers without their zero point, which were of a dtype."""
    if isinstance(value, Constant):
        return int(np.abs(value.array.astype(np.int64)).max(initial=0))
    return (1 << np.iinfo(dtype).bits) - 1


def _exact(length: int, bound: int, part: Callable[[int, int, str], Value]) -> Value:
    """Return sums of `length` products of integers up to `bound`, in int32; `part` is those from one to another.

    Where float32 counts too few of them, all are computed in float64.
    """
    most = max(1, _EXACT // max(1, bound))
    count = -(-length // most)
    if bound > _EXACT or count > _MOST_PARTS:
        return _whole(part(0, length, "float64"))
    most = -(-length // count) if count else 1
    total: Value | None = None
    for begin in range(0, max(1, length), most):
        one = cast(part(begin, min(length, begin + most), "float32"), "int32")
        total = one if total is None else elementwise("add", total, one)
    assert total is not None
    return total


def _whole(value: Value) -> Value:
    """Return float64 numbers in int32, without what is above its 32 bits."""
    return cast(cast(value, "int64"), "int32")


def _integer_matmul(first: Value, second: Value, bound: int) -> Value:
    """Return products of int32 matrices, exactly."""
    (*_, length), rank = tensor_type(first).shape, len(tensor_type(second).shape)
    axis = rank - 2 if rank > 1 else 0

    def part(begin: int, end: int, dtype: str) -> Value:
        left = sliced(first, [len(tensor_type(first).shape) - 1], [begin], [end])
        return product(cast(left, dtype), cast(sliced(second, [axis], [begin], [end]), dtype))

    return _exact(length, bound, part)


def _matmul_integer(call: Call) -> Value:
    """Return products of integers in int32; zero points may be of rows of the first, and columns of the second."""
    first = _centred(call[0], call.get(2), -2)
    second = _centred(call[1], call.get(3), -1)
    bound = _largest(first, call.kind(0).dtype) * _largest(second, call.kind(1).dtype)
    found = _integer_matmul(first, second, bound)
    return (
        cast(found, "uint32")
        if call.op == "MatMulInteger16" and call.kind(0).dtype == call.kind(1).dtype == "uint16"
        else found
    )


def _integer_convolution(call: Call, data: Value, weight: Value, bound: int) -> Value:
    """Return a convolution of int32 numbers, exactly."""
    (_, channels, *taps), groups = tensor_type(weight).shape, call.attributes["group"]
    windows, each = windows_of(call, taps), math.prod(taps)
    if groups > 1 and channels * each * bound > _EXACT:
        return _whole(convolved(cast(data, "float64"), cast(weight, "float64"), None, windows, groups))

    def part(begin: int, end: int, dtype: str) -> Value:
        own = weight if end - begin == channels else sliced(weight, [1], [begin], [end])
        read = data if end - begin == channels else sliced(data, [1], [begin], [end])
        return convolved(cast(read, dtype), cast(own, dtype), None, windows, groups)

    return _exact(channels, bound * each, part)


def _convolution_integer(call: Call) -> Value:
    data, weight = _centred(call[0], call.get(2), None), _centred(call[1], call.get(3), 0)
    bound = _largest(data, call.kind(0).dtype) * _largest(weight, call.kind(1).dtype)
    return _integer_convolution(call, data, weight, bound)


def _rescaled(total: Value, scales: Sequence[Value], zero: Value | None, dtype: str) -> Value:
    """Return sums times the scales of both operands over that of the result, as integers with a zero point."""
    factor = elementwise("divide", elementwise("multiply", scales[0], scales[1]), scales[2])
    found = elementwise("round", elementwise("multiply", cast(total, "float32"), factor))
    if zero is not None:
        found = elementwise("add", found, cast(reshape(zero, ()), "float32"))
    return _saturated(found, dtype)


def _scale(value: Value, shape: Sequence[int]) -> Value:
    """Return a scale of each element along an axis in a shape; of one, as a number."""
    value = cast(value, "float32")
    own = tensor_type(value).shape
    return reshape(value, ()) if math.prod(own) == 1 else value if len(own) > 1 else reshape(value, shape)


def _matmul_scaled(call: Call) -> Value:
    """Return products of scaled integers as scaled integers: ``a, scale, zero, b, scale, zero, scale, zero``."""
    first, second = _centred(call[0], call.get(2), -2), _centred(call[3], call.get(5), -1)
    bound = _largest(first, call.kind(0).dtype) * _largest(second, call.kind(3).dtype)
    scales = [_scale(call[1], (-1, 1)), _scale(call[4], (-1,)), _scale(call[6], (-1,))]
    zero = call.get(7)
    dtype = call.kind().dtype if zero is None else tensor_type(zero).dtype
    return _rescaled(_integer_matmul(first, second, bound), scales, zero, dtype)


def _convolution_scaled(call: Call) -> Value:
    """Return a convolution of scaled integers as scaled integers, its bias added to the sums."""
    data, weight = _centred(call[0], call.get(2), None), _centred(call[3], call.get(5), 0)
    bound = _largest(data, call.kind(0).dtype) * _largest(weight, call.kind(3).dtype)
    total = _integer_convolution(call, data, weight, bound)
    along = (-1, *(1,) * (call.rank - 2))
    if call.get(8) is not None:
        total = elementwise("add", total, reshape(cast(call[8], "int32"), along))
    scales = [_scale(call[1], ()), _scale(call[4], along), _scale(call[6], ())]
    zero = call.get(7)
    return _rescaled(total, scales, zero, call.kind().dtype if zero is None else tensor_type(zero).dtype)


# ---- onnxruntime's ----


def _plain(value: Value, scale: Value, zero: Value | None) -> Value:
    """Return scaled integers as float32."""
    return elementwise("multiply", cast(_centred(value, zero, None), "float32"), reshape(cast(scale, "float32"), ()))


def _pair(word: str) -> Convert:
    """Return what reads an operator on two scaled tensors: ``a, scale, zero, b, scale, zero, scale, zero``."""

    def read(call: Call) -> Value:
        first, second = (_plain(call[place], call[place + 1], call.get(place + 2)) for place in (0, 3))
        found = elementwise(word, first, second)
        zero = call.get(7)
        return _quantised(found, reshape(call[6], ()), None if zero is None else reshape(zero, ()), call.kind().dtype)

    return read


def _scaled_function(call: Call) -> Value:
    """Return a function of scaled integers: ``x, scale, zero, scale, zero``."""
    x = _plain(call[0], call[1], call.get(2))
    if call.op == "QLinearSigmoid":
        found = elementwise("sigmoid", x)
    else:
        found = elementwise("maximum", x, elementwise("multiply", x, call.attributes.get("alpha", 0.01)))
    zero = call.get(4)
    return _quantised(found, reshape(call[3], ()), None if zero is None else reshape(zero, ()), call.kind().dtype)


def _matmul_of_bits(call: Call) -> Value:
    """Return products with a matrix of few bits (``MatMulNBits``).

    Operands are data (..., k), packed weights (columns, blocks, bytes of a block), a scale of each block, zero points
    (packed likewise, or numbers), places of groups, and a bias. What no kernel takes is unpacked here.
    """
    own = call.attributes
    length, columns, bits, block = (own[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise RefusedError(f"has weights of {bits} bits, expected 2, 4 or 8")
    if call.get(4) is not None:
        raise RefusedError("has its rows in another order (g_idx), expected blocks of neighbouring ones")
    blocks = -(-length // block)
    packed = call.known(1, "the weights").reshape(columns, -1)
    scales = call.known(2, "the scales").reshape(columns, blocks).astype(np.float32)
    if not np.isfinite(scales).all():
        raise RefusedError("has scales that are not finite, expected numbers")
    zeros: Array | None = None
    if call.get(3) is not None:
        given = call.known(3, "the zero points")
        is_packed = given.dtype == np.uint8
        zeros = unpacked(given.reshape(columns, -1), bits)[:, :blocks] if is_packed else given.reshape(columns, blocks)
    is_whole = zeros is None or zeros.dtype == np.uint8
    if bits in (4, 8) and is_whole and block in GROUPS and length % block == 0:
        found = scaled_product(
            _wide(call[0]), packed, scales, zeros, bits=bits, rounded=own.get("accuracy_level", 0) == _INT8
        )
    else:
        less = np.float32(1 << (bits - 1)) if zeros is None else zeros[..., None].astype(np.float32)
        whole = unpacked(packed, bits).reshape(columns, blocks, -1)[:, :, :block]
        matrix = ((whole.astype(np.float32) - less) * scales[..., None]).reshape(columns, -1)[:, :length]
        found = product(_wide(call[0]), Constant(np.ascontiguousarray(matrix.T)))
    if call.get(5) is not None:
        found = elementwise("add", found, _wide(call[5]))
    return cast(found, call.kind().dtype)


READERS: dict[str, Convert] = {
    "ConvInteger": _convolution_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamically_quantized,
    "MatMulInteger": _matmul_integer,
    "MatMulInteger16": _matmul_integer,
    "MatMulNBits": _matmul_of_bits,
    "QLinearAdd": _pair("add"),
    "QLinearConv": _convolution_scaled,
    "QLinearLeakyRelu": _scaled_function,
    "QLinearMatMul": _matmul_scaled,
    "QLinearMul": _pair("multiply"),
    "QLinearSigmoid": _scaled_function,
    "QuantizeLinear": _quantize,
}
