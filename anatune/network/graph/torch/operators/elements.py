"""Readers of elementwise operators: arithmetic, comparisons, bits, functions, activations, casts, filled tensors."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, where
from anatune.network.graph.nodes import HALVES, Value, tensor_type
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall, is_float, to_dtype

__all__ = ["READERS", "fill", "raise_to"]


def fill(number: object, call: TorchCall) -> Value:
    """Return a tensor of the result's type, filled with a number."""
    return broadcast(constant(number, call.kind.dtype), call.kind.shape)


def _read_unary(word: str) -> Convert:
    """Return a reader of a function of one number."""
    return lambda call: elementwise(word, call.operand("self"))


def _read_rounding(word: str) -> Convert:
    """Return a reader of a function that does not change integers."""
    return lambda call: elementwise(word, call["self"]) if is_float(call.kind.dtype) else call["self"]


def _read_test(word: str) -> Convert:
    """Return a reader of a test of floating-point numbers, which is false for integers."""
    return lambda call: (
        elementwise(word, call["self"]) if is_float(tensor_type(call["self"]).dtype) else fill(False, call)
    )


def _read_pair(word: str, of_truths: str = "") -> Convert:
    """Return a reader of an operator with two operands, with another operator for booleans."""
    return lambda call: elementwise(
        of_truths if of_truths and call.kind.dtype == "bool" else word, call.operand("self"), call.operand("other")
    )


def _read_logical(word: str) -> Convert:
    return lambda call: elementwise(word, call.operand("self", "bool"), call.operand("other", "bool"))


def _read_comparison(word: str) -> Convert:
    """Return a reader of a comparison in the promoted dtype; booleans are compared as numbers."""

    def read(call: TorchCall) -> Value:
        dtype = call.common("self", "other")
        dtype = "int8" if dtype == "bool" else dtype
        return elementwise(word, call.operand("self", dtype), call.operand("other", dtype))

    return read


def _read_sum(sign: str) -> Convert:
    """Return a reader of ``self + alpha * other``, or of the difference."""

    def read(call: TorchCall) -> Value:
        first, second, alpha = call.operand("self"), call.operand("other"), call.get("alpha", 1)
        if call.kind.dtype == "bool":
            return elementwise("logical_or", first, second)
        return elementwise(sign, first, second if alpha == 1 else elementwise("multiply", second, alpha))

    return read


def _widen_numbers(convert: Convert) -> Convert:
    """Return a reader that computes in float32 if a number does not fit into the 16-bit dtype of the result."""

    def read(call: TorchCall) -> Value:
        dtype, numbers = call.kind.dtype, [n for n in call.arguments.values() if isinstance(n, float)]
        with np.errstate(over="ignore"):
            rounded = [float(constant(n, dtype).array) for n in numbers] if dtype in HALVES else numbers
        if all(other == n or abs(other - n) <= abs(n) / 256 for n, other in zip(numbers, rounded, strict=True)):
            return convert(call)  # type: ignore[return-value]
        wide = dataclasses.replace(call, kinds=(call.kind._replace(dtype="float32"),))
        return cast(convert(wide), dtype)  # type: ignore[arg-type]

    return read


def _reversed_difference(call: TorchCall) -> Value:
    other, alpha = call.operand("self"), call.get("alpha", 1)
    return elementwise(
        "subtract", call.operand("other"), other if alpha == 1 else elementwise("multiply", other, alpha)
    )


def _divide(call: TorchCall) -> Value:
    dividend, divisor, mode = call.operand("self"), call.operand("other"), call.get("rounding_mode")
    if mode is None and "floor" in call.name:
        mode = "floor"
    if not is_float(call.kind.dtype):
        return elementwise("floor_divide" if mode == "floor" else "divide", dividend, divisor)
    if mode == "floor":
        return _divide_down(dividend, divisor)
    quotient = elementwise("divide", dividend, divisor)
    return quotient if mode is None else elementwise(mode, quotient)


def _divide_down(dividend: Value, divisor: Value) -> Value:
    """Return quotients rounded down, corrected if the quotient was rounded up to the next integer.

    Source: PyTorch, c10/util/generic_math.h, div_floor_floating.
    """
    quotient, remainder = elementwise("divide", dividend, divisor), elementwise("mod", dividend, divisor)
    whole = elementwise("divide", elementwise("subtract", dividend, remainder), divisor)
    whole = where(_has_other_sign(remainder, divisor), elementwise("subtract", whole, 1), whole)
    floor = elementwise("floor", whole)
    is_above = elementwise("greater", elementwise("subtract", whole, floor), 0.5)
    floor = where(is_above, elementwise("add", floor, 1), floor)
    zero = elementwise("copysign", constant(0, tensor_type(dividend).dtype), quotient)
    floor = where(elementwise("equal", whole, 0), zero, floor)
    return where(elementwise("equal", divisor, 0), quotient, floor)


def _has_other_sign(remainder: Value, divisor: Value) -> Value:
    """Return whether a remainder and its divisor have different signs."""
    signs = elementwise("logical_xor", elementwise("less", remainder, 0), elementwise("less", divisor, 0))
    return elementwise("logical_and", elementwise("not_equal", remainder, 0), signs)


def _power(call: TorchCall) -> Value:
    exponent = call["exponent"]
    if isinstance(exponent, Value) or not isinstance(call["self"], Value):
        base, dtype = call.operand("self"), call.kind.dtype
        if is_float(dtype):
            return elementwise("power", base, call.operand("exponent"))
        wide = elementwise("power", cast(base, "float64"), call.operand("exponent", "float64"))
        return cast(wide, dtype)
    return raise_to(call.operand("self"), exponent)


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt"}


def raise_to(x: Value, exponent: float) -> Value:
    """Return powers with a constant exponent, as products if it is a small integer."""
    dtype = tensor_type(x).dtype
    if exponent == int(exponent) and 0 <= exponent <= 4:
        if exponent == 0:
            return broadcast(constant(1, dtype), tensor_type(x).shape)
        return functools.reduce(lambda one, _: elementwise("multiply", one, x), range(int(exponent) - 1), x)
    if not is_float(dtype):
        return cast(elementwise("power", cast(x, "float64"), exponent), dtype)
    if exponent in _ROOTS:
        return elementwise(_ROOTS[exponent], x)
    return elementwise("divide", constant(1, dtype), x) if exponent == -1 else elementwise("power", x, exponent)


def _reciprocal(call: TorchCall) -> Value:
    return elementwise("divide", constant(1, call.kind.dtype), call.operand("self"))


def _round_to_digits(call: TorchCall) -> Value:
    digits = call["decimals"]
    if not digits or not is_float(call.kind.dtype):
        return _read_rounding("round")(call)  # type: ignore[return-value]
    factor = 10.0**digits
    return elementwise("divide", elementwise("round", elementwise("multiply", call["self"], factor)), factor)


def _relu(call: TorchCall) -> Value:
    x = call.operand("self")
    return elementwise("nn.relu", x) if is_float(call.kind.dtype) else elementwise("maximum", x, 0)


def _elu(call: TorchCall) -> Value:
    """Return an ELU; SELU and CELU have other factors."""
    alpha, scale, inner = (call[name] for name in ("alpha", "scale", "input_scale"))
    x = call.operand("self")
    below = elementwise("expm1", elementwise("multiply", elementwise("minimum", x, 0), inner))
    above = elementwise("multiply", elementwise("nn.relu", x), scale)
    return elementwise("add", above, elementwise("multiply", below, alpha * scale))


def _hard_swish(call: TorchCall) -> Value:
    """Return ``x * min(max(x + 3, 0), 6) / 6``, computed so that no product overflows."""
    x = call.operand("self")
    share = elementwise("minimum", elementwise("maximum", elementwise("add", x, 3), 0), 6)
    return elementwise("multiply", x, elementwise("divide", share, 6))


def _gelu(call: TorchCall) -> Value:
    return elementwise("nn.gelu_tanh" if call["approximate"] == "tanh" else "nn.gelu", call.operand("self"))


def _leaky_relu(call: TorchCall) -> Value:
    x, slope = call.operand("self"), call["negative_slope"]
    if slope == 0:
        return elementwise("nn.relu", x)
    return elementwise("maximum" if slope <= 1 else "minimum", x, elementwise("multiply", x, slope))


def _random_slope(call: TorchCall) -> list[Value | None]:
    """Return a leaky rectifier whose slope is random in training, and the middle of its bounds in evaluation."""
    if call["training"]:
        _random(call)
    slope = (call["lower"] + call["upper"]) / 2
    x = call.operand("self")
    return [elementwise("maximum" if slope <= 1 else "minimum", x, elementwise("multiply", x, slope)), None]


def _clamp(call: TorchCall) -> Value:
    """Return a tensor clipped to two bounds, numbers or tensors, which may be omitted."""
    value, names = call.operand("self"), ("min_val", "max_val") if "min_val" in call.arguments else ("min", "max")
    for name, word in zip(names, ("maximum", "minimum"), strict=True):
        if call.get(name) is not None:
            value = elementwise(word, value, call.operand(name))
    return value


def _where(call: TorchCall) -> Value:
    return where(call.operand("condition", "bool"), call.operand("self"), call.operand("other"))


def _remainder(call: TorchCall) -> Value:
    """Return remainders with the sign of the divisor."""
    first, second = call.operand("self"), call.operand("other")
    if not is_float(call.kind.dtype):
        return elementwise("floor_mod", first, second)
    remainder = elementwise("mod", first, second)
    return where(_has_other_sign(remainder, second), elementwise("add", remainder, second), remainder)


def _signbit(call: TorchCall) -> Value:
    x = call["self"]
    if not is_float(tensor_type(x).dtype):
        return elementwise("less", x, 0)
    return elementwise("less", elementwise("copysign", constant(1, tensor_type(x).dtype), x), 0)


def _read_extreme(word: str) -> Convert:
    """Return a reader of the larger or smaller of two numbers, where NaN counts as missing."""

    def read(call: TorchCall) -> Value:
        first, second = call.operand("self"), call.operand("other")
        if not is_float(call.kind.dtype):
            return elementwise(word, first, second)
        first, second = (
            where(elementwise("isnan", x), y, x) for x, y in ((first, second), (second, first))
        )  # fmt: skip
        return elementwise(word, first, second)

    return read


def _identity(call: TorchCall) -> Value:
    """Return a copy or a cast."""
    return call.operand("self")


def _copy(call: TorchCall) -> Value:
    return broadcast(call.operand("src"), call.kind.shape)


def _full(call: TorchCall) -> Value:
    value = call.get("fill_value", call.get("value", call.get("s", 0)))
    return (
        broadcast(to_dtype(value, call.kind.dtype), call.kind.shape) if isinstance(value, Value) else fill(value, call)
    )


def _arange(call: TorchCall) -> Value:
    count = call.kind.shape[0]
    start, step = call.get("start", 0), call.get("step", 1)
    return constant(start + np.arange(count) * step, call.kind.dtype)


def _indices(call: TorchCall) -> Value:
    triangle = np.tril_indices if call.name.startswith("tril") else np.triu_indices
    return constant(np.stack(triangle(call["row"], call["offset"], call["col"])), call.kind.dtype)


def _random(call: TorchCall) -> Value:
    raise RefusedError("draws random numbers, expected a model without them; pass them as an input")


def _dropout(call: TorchCall) -> list[Value]:
    if call["train"]:
        raise RefusedError("drops elements at random, expected a model in evaluation mode")
    return [call["input"], broadcast(constant(True, "bool"), call.kind.shape)]


_FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1",
    "log", "log10", "log1p", "log2", "mish", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_ALL: dict[str, Convert] = {
    **{name: _read_unary(name) for name in _FUNCTIONS},
    **{name: _read_rounding(name) for name in ("ceil", "floor", "trunc")},
    **{name: _read_test(name) for name in ("isinf", "isnan")},
    **{f"logical_{name}": _read_logical(f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": _read_pair(f"bitwise_{name}", f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"__{name}__": _read_pair(f"bitwise_{name}", f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{side}_shift": _read_pair(f"{side}_shift") for side in ("left", "right")},
    **{f"__{side[0]}shift__": _read_pair(f"{side}_shift") for side in ("left", "right")},
    **{
        name: _read_comparison(word)
        for name, word in {
            "eq": "equal",
            "ge": "greater_equal",
            "gt": "greater",
            "le": "less_equal",
            "lt": "less",
            "ne": "not_equal",
        }.items()
    },
    "_to_copy": _identity,
    "add": _widen_numbers(_read_sum("add")),
    "alias": _identity,
    "arange": _arange,
    "atan2": _read_pair("atan2"),
    "bernoulli": _random,
    "bitwise_not": lambda call: elementwise(
        "logical_not" if call.kind.dtype == "bool" else "bitwise_not", call["self"]
    ),
    "clamp": _clamp,
    "clone": _identity,
    "copy": _copy,
    "copysign": _read_pair("copysign"),
    "div": _widen_numbers(_divide),
    "elu": _elu,
    "empty": _full,
    "empty_permuted": _full,
    "empty_strided": _full,
    "fill": _full,
    "floor_divide": _divide,
    "fmax": _read_extreme("maximum"),
    "fmin": _read_extreme("minimum"),
    "fmod": _read_pair("mod"),
    "full": _full,
    "full_like": _full,
    "gelu": _gelu,
    "hardswish": _hard_swish,
    "hardtanh": _clamp,
    "hypot": _read_pair("hypot"),
    "ldexp": lambda call: elementwise(
        "multiply", call.operand("self"), elementwise("power", constant(2, call.kind.dtype), call.operand("other"))
    ),
    "leaky_relu": _leaky_relu,
    "lift_fresh_copy": _identity,
    "logical_not": lambda call: elementwise("logical_not", call.operand("self", "bool")),
    "maximum": _read_pair("maximum", "logical_or"),
    "minimum": _read_pair("minimum", "logical_and"),
    "mul": _widen_numbers(_read_pair("multiply", "logical_and")),
    "native_dropout": _dropout,
    "neg": _read_unary("negative"),
    "pow": _power,
    "rand": _random,
    "rand_like": _random,
    "randint": _random,
    "randn": _random,
    "randn_like": _random,
    "randperm": _random,
    "reciprocal": _reciprocal,
    "relu": _relu,
    "remainder": _remainder,
    "round": lambda call: _round_to_digits(call) if "decimals" in call.arguments else _read_rounding("round")(call),
    "rrelu_with_noise_functional": _random_slope,
    "rsub": _widen_numbers(_reversed_difference),
    "scalar_tensor": _full,
    "signbit": _signbit,
    "sub": _widen_numbers(_read_sum("subtract")),
    "tril_indices": _indices,
    "triu_indices": _indices,
    "where": _where,
}
READERS = _ALL
"""Operator without its overload -> reader."""
