"""Expand TVM's functions and reductions into functions of Triton's or of `printing.HELPERS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anatune.network.relax.device.ir import (
    INFINITY,
    NAN_STAYS,
    CallExpr,
    Expr,
    Infix,
    Negative,
    NoSourceError,
    Number,
    equal,
    where,
)

__all__ = ["expand", "join", "reduce_tile"]

_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR
_TRITON_NAMES = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "erf", "sqrt", "rsqrt", "floor", "ceil", "sin", "cos")),
    **dict.fromkeys(("where", "maximum", "minimum", "_floor_div", "_floor_mod")),
    **{name: f"_{name}" for name in ("copysign", "cosh", "erfc", "expm1", "gelu", "hypot", "log1p", "mish", "sinh")},
    **{"tanh": "_tanh", "fabs": "abs", "nearbyint": "_nearest", "round": "_nearest"},
}
"""Function -> its name in Triton, or None if it is the same."""


def _call(function: str, value: Expr) -> CallExpr:
    return CallExpr(function, (value,))


_SINGLE_USE: dict[str, Callable[[Expr], Expr]] = {
    "sigmoid": lambda x: 1.0 / (1.0 + _call("exp", -x)),
    "isinf": lambda x: equal(_call("abs", x), INFINITY),
    "isfinite": lambda x: _call("abs", x) < INFINITY,
    "log10": lambda x: _call("log", x) * (1 / math.log(10)),
    "bitwise_not": lambda x: Negative(x, "~"),
}
"""Function -> its expansion, in which the argument occurs once."""
_MULTIPLE_USE: dict[str, Callable[[Expr], Expr]] = {
    "silu": lambda x: x / (1.0 + _call("exp", -x)),
    "gelu_tanh": lambda x: x / (1.0 + _call("exp", -x * (_LINEAR + _CUBIC * x * x))),
    "tan": lambda x: _call("sin", x) / _call("cos", x),
    "isnan": lambda x: Infix("!=", x, x),
    "trunc": lambda x: where(x < 0.0, _call("ceil", x), _call("floor", x)),
}
_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: lambda x: _call("sqrt", x),
    -0.5: lambda x: _call("rsqrt", x),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
}
_JOINS: dict[str, tuple[Callable[[Expr, Expr], Expr], str]] = {
    "Add": (lambda x, y: x + y, "sum"),
    "Max": (lambda x, y: CallExpr("maximum", (x, y), NAN_STAYS), "_max"),
    "Min": (lambda x, y: CallExpr("minimum", (x, y), NAN_STAYS), "_min"),
    "Or": (lambda x, y: Infix("|", x, y), "max"),
    "And": (lambda x, y: x & y, "min"),
    "Mul": (lambda x, y: x * y, "_product"),
}
"""Kind of a reduction -> a function that joins two values, and the name of one that reduces an axis."""


def expand(
    function: str, arguments: Sequence[Expr], keywords: tuple[tuple[str, str], ...], name: Callable[[Expr], Expr]
) -> Expr:
    """Return the value of a function call.

    Parameters
    ----------
    name : callable
        Returns a name for a value that is used more than once.

    Raises
    ------
    NoSourceError
        The function has no Triton source.
    """
    if function not in {*_TRITON_NAMES, *_SINGLE_USE, *_MULTIPLE_USE, "pow"}:
        raise NoSourceError(f"the function {function} has no Triton source")
    first = arguments[0]
    if function == "pow":
        exponent = arguments[1].value if isinstance(arguments[1], Number) else math.nan
        return _POWERS[exponent](name(first)) if exponent in _POWERS else CallExpr("_power", tuple(arguments))
    if function in _MULTIPLE_USE:
        return _MULTIPLE_USE[function](name(first))
    if function in _SINGLE_USE:
        return _SINGLE_USE[function](first)
    return CallExpr(_TRITON_NAMES[function] or function, tuple(arguments), keywords)


def join(kind: str, left: Expr, right: Expr) -> Expr:
    """Return two parts of a reduction, joined."""
    return _JOINS[kind][0](left, right)


def reduce_tile(kind: str, value: Expr) -> CallExpr:
    """Return the reduction of each row of a tile."""
    return CallExpr(_JOINS[kind][1], (value,), (("axis", "1"), ("keep_dims", "True")))
