"""Numbers of 8 and 16 bits with scales and zero points: conversions, operators on them, and exact products of integers.

Products of small integers are products of float32 while no sum exceeds what float32 counts; longer sums are several.
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
    reduced,
    reshape,
    sliced,
    taken,
    taken_at,
    where,
)
from anatune.network.graph.einsums import product
from anatune.network.graph.integers.few_bits import GROUPS, scaled_product
from anatune.network.graph.integers.scaled import Scale, dequantized, known_scale, quantized
from anatune.network.graph.meanings import pack_bits, unpacked
from anatune.network.graph.nodes import Array, Constant, Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError
from anatune.network.graph.onnx.operators import elements, moves, pools, products, reductions
from anatune.network.graph.onnx.operators.pools import windows_of
from anatune.network.graph.onnx.operators.products import convolved

__all__ = ["MICROSOFT", "READERS"]

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


def _integers(value: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """Return numbers as integers: a node of its own where the scale is known, else spelt."""
    known = _known(scale, zero, dtype)
    if known is None or tensor_type(value).dtype != "float32":
        return _quantised(value, scale, zero, dtype)
    return quantized(value, known, dtype)


def _numbers(value: Value, scale: Value, zero: Value | None) -> Value:
    """Return integers as float32 numbers, as `_integers`."""
    known = _known(scale, zero, tensor_type(value).dtype)
    if known is not None:
        return dequantized(value, known)
    if zero is not None and not (isinstance(zero, Constant) and not zero.array.any()):
        value = elementwise("subtract", cast(value, "int32"), cast(zero, "int32"))
    return elementwise("multiply", cast(value, "float32"), scale)


def _known(scale: Value, zero: Value | None, dtype: str) -> Scale | None:
    """Return the scale of integers; None: `known_scale`."""
    try:
        return known_scale(scale, zero, dtype)
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _wide(value: Value) -> Value:
    """Return numbers in float32, or in float64 where they are."""
    return value if tensor_type(value).dtype == "float64" else cast(value, "float32")


def _axis(call: Call) -> int:
    """Return the axis of scales; vectors have no other one than the first, which makes their attribute meaningless."""
    axis: int = call.attributes.get("axis", 1)
    return axis if call.rank > 1 else 0


def _quantize(call: Call) -> Value:
    own, zero = call.attributes, call.get(2)
    kind = own.get("output_dtype", 0)
    if kind and kind not in _INTEGERS:
        raise RefusedError(f"converts to type {kind} of ONNX, expected integers of 8 bits or more")
    dtype = call.kind(2).dtype if zero is not None else _INTEGERS.get(kind, "uint8")
    if dtype not in _INTEGERS.values():
        raise RefusedError(f"converts to {dtype}, expected integers of 8 bits or more")
    shape, axis, block = call.kind().shape, _axis(call), own.get("block_size", 0)
    precision = _FLOATS.get(own.get("precision", 0), "float32")
    scale = _spread(call[1], shape, axis, block)
    data, scale = (cast(one, precision if precision == "float64" else "float32") for one in (call[0], scale))
    return _integers(data, scale, None if zero is None else _spread(zero, shape, axis, block), dtype)


def _dequantize(call: Call) -> Value:
    own, shape = call.attributes, call.kind().shape
    if not call.kind().dtype.startswith(("int", "uint")):
        raise RefusedError(f"converts from {call.kind().dtype}, expected integers of 8 bits or more")
    axis, block, zero = _axis(call), own.get("block_size", 0), call.get(2)
    scale = _spread(cast(call[1], "float32"), shape, axis, block)
    found = _numbers(call[0], scale, None if zero is None else _spread(zero, shape, axis, block))
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


# ---- operators on scaled integers: convert, compute as the operator on numbers does, convert back ----


def _at(call: Call, place: int, axis: int = 0) -> Value:
    """Return an operand, its scale and zero point behind it, as numbers; several scales lie along an axis."""
    shape, zero = call.kind(place).shape, call.get(place + 2)
    scale = _spread(cast(call[place + 1], "float32"), shape, axis, 0)
    return _numbers(call[place], scale, None if zero is None else _spread(zero, shape, axis, 0))


def _back(call: Call, value: Value, place: int) -> Value:
    """Return numbers as integers whose scale and zero point are operands; without a scale as they are."""
    scale, zero = call.get(place), call.get(place + 1)
    if scale is None:
        return value
    shape = tensor_type(value).shape
    dtype = call.kind().dtype if zero is None else tensor_type(zero).dtype
    scale = _spread(cast(scale, "float32"), shape, -1, 0)
    return _integers(value, scale, None if zero is None else _spread(zero, shape, -1, 0), dtype)


def _as(call: Call, op: str, *operands: Value | None, **own: object) -> Value:
    """Return what an operator of the standard computes of other operands; `own`: its attributes where it has none."""
    attributes = call.attributes.with_defaults(own)
    opset = call.attributes.get("opset", _OPSET)
    made = _PLAIN[op](replace(call, op=op, opset=opset, inputs=operands, attributes=attributes, outputs=("",)))
    return made if isinstance(made, Value) else made[0]


def _convolution_scaled(call: Call) -> Value:
    """Return a convolution, its bias in units of the products' scale."""
    bias = None
    if call.get(8) is not None:
        unit = elementwise("multiply", *(reshape(cast(call[place], "float32"), (-1,)) for place in (1, 4)))
        bias = elementwise("multiply", cast(call[8], "float32"), unit)
    found = _back(call, _as(call, "Conv", _channels_first(call, _at(call, 0)), _at(call, 3), bias), 6)
    return _channels_first(call, found, turns_back=True)


def _gemm_scaled(call: Call) -> Value:
    """Return ``alpha a b + c``, the last in units of the products' scale."""
    term = None
    if call.get(6) is not None:
        unit = elementwise("multiply", *(reshape(cast(call[place], "float32"), (-1,)) for place in (1, 4)))
        unit = elementwise("multiply", unit, call.attributes["alpha"])
        term = elementwise("multiply", cast(call[6], "float32"), unit)
    columns = 0 if call.attributes["transB"] else 1
    return _back(call, _as(call, "Gemm", _at(call, 0), _at(call, 3, columns), term, beta=1.0), 7)


def _matmul_scaled(call: Call) -> Value:
    return _back(call, _as(call, "MatMul", _at(call, 0, -2), _at(call, 3, -1)), 6)


def _pair(op: str) -> Convert:
    """Return what reads an operator on two scaled tensors."""
    return lambda call: _back(call, _as(call, op, _at(call, 0), _at(call, 3)), 6)


def _one(op: str) -> Callable[[Call], Value]:
    """Return what reads an operator on a scaled tensor."""

    def read(call: Call) -> Value:
        found = _back(call, _as(call, op, _channels_first(call, _at(call, 0))), 3)
        return _channels_first(call, found, turns_back=True)

    return read


def _average_pool_scaled(call: Call) -> Value:
    if call.attributes["ceil_mode"] and call.attributes["count_include_pad"]:
        raise RefusedError("counts padding behind the last windows (ceil_mode), expected count_include_pad 0")
    return _one("AveragePool")(call)


def _channels_first(call: Call, value: Value, *, turns_back: bool = False) -> Value:
    """Return a tensor whose channels lie last, where the node says so, with them behind the batch; or turn it back."""
    rank = call.rank
    if not call.attributes.get("channels_last"):
        return value
    return permute(value, (0, *range(2, rank), 1) if turns_back else (0, rank - 1, *range(1, rank - 1)))


def _concat_scaled(call: Call) -> Value:
    """Return tensors behind each other: ``scale, zero``, then each with its own."""
    parts = [_at(call, place) for place in range(2, len(call.inputs), 3)]
    found = _as(replace(call, inputs=call.inputs[2:]), "Concat", *parts)
    zero = call[1]
    return _integers(found, reshape(cast(call[0], "float32"), ()), reshape(zero, ()), tensor_type(zero).dtype)


def _where_scaled(call: Call) -> Value:
    found = where(call[0], _at(call, 1), _at(call, 4))
    return _integers(found, reshape(call[7], ()), reshape(call[8], ()), tensor_type(call[8]).dtype)


_PLAIN: dict[str, Convert] = {**elements.READERS, **moves.READERS, **pools.READERS, **products.READERS,
                              **reductions.READERS}  # fmt: skip
_OPSET = 13
"""Of operators of the standard in place of onnxruntime's: their axes are attributes then."""


def _matmul_of_bits(call: Call) -> Value:
    """Return products with a matrix of few bits (``MatMulNBits``).

    Operands are data (..., k), packed weights (columns, blocks, bytes of a block), a scale of each block, zero points
    (packed likewise, or numbers), each row's group (g_idx), and a bias. Rows of a group become neighbours, and so do
    the data's columns; what no kernel takes is unpacked here.
    """
    own = call.attributes
    length, columns, block = (own[name] for name in ("K", "N", "block_size"))
    bits = own["bits"]
    if bits not in (2, 4, 8):
        raise RefusedError(f"has weights of {bits} bits, expected 2, 4 or 8")
    blocks, data = -(-length // block), _wide(call[0])
    packed = call.known(1, "the weights").reshape(columns, -1)
    groups = np.arange(length) // block
    if call.get(4) is not None:
        groups = call.known(4, "the groups").reshape(-1)[:length]
        if groups.size != length or groups.min() < 0 or groups.max() >= blocks:
            raise RefusedError(
                f"has groups (g_idx) of {groups.size} rows, expected one below {blocks} for each of {length}"
            )
        if bits in (4, 8) and np.array_equal(np.bincount(groups), [block] * blocks):
            order = np.argsort(groups, kind="stable")
            numbers, groups = unpacked(packed, bits)[:, order], groups[order]
            packed = pack_bits(numbers, bits)
            data = taken_at(data, order, -1)
    is_apart = bool(np.all(np.diff(groups) >= 0))
    scales = call.known(2, "the scales").reshape(columns, blocks).astype(np.float32)
    if not np.isfinite(scales).all():
        raise RefusedError("has scales that are not finite, expected numbers")
    zeros: Array | None = None
    if call.get(3) is not None:
        given = call.known(3, "the zero points")
        is_packed = given.dtype == np.uint8
        zeros = unpacked(given.reshape(columns, -1), bits)[:, :blocks] if is_packed else given.reshape(columns, blocks)
    is_whole = zeros is None or zeros.dtype == np.uint8
    if bits in (4, 8) and is_whole and is_apart and block in GROUPS and length % block == 0:
        found = scaled_product(data, packed, scales, zeros, bits=bits, rounded=own["accuracy_level"] == _INT8)
    else:
        less = np.float32(1 << (bits - 1)) if zeros is None else zeros[:, groups].astype(np.float32)
        matrix = (unpacked(packed, bits)[:, :length].astype(np.float32) - less) * scales[:, groups]
        found = product(data, Constant(np.ascontiguousarray(matrix.T)))
    if call.get(5) is not None:
        found = elementwise("add", found, _wide(call[5]))
    return cast(found, call.kind().dtype)


READERS: dict[str, Convert] = {
    "ConvInteger": _convolution_integer,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamically_quantized,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _convolution_scaled,
    "QLinearMatMul": _matmul_scaled,
    "QuantizeLinear": _quantize,
}
MICROSOFT: dict[str, Convert] = {
    "DequantizeLinear": _dequantize,
    "MatMulInteger16": _matmul_integer,
    "MatMulNBits": _matmul_of_bits,
    "QGemm": _gemm_scaled,
    "QLinearAdd": _pair("Add"),
    "QLinearAveragePool": _average_pool_scaled,
    "QLinearConcat": _concat_scaled,
    "QLinearConv": _convolution_scaled,
    "QLinearGlobalAveragePool": _one("GlobalAveragePool"),
    "QLinearLeakyRelu": _one("LeakyRelu"),
    "QLinearMul": _pair("Mul"),
    "QLinearReduceMean": _one("ReduceMean"),
    "QLinearSigmoid": _one("Sigmoid"),
    "QLinearSoftmax": _one("Softmax"),
    "QLinearWhere": _where_scaled,
    "QuantizeLinear": _quantize,
}
