"""Readers of elementwise operators: arithmetic, comparisons, bits, elementary functions, activations, casts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, reshape, where
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError

__all__ = ["MICROSOFT", "READERS"]


def _operands(call: OnnxCall) -> list[Value]:
    """Return two operands; before version 7 the second one may be broadcast along dimensions from an axis on."""
    first, second = call[0], call[1]
    axis, rank = call.attributes.get("axis"), call.rank
    if call.opset < 7 and call.attributes.get("broadcast") and axis is not None:
        sizes = tensor_type(second).shape
        second = reshape(second, (*sizes, *(1,) * (rank - axis % rank - len(sizes))))
    return [first, second]


def _read_as(word: str) -> Convert:
    """Return a reader of an operator that the graph has under another name, with all its operands."""
    return lambda call: elementwise(word, *(call[place] for place in range(len(call.inputs))))


def _read_pair(word: str) -> Convert:
    """Return a reader of an operator with two operands."""
    return lambda call: elementwise(word, *_operands(call))


def _read_many(word: str) -> Convert:
    """Return a reader of an operator with any number of operands."""
    return lambda call: _combine(word, call)


def _combine(word: str, call: OnnxCall) -> Value:
    operands = (call[place] for place in range(len(call.inputs)))
    return functools.reduce(lambda one, other: elementwise(word, one, other), operands)


def _equal(call: OnnxCall) -> Value:
    """Return whether elements are equal; booleans are compared as bytes, because LLVM cannot compare them."""
    return elementwise(
        "equal", *(cast(one, "uint8") if call.kind().dtype == "bool" else one for one in _operands(call))
    )


def _widen(value: Value) -> Value:
    """Return bfloat16 in float32, because TVM lacks these functions for bfloat16."""
    return cast(value, "float32") if tensor_type(value).dtype == "bfloat16" else value


def _sign(call: OnnxCall) -> Value:
    if call.kind().dtype.startswith("uint"):
        return cast(elementwise("not_equal", call[0], 0), call.kind().dtype)
    sign = elementwise("sign", call[0])
    return sign if "float" not in call.kind().dtype else where(elementwise("isnan", _widen(call[0])), call[0], sign)


def _divide(call: OnnxCall) -> Value:
    """Return quotients; integer quotients are rounded towards zero, for which unsigned ones need another operator."""
    first, second = _operands(call)
    return elementwise("floor_divide" if tensor_type(first).dtype.startswith("uint") else "divide", first, second)


def _mean(call: OnnxCall) -> Value:
    return elementwise("divide", _combine("add", call), float(len(call.inputs)))


def _power(call: OnnxCall) -> Value:
    """Return powers in the dtype of the base; the exponent may have another dtype."""
    base, exponent = _operands(call)
    dtype = tensor_type(base).dtype
    if dtype.startswith(("int", "uint")):  # TVM has no powers of integers
        power = elementwise("power", cast(base, "float64"), cast(exponent, "float64"))
        return cast(power, dtype)
    return cast(elementwise("power", _widen(base), _widen(cast(exponent, dtype))), dtype)


def _modulo(call: OnnxCall) -> Value:
    """Return remainders with the sign of the dividend if fmod is set, else with that of the divisor."""
    first, second = _widen(call[0]), _widen(call[1])
    if call.attributes["fmod"]:
        return cast(elementwise("mod", first, second), call.kind().dtype)
    if "float" not in tensor_type(first).dtype:
        return elementwise("floor_mod", first, second)
    remainder = elementwise("mod", first, second)
    signs = elementwise("logical_xor", elementwise("less", remainder, 0), elementwise("less", second, 0))
    differs = elementwise("logical_and", elementwise("not_equal", remainder, 0), signs)
    return cast(where(differs, elementwise("add", remainder, second), remainder), call.kind().dtype)


def _shift(call: OnnxCall) -> Value:
    """Return shifted bits; negative shifts, and shifts by all bits or more, leave only the sign."""
    first, second, dtype = call[0], call[1], call.kind().dtype
    bits = 8 * np.dtype(dtype).itemsize
    is_left, is_signed = call.attributes["direction"] == "LEFT", not dtype.startswith("uint")
    is_in_range = elementwise("less", second, bits)
    if is_signed:
        is_in_range = elementwise("logical_and", is_in_range, elementwise("greater_equal", second, 0))
    most = constant(0 if is_left or not is_signed else bits - 1, dtype)
    shift = where(is_in_range, second, broadcast(most, tensor_type(second).shape))
    shifted = elementwise("left_shift" if is_left else "right_shift", first, shift)
    if is_signed and not is_left:
        return shifted
    return where(is_in_range, shifted, broadcast(constant(0, dtype), tensor_type(shifted).shape))


def _cast(call: OnnxCall) -> Value:
    """Return a cast; to booleans by comparison with zero, to integers by truncation."""
    return convert(call[0], call.dtype("to"))


def convert(value: Value, dtype: str) -> Value:
    """Return a value in another dtype, with the conversion of the standard."""
    value_dtype = tensor_type(value).dtype
    if dtype == "bool" and value_dtype != "bool":
        return elementwise("not_equal", value, 0)
    return cast(value, dtype)


def _cast_like(call: OnnxCall) -> Value:
    return convert(call[0], call.kind(1).dtype)


def _clip(call: OnnxCall) -> Value:
    """Return a tensor clipped to bounds: attributes before version 11, then operands, which may be omitted."""
    value = call[0]
    for index, (name, word) in enumerate((("min", "maximum"), ("max", "minimum")), start=1):
        bound = call.get(index)
        if bound is None and call.opset < 11 and name in call.attributes:
            bound = constant(call.attributes[name], call.kind().dtype)
        if bound is not None:
            value = elementwise(word, value, reshape(bound, ()))
    return value


def _identity(call: OnnxCall) -> Value:
    return call[0]


def _reciprocal(call: OnnxCall) -> Value:
    return elementwise("divide", constant(1, call.kind().dtype), call[0])


def _leaky_relu(call: OnnxCall) -> Value:
    x = call[0]
    return where(elementwise("less", x, 0), elementwise("multiply", x, call.attributes["alpha"]), x)


def _prelu(call: OnnxCall) -> Value:
    x, slope = call[0], call[1]
    sizes = tensor_type(slope).shape
    if call.opset < 7 and len(sizes) == 1 and call.rank > 1:  # the slope is along channels
        slope = reshape(slope, (*sizes, *(1,) * (call.rank - 2)))
    return where(elementwise("less", x, 0), elementwise("multiply", x, slope), x)


def _thresholded_relu(call: OnnxCall) -> Value:
    x = call[0]
    zero = broadcast(constant(0, call.kind().dtype), call.kind().shape)
    return where(elementwise("greater", x, call.attributes["alpha"]), x, zero)


def _exponential_unit(x: Value, alpha: float, scale: float = 1.0, divisor: float = 1.0) -> Value:
    """Return ``scale * x`` above zero and ``scale * alpha * (exp(x / divisor) - 1)`` below."""
    power = elementwise("expm1", elementwise("divide", elementwise("minimum", x, 0), divisor))
    above = elementwise("multiply", elementwise("nn.relu", x), scale)
    return elementwise("add", above, elementwise("multiply", power, scale * alpha))


def _elu(call: OnnxCall) -> Value:
    return _exponential_unit(call[0], call.attributes["alpha"])


def _celu(call: OnnxCall) -> Value:
    alpha = call.attributes["alpha"]
    return _exponential_unit(call[0], alpha, divisor=alpha)


def _selu(call: OnnxCall) -> Value:
    return _exponential_unit(call[0], call.attributes["alpha"], call.attributes["gamma"])


def _gelu(call: OnnxCall) -> Value:
    return elementwise("nn.gelu_tanh" if call.attributes.get("approximate") == "tanh" else "nn.gelu", call[0])


def _fast_gelu(call: OnnxCall) -> Value:
    x = call[0] if call.get(1) is None else elementwise("add", call[0], call[1])
    return elementwise("nn.gelu_tanh", x)


def _bias_gelu(call: OnnxCall) -> Value:
    return elementwise("nn.gelu", elementwise("add", call[0], call[1]))


def _clipped_line(x: Value, alpha: float, beta: float) -> Value:
    line = elementwise("add", elementwise("multiply", x, alpha), beta)
    return elementwise("minimum", elementwise("maximum", line, 0), 1)


def _hard_sigmoid(call: OnnxCall) -> Value:
    return _clipped_line(call[0], call.attributes["alpha"], call.attributes["beta"])


def _hard_swish(call: OnnxCall) -> Value:
    """Return ``x * min(max(x + 3, 0), 6) / 6``, computed so that no product overflows."""
    share = elementwise("minimum", elementwise("maximum", elementwise("add", call[0], 3), 0), 6)
    return elementwise("multiply", call[0], elementwise("divide", share, 6))


def softplus(x: Value) -> Value:
    """Return ``log(1 + e^x)`` without exponentials of positive numbers."""
    power = elementwise("exp", elementwise("negative", elementwise("abs", x)))
    return elementwise("add", elementwise("maximum", x, 0), elementwise("log1p", power))


def _softsign(call: OnnxCall) -> Value:
    return elementwise("divide", call[0], elementwise("add", elementwise("abs", call[0]), 1))


def _swish(call: OnnxCall) -> Value:
    """Return ``x`` times the sigmoid of ``alpha * x``; onnxruntime's QuickGelu has another default of alpha."""
    x, alpha = call[0], call.attributes.get("alpha", 1.702 if call.op == "QuickGelu" else 1.0)
    return elementwise("nn.silu", x) if alpha == 1 else elementwise(
        "multiply", x, elementwise("sigmoid", elementwise("multiply", x, alpha))
    )  # fmt: skip


def _shrink(call: OnnxCall) -> Value:
    bias, bound, kind = call.attributes["bias"], call.attributes["lambd"], call.kind()
    x = cast(call[0], "float64") if kind.dtype.startswith(("int", "uint")) else call[0]  # the bias may be a fraction
    zero = broadcast(constant(0, tensor_type(x).dtype), kind.shape)
    low = where(elementwise("less", x, -bound), elementwise("add", x, bias), zero)
    return cast(where(elementwise("greater", x, bound), elementwise("subtract", x, bias), low), kind.dtype)


def _is_infinite(call: OnnxCall) -> Value:
    x = _widen(call[0])
    signs = [
        word for word, name in (("greater", "detect_positive"), ("less", "detect_negative")) if call.attributes[name]
    ]
    infinite = elementwise("isinf", x)
    if len(signs) == 2:
        return infinite
    if not signs:
        return broadcast(constant(False, "bool"), call.kind().shape)
    return elementwise("logical_and", infinite, elementwise(signs[0], x, 0))


def _where(call: OnnxCall) -> Value:
    return where(call[0], call[1], call[2])


def _dropout(call: OnnxCall) -> Sequence[Value]:
    """Return the result of dropout in inference: its input, and a mask that keeps everything."""
    is_training = call.get(2) is not None and call.constant_values(2, "whether it trains").any()
    if is_training and (call.get(1) is None or call.constant_values(1, "the share").any()):
        raise RefusedError("drops elements at random (training_mode), expected a model exported for inference")
    mask = "bool" if call.opset >= 10 else call.kind().dtype
    return [call[0], broadcast(constant(1, mask), call.kind().shape)][: len(call.outputs)]


_SAME = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "BitwiseAnd": "bitwise_and", "BitwiseNot": "bitwise_not", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "Log": "log", "Mish": "mish", "Neg": "negative", "Not": "logical_not", "Relu": "nn.relu", "Round": "round",
    "Sigmoid": "sigmoid", "Sin": "sin", "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_PAIRS = {
    "Add": "add", "And": "logical_and", "Greater": "greater", "GreaterOrEqual": "greater_equal",
    "Less": "less", "LessOrEqual": "less_equal", "Mul": "multiply", "Or": "logical_or", "Sub": "subtract",
    "Xor": "logical_xor",
}  # fmt: skip

READERS: dict[str, Convert] = {
    **{name: _read_as(word) for name, word in _SAME.items()},
    **{name: _read_pair(word) for name, word in _PAIRS.items()},
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _celu,
    "Clip": _clip,
    "Div": _divide,
    "Dropout": _dropout,
    "Elu": _elu,
    "Equal": _equal,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "IsInf": _is_infinite,
    "IsNaN": lambda call: elementwise("isnan", _widen(call[0])),
    "LeakyRelu": _leaky_relu,
    "Max": _read_many("maximum"),
    "Mean": _mean,
    "Min": _read_many("minimum"),
    "Mod": _modulo,
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sign": _sign,
    "Softplus": lambda call: softplus(call[0]),
    "Softsign": _softsign,
    "Sum": _read_many("add"),
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
}
MICROSOFT: dict[str, Convert] = {"BiasGelu": _bias_gelu, "FastGelu": _fast_gelu, "Gelu": _gelu, "QuickGelu": _swish}
