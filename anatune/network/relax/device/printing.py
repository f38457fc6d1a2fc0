"""Print statements of the loop language as Triton source."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from anatune.emit.elementary import MIDDLE, NORMAL_TAIL
from anatune.emit.script import Script
from anatune.network.relax.device.ir import (
    Assign,
    CallExpr,
    Cast,
    Expanded,
    Expr,
    For,
    Full,
    Infix,
    Load,
    Name,
    Negative,
    NoSourceError,
    Number,
    Statement,
    Store,
    parts_of,
)  # fmt: skip
from anatune.templates.triton.program.steps import TRITON_TYPES

__all__ = ["HELPERS", "helpers_in", "print_expr", "print_statements", "triton_type"]

_SERIES = functools.reduce(lambda rest, step: f"(1.0 + x / {step}.0 * {rest})", range(8, 1, -1), "1.0")
_EXPM1 = f"""@triton.jit
def _expm1(x):
    return tl.where(tl.abs(x) < 0.5, x * {_SERIES}, tl.exp(x) - 1.0)
"""
_POLYNOMIAL = functools.reduce(
    lambda rest, factor: f"({rest} * ratio + {factor})", NORMAL_TAIL[1:], str(NORMAL_TAIL[0])
)
_TAIL = f"""@triton.jit
def _tail(x):
    ratio = x / (x + {MIDDLE})
    share = {_POLYNOMIAL}
    return share * tl.exp(-0.5 * x * x) * {MIDDLE} / (x + {MIDDLE})
"""
"""The tail of the normal distribution, of -x for x >= 0."""
HELPERS = {
    "_power": """@triton.jit
def _power(x, y):
    size = tl.exp2(y * tl.log2(tl.abs(x)))
    odd = (y - 2.0 * tl.floor(y * 0.5)) == 1.0
    whole = tl.floor(y) == y
    signed = tl.where(odd, -size, size)
    negative = tl.where(whole, signed, float("nan"))
    return tl.where(y == 0.0, 1.0, tl.where(x < 0.0, negative, size))
""",
    "_tanh": """@triton.jit
def _tanh(x):
    shrunk = tl.exp(-2.0 * tl.abs(x))
    far = tl.where(x < 0.0, shrunk - 1.0, 1.0 - shrunk) / (1.0 + shrunk)
    return tl.where(tl.abs(x) < 0.05, x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0))), far)
""",
    "_copysign": """@triton.jit
def _copysign(x, y):
    return tl.where((y < 0.0) | ((y == 0.0) & (1.0 / y < 0.0)), -tl.abs(x), tl.abs(x))
""",
    "_cosh": """@triton.jit
def _cosh(x):
    half = tl.exp(tl.abs(x) - 0.6931471805599453)
    return half + 0.25 / half
""",
    "_erfc": f"""{_TAIL}

@triton.jit
def _erfc(x):
    tail = 2.0 * _tail(tl.abs(x) * 1.4142135623730951)
    return tl.where(x < 0.0, 2.0 - tail, tail)
""",
    "_expm1": _EXPM1,
    "_gelu": f"""{_TAIL}

@triton.jit
def _gelu(x):
    below = x * _tail(tl.abs(x))
    return tl.where(x > 10.0, x, tl.where(x > 0.0, x - below, below))
""",
    "_hypot": """@triton.jit
def _hypot(x, y):
    most = tl.maximum(tl.abs(x), tl.abs(y))
    share = tl.minimum(tl.abs(x), tl.abs(y)) / most
    return tl.where((most == 0.0) | (most == float("inf")), most, most * tl.sqrt(1.0 + share * share))
""",
    "_log1p": """@triton.jit
def _log1p(x):
    whole = 1.0 + x
    value = tl.log(whole) * (x / (whole - 1.0))
    return tl.where((whole == 1.0) | (whole == float("inf")), x, value)
""",
    "_mish": """@triton.jit
def _mish(x):
    power = tl.exp(-tl.abs(x))
    above = (1.0 + 2.0 * power) / (1.0 + 2.0 * power * (1.0 + power))
    return x * tl.where(x < 0.0, power * (2.0 + power) / (2.0 + power * (2.0 + power)), above)
""",
    "_sinh": f"""{_EXPM1}

@triton.jit
def _sinh(x):
    half = tl.exp(tl.abs(x) - 0.6931471805599453)
    near = _expm1(tl.abs(x))
    size = tl.where(tl.abs(x) < 1.0, 0.5 * (near + near / (near + 1.0)), half - 0.25 / half)
    return tl.where(x < 0.0, -size, size)
""",
    "_nearest": """@triton.jit
def _nearest(x):
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    return tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1.0)), low + 1.0, low)
""",
    "_product": """@triton.jit
def _times(x, y):
    return x * y


@triton.jit
def _product(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    return tl.reduce(x, axis, _times, keep_dims=keep_dims)
""",
    **{
        f"_{word}": f"""@triton.jit
def _{word}_of_two(x, y):
    return tl.{word}imum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _{word}(x, axis: tl.constexpr, keep_dims: tl.constexpr):
    return tl.reduce(x, axis, _{word}_of_two, keep_dims=keep_dims)
"""
        for word in ("max", "min")
    },
    "_floor_mod": """@triton.jit
def _floor_mod(x, y):
    return (x % y + y) % y
""",
    "_floor_div": """@triton.jit
def _floor_div(x, y):
    return (x - (x % y + y) % y) // y
""",
}
"""Name, which no kernel has -> source of a function that generated modules contain if they use it.

tanh is computed by its series where the quotient cancels."""


_LEVELS = {"|": 1, "^": 2, "&": 3, "<<": 4, ">>": 4, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6}
"""Operator -> precedence; comparisons have the lowest, 0."""
_SIGN, _ALONE = 7, 8
_OTHERS = ("int16", "int64", "uint16", "uint32", "uint64", "float64")


def triton_type(dtype: str) -> str:
    """Return the attribute of ``triton.language`` for a number format.

    Raises
    ------
    NoSourceError
        Triton has no such type.
    """
    types = {**TRITON_TYPES, "bool": "int1", **{name: name for name in _OTHERS}}
    if dtype not in types:
        raise NoSourceError(f"numbers of type {dtype} have no Triton source; keep them out of the model")
    return types[dtype]


def helpers_in(statements: Iterable[Statement]) -> set[str]:
    """Return the `HELPERS` that statements call."""
    parts = (part for statement in statements for part in parts_of(statement))
    return {part.function for part in parts if isinstance(part, CallExpr) and part.function in HELPERS}


def print_statements(text: Script, statements: Iterable[Statement]) -> None:
    """Print statements as lines."""
    for statement in statements:
        match statement:
            case Assign(name, value):
                text.line(f"{name} = {print_expr(value)}")
            case Store(parameter, index, value, mask):
                where = "" if mask is None else f", mask={print_expr(mask)}"
                text.line(f"tl.store({parameter}_ptr + {print_expr(index, 6)}, {print_expr(value)}{where})")
            case For(name, end, step, body):
                with text.scope(f"for {name} in range(0, {end}, {step}):"):
                    print_statements(text, body)


def print_expr(node: Expr, least: int = 0) -> str:
    """Return the text of an expression, in brackets if its precedence is below `least`."""
    text, level = _text_and_level(node)
    return f"({text})" if level < least else text


def _text_and_level(node: Expr) -> tuple[str, int]:
    match node:
        case Name(name):
            return name, _ALONE
        case Number(value):
            if isinstance(value, float) and not math.isfinite(value):
                return f'float("{value}")', _ALONE
            return repr(value), _ALONE if value >= 0 else _SIGN
        case Negative(value, sign):
            return f"{sign}{print_expr(value, _SIGN)}", _SIGN
        case Infix(sign, left, right):
            level = _LEVELS.get(sign, 0)
            return f"{print_expr(left, max(level, 1))} {sign} {print_expr(right, level + 1)}", level
        case CallExpr(function, arguments, keywords):
            given = [*map(print_expr, arguments), *(f"{word}={value}" for word, value in keywords)]
            return f"{'' if function in HELPERS else 'tl.'}{function}({', '.join(given)})", _ALONE
        case Cast(value, dtype):
            return f"{print_expr(value, _ALONE)}.to(tl.{triton_type(dtype)})", _ALONE
        case Full(shape, value, dtype):
            return f"tl.full({shape}, {print_expr(value)}, tl.{triton_type(dtype)})", _ALONE
        case Expanded(value, axis):
            return f"{print_expr(value, _ALONE)}[{'None, :' if axis else ':, None'}]", _ALONE
        case Load(parameter, index, mask, other):
            where = "" if mask is None else f", mask={print_expr(mask)}"
            where += "" if other is None else f", other={print_expr(other)}"
            return f"tl.load({parameter}_ptr + {print_expr(index, 6)}{where})", _ALONE
    raise NoSourceError(f"{type(node).__name__} of a nest has no Triton source: it is made one of tiles first")
