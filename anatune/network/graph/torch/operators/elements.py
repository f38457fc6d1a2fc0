"""Operators on elements: arithmetic, comparisons, bits, functions, activations, conversions, filled tensors."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from anatune.network.graph.building import broadcast, cast, constant, elementwise, where
from anatune.network.graph.nodes import HALVES, Value, tensor_type
from anatune.network.graph.torch.call import Call, Convert, RefusedError, converted, is_float

__all__ = ["READERS", "filled", "power_of"]


def filled(number: object, call: Call) -> Value:
    """Return a number everywhere."""
    return broadcast(constant(number, call.kind.dtype), call.kind.shape)


def _named(word: str) -> Convert:
    """Return what reads a function of one number."""
    return lambda call: elementwise(word, call.operand("self"))


def _whole(word: str) -> Convert:
    """Return what reads a function that leaves whole numbers as they are."""
    return lambda call: elementwise(word, call["self"]) if is_float(call.kind.dtype) else call["self"]


def _test(word: str) -> Convert:
    """Return what reads a question about numbers with fractions; the answer for whole ones is no."""
    return lambda call: (
        elementwise(word, call["self"]) if is_float(tensor_type(call["self"]).dtype) else filled(False, call)
    )


def _pair(word: str, of_truths: str = "") -> Convert:
    """Return what reads an operator of two numbers; truth values have another one."""
    return lambda call: elementwise(
        of_truths if of_truths and call.kind.dtype == "bool" else word, call.operand("self"), call.operand("other")
    )


def _logical(word: str) -> Convert:
    return lambda call: elementwise(word, call.operand("self", "bool"), call.operand("other", "bool"))


def _comparison(word: str) -> Convert:
    """Return what reads a comparison: in the dtype that both are brought to, truth values as numbers."""

    def read(call: Call) -> Value:
        dtype = call.common("self", "other")
        dtype = "int8" if dtype == "bool" else dtype
        return elementwise(word, call.operand("self", dtype), call.operand("other", dtype))

    return read


def _sum(sign: str) -> Convert:
    """Return what reads ``self + alpha * other``, or the difference."""

    def read(call: Call) -> Value:
        one, other, alpha = call.operand("self"), call.operand("other"), call.get("alpha", 1)
        if call.kind.dtype == "bool":
            return elementwise("logical_or", one, other)
        return elementwise(sign, one, other if alpha == 1 else elementwise("multiply", other, alpha))

    return read


def _with_wide_numbers(convert: Convert) -> Convert:
    """Return what reads an operator in float32 where a number is too large or too small for a result in 16 bits."""

    def read(call: Call) -> Value:
        dtype, numbers = call.kind.dtype, [one for one in call.arguments.values() if isinstance(one, float)]
        with np.errstate(over="ignore"):
            kept = [float(constant(one, dtype).array) for one in numbers] if dtype in HALVES else numbers
        if all(other == one or abs(other - one) <= abs(one) / 256 for one, other in zip(numbers, kept, strict=True)):
            return convert(call)  # type: ignore[return-value]
        wide = dataclasses.replace(call, kinds=(call.kind._replace(dtype="float32"),))
        return cast(convert(wide), dtype)  # type: ignore[arg-type]

    return read


def _reversed_difference(call: Call) -> Value:
    other, alpha = call.operand("self"), call.get("alpha", 1)
    return elementwise(
        "subtract", call.operand("other"), other if alpha == 1 else elementwise("multiply", other, alpha)
    )


def _divided(call: Call) -> Value:
    one, other, mode = call.operand("self"), call.operand("other"), call.get("rounding_mode")
    if mode is None and "floor" in call.name:
        mode = "floor"
    if not is_float(call.kind.dtype):
        return elementwise("floor_divide" if mode == "floor" else "divide", one, other)
    if mode == "floor":
        return _divide_down(one, other)
    found = elementwise("divide", one, other)
    return found if mode is None else elementwise(mode, found)


def _divide_down(dividend: Value, divisor: Value) -> Value:
    """Return the largest whole numbers that are no larger than quotients, which may be rounded to larger ones.

    Source: PyTorch, c10/util/generic_math.h, div_floor_floating.
    """
    quotient, left = elementwise("divide", dividend, divisor), elementwise("mod", dividend, divisor)
    whole = elementwise("divide", elementwise("subtract", dividend, left), divisor)
    whole = where(_is_turned(left, divisor), elementwise("subtract", whole, 1), whole)
    down = elementwise("floor", whole)
    is_above = elementwise("greater", elementwise("subtract", whole, down), 0.5)
    down = where(is_above, elementwise("add", down, 1), down)
    zero = elementwise("copysign", constant(0, tensor_type(dividend).dtype), quotient)
    down = where(elementwise("equal", whole, 0), zero, down)
    return where(elementwise("equal", divisor, 0), quotient, down)


def _is_turned(left: Value, divisor: Value) -> Value:
    """Whether what a division leaves has another sign than the divisor."""
    signs = elementwise("logical_xor", elementwise("less", left, 0), elementwise("less", divisor, 0))
    return elementwise("logical_and", elementwise("not_equal", left, 0), signs)


def _power(call: Call) -> Value:
    exponent = call["exponent"]
    if isinstance(exponent, Value) or not isinstance(call["self"], Value):
        base, dtype = call.operand("self"), call.kind.dtype
        if is_float(dtype):
            return elementwise("power", base, call.operand("exponent"))
        wide = elementwise("power", cast(base, "float64"), call.operand("exponent", "float64"))
        return cast(wide, dtype)
    return power_of(call.operand("self"), exponent)


_ROOTS = {0.5: "sqrt", -0.5: "rsqrt"}


def power_of(x: Value, exponent: float) -> Value:
    """Return powers with a known exponent; products where it is small and whole."""
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


def _reciprocal(call: Call) -> Value:
    return elementwise("divide", constant(1, call.kind.dtype), call.operand("self"))


def _rounded(call: Call) -> Value:
    digits = call["decimals"]
    if not digits or not is_float(call.kind.dtype):
        return _whole("round")(call)  # type: ignore[return-value]
    factor = 10.0**digits
    return elementwise("divide", elementwise("round", elementwise("multiply", call["self"], factor)), factor)


def _relu(call: Call) -> Value:
    x = call.operand("self")
    return elementwise("nn.relu", x) if is_float(call.kind.dtype) else elementwise("maximum", x, 0)


def _elu(call: Call) -> Value:
    """Return an ELU, of which SELU has two factors, CELU another two."""
    alpha, scale, inner = (call[name] for name in ("alpha", "scale", "input_scale"))
    x = call.operand("self")
    below = elementwise("expm1", elementwise("multiply", elementwise("minimum", x, 0), inner))
    above = elementwise("multiply", elementwise("nn.relu", x), scale)
    return elementwise("add", above, elementwise("multiply", below, alpha * scale))


def _hard_swish(call: Call) -> Value:
    """Return ``x * min(max(x + 3, 0), 6) / 6`` without products that leave the range."""
    x = call.operand("self")
    share = elementwise("minimum", elementwise("maximum", elementwise("add", x, 3), 0), 6)
    return elementwise("multiply", x, elementwise("divide", share, 6))


def _gelu(call: Call) -> Value:
    return elementwise("nn.gelu_tanh" if call["approximate"] == "tanh" else "nn.gelu", call.operand("self"))


def _leaky_relu(call: Call) -> Value:
    x, slope = call.operand("self"), call["negative_slope"]
    if slope == 0:
        return elementwise("nn.relu", x)
    return elementwise("maximum" if slope <= 1 else "minimum", x, elementwise("multiply", x, slope))


def _random_slope(call: Call) -> list[Value | None]:
    """Return a leaky rectifier whose slope is drawn in training; else it is the middle of its bounds."""
    if call["training"]:
        _random(call)
    slope = (call["lower"] + call["upper"]) / 2
    x = call.operand("self")
    return [elementwise("maximum" if slope <= 1 else "minimum", x, elementwise("multiply", x, slope)), None]


def _clamp(call: Call) -> Value:
    """Return a tensor between two bounds, numbers or tensors, of which either may be left out."""
    found, names = call.operand("self"), ("min_val", "max_val") if "min_val" in call.arguments else ("min", "max")
    for name, word in zip(names, ("maximum", "minimum"), strict=True):
        if call.get(name) is not None:
            found = elementwise(word, found, call.operand(name))
    return found


def _where(call: Call) -> Value:
    return where(call.operand("condition", "bool"), call.operand("self"), call.operand("other"))


def _remainder(call: Call) -> Value:
    """Return what a division leaves, with the divisor's sign."""
    first, second = call.operand("self"), call.operand("other")
    if not is_float(call.kind.dtype):
        return elementwise("floor_mod", first, second)
    left = elementwise("mod", first, second)
    return where(_is_turned(left, second), elementwise("add", left, second), left)


def _signbit(call: Call) -> Value:
    x = call["self"]
    if not is_float(tensor_type(x).dtype):
        return elementwise("less", x, 0)
    return elementwise("less", elementwise("copysign", constant(1, tensor_type(x).dtype), x), 0)


def _extreme_number(word: str) -> Convert:
    """Return what reads the larger or smaller number, of which one may be none."""

    def read(call: Call) -> Value:
        one, other = call.operand("self"), call.operand("other")
        if not is_float(call.kind.dtype):
            return elementwise(word, one, other)
        one, other = (
            where(elementwise("isnan", x), y, x) for x, y in ((one, other), (other, one))
        )  # fmt: skip
        return elementwise(word, one, other)

    return read


def _same(call: Call) -> Value:
    """Return a copy, or a conversion."""
    return call.operand("self")


def _copy(call: Call) -> Value:
    return broadcast(call.operand("src"), call.kind.shape)


def _full(call: Call) -> Value:
    value = call.get("fill_value", call.get("value", call.get("s", 0)))
    return (
        broadcast(converted(value, call.kind.dtype), call.kind.shape)
        if isinstance(value, Value)
        else filled(value, call)
    )


def _arange(call: Call) -> Value:
    count = call.kind.shape[0]
    start, step = call.get("start", 0), call.get("step", 1)
    return constant(start + np.arange(count) * step, call.kind.dtype)


def _indices(call: Call) -> Value:
    triangle = np.tril_indices if call.name.startswith("tril") else np.triu_indices
    return constant(np.stack(triangle(call["row"], call["offset"], call["col"])), call.kind.dtype)


def _random(call: Call) -> Value:
    raise RefusedError("draws random numbers, expected a model without them; move it out of the model")


def _dropout(call: Call) -> list[Value]:
    if call["train"]:
        raise RefusedError("drops elements at random, expected a model in evaluation mode")
    return [call["input"], broadcast(constant(True, "bool"), call.kind.shape)]


_FUNCTIONS = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1",
    "log", "log10", "log1p", "log2", "mish", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
_ALL: dict[str, Convert] = {
    **{name: _named(name) for name in _FUNCTIONS},
    **{name: _whole(name) for name in ("ceil", "floor", "trunc")},
    **{name: _test(name) for name in ("isinf", "isnan")},
    **{f"logical_{name}": _logical(f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{name}": _pair(f"bitwise_{name}", f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"__{name}__": _pair(f"bitwise_{name}", f"logical_{name}") for name in ("and", "or", "xor")},
    **{f"bitwise_{side}_shift": _pair(f"{side}_shift") for side in ("left", "right")},
    **{f"__{side[0]}shift__": _pair(f"{side}_shift") for side in ("left", "right")},
    **{
        name: _comparison(word)
        for name, word in {
            "eq": "equal",
            "ge": "greater_equal",
            "gt": "greater",
            "le": "less_equal",
            "lt": "less",
            "ne": "not_equal",
        }.items()
    },
    "_to_copy": _same,
    "add": _with_wide_numbers(_sum("add")),
    "alias": _same,
    "arange": _arange,
    "atan2": _pair("atan2"),
    "bernoulli": _random,
    "bitwise_not": lambda call: elementwise(
        "logical_not" if call.kind.dtype == "bool" else "bitwise_not", call["self"]
    ),
    "clamp": _clamp,
    "clone": _same,
    "copy": _copy,
    "copysign": _pair("copysign"),
    "div": _with_wide_numbers(_divided),
    "elu": _elu,
    "empty": _full,
    "empty_permuted": _full,
    "empty_strided": _full,
    "fill": _full,
    "floor_divide": _divided,
    "fmax": _extreme_number("maximum"),
    "fmin": _extreme_number("minimum"),
    "fmod": _pair("mod"),
    "full": _full,
    "full_like": _full,
    "gelu": _gelu,
    "hardswish": _hard_swish,
    "hardtanh": _clamp,
    "hypot": _pair("hypot"),
    "ldexp": lambda call: elementwise(
        "multiply", call.operand("self"), elementwise("power", constant(2, call.kind.dtype), call.operand("other"))
    ),
    "leaky_relu": _leaky_relu,
    "lift_fresh_copy": _same,
    "logical_not": lambda call: elementwise("logical_not", call.operand("self", "bool")),
    "maximum": _pair("maximum", "logical_or"),
    "minimum": _pair("minimum", "logical_and"),
    "mul": _with_wide_numbers(_pair("multiply", "logical_and")),
    "native_dropout": _dropout,
    "neg": _named("negative"),
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
    "round": lambda call: _rounded(call) if "decimals" in call.arguments else _whole("round")(call),
    "rrelu_with_noise_functional": _random_slope,
    "rsub": _with_wide_numbers(_reversed_difference),
    "scalar_tensor": _full,
    "signbit": _signbit,
    "sub": _with_wide_numbers(_sum("subtract")),
    "tril_indices": _indices,
    "triu_indices": _indices,
    "where": _where,
}
READERS = _ALL
"""Operator without its overload -> what reads it."""
