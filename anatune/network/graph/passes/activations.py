"""Activations that a model spells out, such as GELU of multiplications and a tanh, by their names.

Exporters spell one function in many ways. What some element-wise operators make of one value is therefore written as a
sum of products (`_Sum`), in which ``0.5 * x * (1 + y)`` and ``x / 2 + x / 2 * y`` are the same, and compared with the
sums of the activations. No term is neglected, however small: a model adds 1e-12 because it needs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeGuard, cast

from anatune.network.graph.nodes import (
    HALVES,
    Argument,
    Constant,
    Graph,
    Node,
    Scalar,
    TensorType,
    Value,
    rewritten,
    values_in,
)
from anatune.network.graph.operators import applied, operator_of

__all__ = ["with_activations"]

_DEEPEST = 12
"""Operators between an activation's result and its argument."""
_LAST = ("multiply", "divide", "minimum", "maximum", "clip", "add")
"""Operators that spelt activations end with."""
_ROUNDED = 2.0**-21
"""Relative error of a factor: it is a product of a few constants that are rounded to float32."""
_MOST_TERMS, _MOST_FACTORS = 8, 8
_LARGEST = 64.0
"""Larger constants are no part of an activation."""

_Factor = tuple[object, ...]
_Sum = tuple[tuple[tuple[_Factor, ...], float], ...]
"""Terms in order, each its factors and its coefficient. A factor is the argument, ("x",), or a function's name with
what it takes: another sum, bounds."""


def with_activations(graph: Graph) -> Graph:
    """Return a graph in which activations of several operators are one."""
    is_half = any(_is_half(value) for value in (*graph.inputs, *graph.outputs))

    def replace(own: Node) -> Value:
        if own.op not in _LAST or not isinstance(own.type, TensorType) or own.type.dtype != "float32":
            return own
        for source in reversed(_sources(own)):
            form = _sum_of(own, {source: _ARGUMENT}, is_half=is_half)
            if form is None or len(form) > 2:
                continue
            for name, want in _ACTIVATIONS.items():
                if _is_equal(form, want):
                    return applied(f"nn.{name}", source)
        return own

    return rewritten(graph, replace)


def _is_half(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in HALVES


def _spells(value: Value) -> TypeGuard[Node]:
    return isinstance(value, Node) and operator_of(value).spells_activations


def _sources(node: Node) -> list[Value]:
    """Return what a node may be a function of: what it reads, however indirectly, of its own type."""
    found: dict[Value, None] = {}
    level: list[Value] = [node]
    for _ in range(_DEEPEST):
        following: list[Value] = []
        for value in level:
            if _spells(value):
                for one in values_in(value.arguments):
                    if one.type == node.type and one not in found and not isinstance(one, Constant):
                        found[one] = None
                        following.append(one)
        level = following
    return list(found)


# -- sums ----------------------------------------------------------------------------------------------------------


def _order(terms: Mapping[tuple[_Factor, ...], float]) -> _Sum:
    return tuple(
        sorted(
            ((factors, size) for factors, size in terms.items() if size), key=lambda term: (len(term[0]), repr(term[0]))
        )
    )


def _constant(number: float) -> _Sum:
    return _order({(): number})


def _function(name: str, *operands: object) -> _Sum:
    return ((((name, *operands),), 1.0),)


def _add(first: _Sum, second: _Sum) -> _Sum:
    terms = dict(first)
    for factors, size in second:
        terms[factors] = terms.get(factors, 0.0) + size
    return _order(terms)


def _multiply(first: _Sum, second: _Sum) -> _Sum:
    terms: dict[tuple[_Factor, ...], float] = {}
    for factors, size in first:
        for more_factors, more in second:
            joined = tuple(sorted((*factors, *more_factors), key=repr))
            terms[joined] = terms.get(joined, 0.0) + size * more
    return _order(terms)


def _number(form: _Sum) -> float | None:
    """Return the number that a sum is; None: it has other terms."""
    if not form:
        return 0.0
    return form[0][1] if len(form) == 1 and not form[0][0] else None


def _divide(first: _Sum, second: _Sum) -> _Sum | None:
    number = _number(second)
    if number is None:
        return _multiply(first, _function("reciprocal", second))
    return _multiply(first, _constant(1.0 / number)) if number else None


def _power(base: _Sum, exponent: _Sum) -> _Sum | None:
    number = _number(exponent)
    if number not in (1, 2, 3, 4):
        return None
    product = base
    for _ in range(int(number) - 1):
        product = _multiply(product, base)
    return product


def _negative(form: _Sum) -> _Sum:
    return _multiply(form, _constant(-1.0))


def _sigmoid(form: _Sum) -> _Sum:
    return _function("reciprocal", _add(_constant(1.0), _function("exp", _negative(form))))


def _tanh(form: _Sum) -> _Sum:
    twice = _multiply(_constant(2.0), form)
    return _add(_multiply(_constant(2.0), _sigmoid(twice)), _constant(-1.0))


def _between(form: _Sum, low: _Sum, high: _Sum) -> _Sum | None:
    """Return a sum between two numbers, of which ``-inf`` and ``inf`` are none; bounds in bounds are one pair."""
    least, most = _number(low), _number(high)
    if least is None or most is None or not least <= most:
        return None
    if len(form) == 1 and form[0][1] == 1.0 and len(form[0][0]) == 1 and form[0][0][0][0] == "between":
        _, form, *bounds = cast(tuple[str, _Sum, float, float], form[0][0][0])
        least, most = (min(max(bound, least), most) for bound in bounds)
    return _function("between", form, least, most)


_LEAST, _MOST = _constant(-math.inf), _constant(math.inf)


def _maximum(first: _Sum, second: _Sum) -> _Sum | None:
    data, bound = (second, first) if _number(second) is None else (first, second)
    return _between(data, bound, _MOST)


def _minimum(first: _Sum, second: _Sum) -> _Sum | None:
    data, bound = (second, first) if _number(second) is None else (first, second)
    return _between(data, _LEAST, bound)


_FUNCTIONS: dict[str, Callable[..., _Sum | None]] = {
    "add": _add,
    "clip": _between,
    "divide": _divide,
    "erf": lambda form: _function("erf", form),
    "exp": lambda form: _function("exp", form),
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "negative": _negative,
    "nn.relu": lambda form: _between(form, (), _MOST),
    "power": _power,
    "sigmoid": _sigmoid,
    "square": lambda form: _multiply(form, form),
    "subtract": lambda first, second: _add(first, _negative(second)),
    "tanh": _tanh,
}
"""Operator -> the sum of its operands' sums; None: there is none."""
_ARGUMENT: _Sum = (((("x",),), 1.0),)
_SCALE, _CUBE = math.sqrt(2.0 / math.pi), 0.044715
_INNER = _order({(("x",),): 2.0 * _SCALE, (("x",),) * 3: 2.0 * _SCALE * _CUBE})
_HALF = _multiply(_constant(0.5), _ARGUMENT)
_ACTIVATIONS = {
    "relu": _function("between", _ARGUMENT, 0.0, math.inf),
    "relu6": _function("between", _ARGUMENT, 0.0, 6.0),
    "silu": _multiply(_ARGUMENT, _sigmoid(_ARGUMENT)),
    "gelu": _add(_HALF, _multiply(_HALF, _function("erf", _multiply(_constant(math.sqrt(0.5)), _ARGUMENT)))),
    "gelu_tanh": _multiply(_ARGUMENT, _sigmoid(_INNER)),
}
"""Activation -> its sum."""
_IRRATIONAL = (math.sqrt(2.0), math.sqrt(0.5), _SCALE, _CUBE, 2.0 * _SCALE)
_SIGNIFICANT_BITS = (11, 8)
"""Of float16 and bfloat16."""
_FROM_HALVES = {
    math.ldexp(round(math.ldexp(part, bits)), power - bits): number
    for number in _IRRATIONAL
    for part, power in (math.frexp(number),)
    for bits in _SIGNIFICANT_BITS
}
"""What a model of 16 bits makes of the constants of activations -> the constants."""


def _is_equal(form: object, want: object) -> bool:
    """Whether two sums are the same but for factors that are rounded; numbers without rounding have to be equal."""
    if isinstance(form, tuple) and isinstance(want, tuple):
        return len(form) == len(want) and all(_is_equal(part, same) for part, same in zip(form, want, strict=True))
    if isinstance(form, float) and isinstance(want, float) and not (2.0 * want).is_integer() and math.isfinite(want):
        return abs(form - want) <= _ROUNDED * abs(want)
    return form == want


def _of_number(number: float, *, is_half: bool) -> _Sum | None:
    """Return a constant as a sum; None: it is large, so that what is added to it is rounded."""
    if _LARGEST < abs(number) < math.inf:
        return None
    return _constant(_FROM_HALVES.get(number, number) if is_half else number)


def _sum_of(value: Argument, sums: dict[Value, _Sum | None], depth: int = 0, *, is_half: bool) -> _Sum | None:
    """Return a value as a sum; None: it depends on more than `sums` has, or has too many terms."""
    if isinstance(value, Scalar):
        return _of_number(float(value.value), is_half=is_half)
    if not isinstance(value, Value) or depth > _DEEPEST:
        return None
    if value not in sums:
        sums[value] = None
        if isinstance(value, Constant) and value.array.size == 1:
            sums[value] = _of_number(float(value.array.reshape(())), is_half=is_half)
        elif _spells(value):
            operands: list[_Sum] = []
            for argument in value.arguments:
                form = _sum_of(argument, sums, depth + 1, is_half=is_half)
                if form is None or len(form) > _MOST_TERMS or any(len(term[0]) > _MOST_FACTORS for term in form):
                    return None  # the others do not matter, and may be many
                operands.append(form)
            sums[value] = _FUNCTIONS[value.op](*operands)
    return sums[value]
