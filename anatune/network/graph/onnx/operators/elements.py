"""Operators on elements: arithmetic, comparisons, bits, elementary functions, activations, casts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, reshape, where
from anatune.network.graph.nodes import Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError

__all__ = ["MICROSOFT", "READERS"]


def _operands(call: Call) -> list[Value]:
    """Return two operands; before version 7 the second one may be broadcast along dimensions that an axis begins."""
    first, second = call[0], call[1]
    axis, rank = call.attributes.get("axis"), call.rank
    if call.opset < 7 and call.attributes.get("broadcast") and axis is not None:
        sizes = tensor_type(second).shape
        second = reshape(second, (*sizes, *(1,) * (rank - axis % rank - len(sizes))))
    return [first, second]


def _named(word: str) -> Convert:
    """Return what reads an operator of as many operands as it has that the graph has under another name."""
    return lambda call: elementwise(word, *(call[place] for place in range(len(call.inputs))))


def _pair(word: str) -> Convert:
    """Return what reads an operator of two operands."""
    return lambda call: elementwise(word, *_operands(call))


def _many(word: str) -> Convert:
    """Return what reads an operator of any number of operands."""
    return lambda call: _joined(word, call)


def _joined(word: str, call: Call) -> Value:
    operands = (call[place] for place in range(len(call.inputs)))
    return functools.reduce(lambda one, other: elementwise(word, one, other), operands)


def _equal(call: Call) -> Value:
    """Return what is equal; truth values are bytes meanwhile, which LLVM compares."""
    return elementwise(
        "equal", *(cast(one, "uint8") if call.kind().dtype == "bool" else one for one in _operands(call))
    )


def _wide(value: Value) -> Value:
    """Return bfloat16 in float32: TVM has no such functions of it."""
    return cast(value, "float32") if tensor_type(value).dtype == "bfloat16" else value


def _sign(call: Call) -> Value:
    if call.kind().dtype.startswith("uint"):
        return cast(elementwise("not_equal", call[0], 0), call.kind().dtype)
    sign = elementwise("sign", call[0])
    return sign if "float" not in call.kind().dtype else where(elementwise("isnan", _wide(call[0])), call[0], sign)


def _divided(call: Call) -> Value:
    """Return quotients; of integers without the fraction, which TVM's division leaves out of signed ones alone."""
    first, second = _operands(call)
    return elementwise("floor_divide" if tensor_type(first).dtype.startswith("uint") else "divide", first, second)


def _mean(call: Call) -> Value:
    return elementwise("divide", _joined("add", call), float(len(call.inputs)))


def _power(call: Call) -> Value:
    """Return powers in the dtype of what is raised; the exponent may have another."""
    base, exponent = _operands(call)
    dtype = tensor_type(base).dtype
    if dtype.startswith(("int", "uint")):  # integers have no power of their own
        found = elementwise("power", cast(base, "float64"), cast(exponent, "float64"))
        return cast(found, dtype)
    return cast(elementwise("power", _wide(base), _wide(cast(exponent, dtype))), dtype)


def _modulo(call: Call) -> Value:
    """Return remainders: with the sign of what is divided where fmod is set, else with that of the divisor."""
    first, second = _wide(call[0]), _wide(call[1])
    if call.attributes["fmod"]:
        return cast(elementwise("mod", first, second), call.kind().dtype)
    if "float" not in tensor_type(first).dtype:
        return elementwise("floor_mod", first, second)
    left = elementwise("mod", first, second)
    signs = elementwise("logical_xor", elementwise("less", left, 0), elementwise("less", second, 0))
    differs = elementwise("logical_and", elementwise("not_equal", left, 0), signs)
    return cast(where(differs, elementwise("add", left, second), left), call.kind().dtype)


def _shift(call: Call) -> Value:
    """Return shifted bits; by less than none, or by as many as there are and more, nothing but the sign is left."""
    first, second, dtype = call[0], call[1], call.kind().dtype
    bits = 8 * np.dtype(dtype).itemsize
    is_left, is_signed = call.attributes["direction"] == "LEFT", not dtype.startswith("uint")
    inside = elementwise("less", second, bits)
    if is_signed:
        inside = elementwise("logical_and", inside, elementwise("greater_equal", second, 0))
    most = constant(0 if is_left or not is_signed else bits - 1, dtype)
    shift = where(inside, second, broadcast(most, tensor_type(second).shape))
    found = elementwise("left_shift" if is_left else "right_shift", first, shift)
    if is_signed and not is_left:
        return found
    return where(inside, found, broadcast(constant(0, dtype), tensor_type(found).shape))


def _cast(call: Call) -> Value:
    """Return a conversion: to truth values what is no zero, to integers without the fraction."""
    return converted(call[0], call.dtype("to"))


def converted(value: Value, dtype: str) -> Value:
    """Return a value in another dtype, as the standard converts."""
    own = tensor_type(value).dtype
    if dtype == "bool" and own != "bool":
        return elementwise("not_equal", value, 0)
    return cast(value, dtype)


def _cast_like(call: Call) -> Value:
    return converted(call[0], call.kind(1).dtype)


def _clip(call: Call) -> Value:
    """Return a tensor between bounds: attributes before version 11, then operands, of which either may be left out."""
    value = call[0]
    for place, (name, word) in enumerate((("min", "maximum"), ("max", "minimum")), start=1):
        bound = call.get(place)
        if bound is None and call.opset < 11 and name in call.attributes:
            bound = constant(call.attributes[name], call.kind().dtype)
        if bound is not None:
            value = elementwise(word, value, reshape(bound, ()))
    return value


def _identity(call: Call) -> Value:
    return call[0]


def _reciprocal(call: Call) -> Value:
    return elementwise("divide", constant(1, call.kind().dtype), call[0])


def _leaky_relu(call: Call) -> Value:
    x = call[0]
    return where(elementwise("less", x, 0), elementwise("multiply", x, call.attributes["alpha"]), x)


def _prelu(call: Call) -> Value:
    x, slope = call[0], call[1]
    sizes = tensor_type(slope).shape
    if call.opset < 7 and len(sizes) == 1 and call.rank > 1:  # along the channels
        slope = reshape(slope, (*sizes, *(1,) * (call.rank - 2)))
    return where(elementwise("less", x, 0), elementwise("multiply", x, slope), x)


def _thresholded_relu(call: Call) -> Value:
    x = call[0]
    zero = broadcast(constant(0, call.kind().dtype), call.kind().shape)
    return where(elementwise("greater", x, call.attributes["alpha"]), x, zero)


def _exponential_unit(x: Value, alpha: float, scale: float = 1.0, divisor: float = 1.0) -> Value:
    """Return ``scale * x`` above zero and ``scale * alpha * (exp(x / divisor) - 1)`` below."""
    power = elementwise("expm1", elementwise("divide", elementwise("minimum", x, 0), divisor))
    above = elementwise("multiply", elementwise("nn.relu", x), scale)
    return elementwise("add", above, elementwise("multiply", power, scale * alpha))


def _elu(call: Call) -> Value:
    return _exponential_unit(call[0], call.attributes["alpha"])


def _celu(call: Call) -> Value:
    alpha = call.attributes["alpha"]
    return _exponential_unit(call[0], alpha, divisor=alpha)


def _selu(call: Call) -> Value:
    return _exponential_unit(call[0], call.attributes["alpha"], call.attributes["gamma"])


def _gelu(call: Call) -> Value:
    return elementwise("nn.gelu_tanh" if call.attributes.get("approximate") == "tanh" else "nn.gelu", call[0])


def _fast_gelu(call: Call) -> Value:
    x = call[0] if call.get(1) is None else elementwise("add", call[0], call[1])
    return elementwise("nn.gelu_tanh", x)


def _bias_gelu(call: Call) -> Value:
    return elementwise("nn.gelu", elementwise("add", call[0], call[1]))


def _hard_sigmoid_of(x: Value, alpha: float, beta: float) -> Value:
    line = elementwise("add", elementwise("multiply", x, alpha), beta)
    return elementwise("minimum", elementwise("maximum", line, 0), 1)


def _hard_sigmoid(call: Call) -> Value:
    return _hard_sigmoid_of(call[0], call.attributes["alpha"], call.attributes["beta"])


def _hard_swish(call: Call) -> Value:
    """Return ``x * min(max(x + 3, 0), 6) / 6`` without products that leave the range."""
    share = elementwise("minimum", elementwise("maximum", elementwise("add", call[0], 3), 0), 6)
    return elementwise("multiply", call[0], elementwise("divide", share, 6))


def softplus(x: Value) -> Value:
    """Return ``log(1 + e^x)`` without powers of positive numbers."""
    power = elementwise("exp", elementwise("negative", elementwise("abs", x)))
    return elementwise("add", elementwise("maximum", x, 0), elementwise("log1p", power))


def _softsign(call: Call) -> Value:
    return elementwise("divide", call[0], elementwise("add", elementwise("abs", call[0]), 1))


def _swish(call: Call) -> Value:
    """Return ``x`` times the sigmoid of ``alpha * x``; onnxruntime's QuickGelu has a default of its own."""
    x, alpha = call[0], call.attributes.get("alpha", 1.702 if call.op == "QuickGelu" else 1.0)
    return elementwise("nn.silu", x) if alpha == 1 else elementwise(
        "multiply", x, elementwise("sigmoid", elementwise("multiply", x, alpha))
    )  # fmt: skip


def _shrink(call: Call) -> Value:
    bias, bound, kind = call.attributes["bias"], call.attributes["lambd"], call.kind()
    x = cast(call[0], "float64") if kind.dtype.startswith(("int", "uint")) else call[0]  # both may be fractions
    zero = broadcast(constant(0, tensor_type(x).dtype), kind.shape)
    low = where(elementwise("less", x, -bound), elementwise("add", x, bias), zero)
    return cast(where(elementwise("greater", x, bound), elementwise("subtract", x, bias), low), kind.dtype)


def _is_infinite(call: Call) -> Value:
    x = _wide(call[0])
    signs = [
        word for word, name in (("greater", "detect_positive"), ("less", "detect_negative")) if call.attributes[name]
    ]
    infinite = elementwise("isinf", x)
    if len(signs) == 2:
        return infinite
    if not signs:
        return broadcast(constant(False, "bool"), call.kind().shape)
    return elementwise("logical_and", infinite, elementwise(signs[0], x, 0))


def _where(call: Call) -> Value:
    return where(call[0], call[1], call[2])


def _dropout(call: Call) -> Sequence[Value]:
    """Return what a dropout of a model that is run makes: its input, and a mask of nothing that is dropped."""
    is_training = call.get(2) is not None and call.known(2, "whether it trains").any()
    if is_training and (call.get(1) is None or call.known(1, "the share").any()):
        raise RefusedError("drops elements at random (training_mode), expected a model that is run; export it for that")
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
    **{name: _named(word) for name, word in _SAME.items()},
    **{name: _pair(word) for name, word in _PAIRS.items()},
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Celu": _celu,
    "Clip": _clip,
    "Div": _divided,
    "Dropout": _dropout,
    "Elu": _elu,
    "Equal": _equal,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "Identity": _identity,
    "IsInf": _is_infinite,
    "IsNaN": lambda call: elementwise("isnan", _wide(call[0])),
    "LeakyRelu": _leaky_relu,
    "Max": _many("maximum"),
    "Mean": _mean,
    "Min": _many("minimum"),
    "Mod": _modulo,
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Selu": _selu,
    "Shrink": _shrink,
    "Sign": _sign,
    "Softplus": lambda call: softplus(call[0]),
    "Softsign": _softsign,
    "Sum": _many("add"),
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
    "Where": _where,
}
MICROSOFT: dict[str, Convert] = {"BiasGelu": _bias_gelu, "FastGelu": _fast_gelu, "Gelu": _gelu, "QuickGelu": _swish}
