"""Find activations that a network spells out, such as GELU as multiplications and a tanh.

Exporters write one function in many ways. The pass writes a chain of elementwise operators on one value as a polynomial
(`_Polynomial`), in which ``0.5 * x * (1 + y)`` and ``x / 2 + x / 2 * y`` are the same, and compares it with the
polynomials of the activations. No term is neglected, however small: a network adds 1e-12 because it needs it.
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
    iterate_values,
    rewrite_graph,
)
from anatune.network.graph.operators import apply_operator, find_operator

__all__ = ["fuse_activations"]

_DEEPEST = 12
"""The most operators between the argument and the result of an activation."""
_LAST = ("multiply", "divide", "minimum", "maximum", "clip", "add")
"""The operators that can compute the result of an activation."""
_ROUNDED = 2.0**-21
"""The allowed relative error of a factor, which is a product of a few constants rounded to float32."""
_MOST_TERMS, _MOST_FACTORS = 8, 8
_LARGEST = 64.0
"""The largest constant that can be a part of an activation."""

_Factor = tuple[object, ...]
_Polynomial = tuple[tuple[tuple[_Factor, ...], float], ...]
"""The sorted terms, each with its factors and its coefficient. A factor is the argument, ("x",), or the name of a
function with its operands: another polynomial, bounds."""


def fuse_activations(graph: Graph) -> Graph:
    """Return a graph in which activations that consist of several operators are one operator."""
    is_half = any(_is_half(value) for value in (*graph.inputs, *graph.outputs))

    def replace(node: Node) -> Value:
        if node.op not in _LAST or not isinstance(node.type, TensorType) or node.type.dtype != "float32":
            return node
        for source in reversed(_sources(node)):
            poly = _polynomial_of(node, {source: _ARGUMENT}, is_half=is_half)
            if poly is None or len(poly) > 2:
                continue
            for name, known_polynomial in _ACTIVATIONS.items():
                if _is_equal(poly, known_polynomial):
                    return apply_operator(f"nn.{name}", source)
        return node

    return rewrite_graph(graph, replace)


def _is_half(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in HALVES


def _spells(value: Value) -> TypeGuard[Node]:
    return isinstance(value, Node) and find_operator(value).spells_activations


def _sources(node: Node) -> list[Value]:
    """Return the values of a node's own type that it may be a function of, from which it is computed in some steps."""
    sources: dict[Value, None] = {}
    level: list[Value] = [node]
    for _ in range(_DEEPEST):
        following: list[Value] = []
        for value in level:
            if _spells(value):
                for operand in iterate_values(value.arguments):
                    if operand.type == node.type and operand not in sources and not isinstance(operand, Constant):
                        sources[operand] = None
                        following.append(operand)
        level = following
    return list(sources)


# -- polynomials ---------------------------------------------------------------------------------------------------


def _sort_terms(terms: Mapping[tuple[_Factor, ...], float]) -> _Polynomial:
    return tuple(
        sorted(
            ((factors, size) for factors, size in terms.items() if size), key=lambda term: (len(term[0]), repr(term[0]))
        )
    )


def _constant(number: float) -> _Polynomial:
    return _sort_terms({(): number})


def _function(name: str, *operands: object) -> _Polynomial:
    return ((((name, *operands),), 1.0),)


def _add(first: _Polynomial, second: _Polynomial) -> _Polynomial:
    terms = dict(first)
    for factors, size in second:
        terms[factors] = terms.get(factors, 0.0) + size
    return _sort_terms(terms)


def _multiply(first: _Polynomial, second: _Polynomial) -> _Polynomial:
    terms: dict[tuple[_Factor, ...], float] = {}
    for factors, size in first:
        for more_factors, more in second:
            joined = tuple(sorted((*factors, *more_factors), key=repr))
            terms[joined] = terms.get(joined, 0.0) + size * more
    return _sort_terms(terms)


def _number(poly: _Polynomial) -> float | None:
    """Return the number that a polynomial is equal to, or None if it has other terms."""
    if not poly:
        return 0.0
    return poly[0][1] if len(poly) == 1 and not poly[0][0] else None


def _divide(first: _Polynomial, second: _Polynomial) -> _Polynomial | None:
    number = _number(second)
    if number is None:
        return _multiply(first, _function("reciprocal", second))
    return _multiply(first, _constant(1.0 / number)) if number else None


def _power(base: _Polynomial, exponent: _Polynomial) -> _Polynomial | None:
    number = _number(exponent)
    if number not in (1, 2, 3, 4):
        return None
    product = base
    for _ in range(int(number) - 1):
        product = _multiply(product, base)
    return product


def _negate(poly: _Polynomial) -> _Polynomial:
    return _multiply(poly, _constant(-1.0))


def _sigmoid(poly: _Polynomial) -> _Polynomial:
    return _function("reciprocal", _add(_constant(1.0), _function("exp", _negate(poly))))


def _tanh(poly: _Polynomial) -> _Polynomial:
    twice = _multiply(_constant(2.0), poly)
    return _add(_multiply(_constant(2.0), _sigmoid(twice)), _constant(-1.0))


def _clip(poly: _Polynomial, low: _Polynomial, high: _Polynomial) -> _Polynomial | None:
    """Return a polynomial clipped to two numbers, which may be infinite; nested bounds become one pair of bounds."""
    least, most = _number(low), _number(high)
    if least is None or most is None or not least <= most:
        return None
    if len(poly) == 1 and poly[0][1] == 1.0 and len(poly[0][0]) == 1 and poly[0][0][0][0] == "between":
        _, poly, *bounds = cast(tuple[str, _Polynomial, float, float], poly[0][0][0])
        least, most = (min(max(bound, least), most) for bound in bounds)
    return _function("between", poly, least, most)


_LEAST, _MOST = _constant(-math.inf), _constant(math.inf)


def _maximum(first: _Polynomial, second: _Polynomial) -> _Polynomial | None:
    data, bound = (second, first) if _number(second) is None else (first, second)
    return _clip(data, bound, _MOST)


def _minimum(first: _Polynomial, second: _Polynomial) -> _Polynomial | None:
    data, bound = (second, first) if _number(second) is None else (first, second)
    return _clip(data, _LEAST, bound)


_FUNCTIONS: dict[str, Callable[..., _Polynomial | None]] = {
    "add": _add,
    "clip": _clip,
    "divide": _divide,
    "erf": lambda poly: _function("erf", poly),
    "exp": lambda poly: _function("exp", poly),
    "maximum": _maximum,
    "minimum": _minimum,
    "multiply": _multiply,
    "negative": _negate,
    "nn.relu": lambda poly: _clip(poly, (), _MOST),
    "power": _power,
    "sigmoid": _sigmoid,
    "square": lambda poly: _multiply(poly, poly),
    "subtract": lambda first, second: _add(first, _negate(second)),
    "tanh": _tanh,
}
"""Operator -> the polynomial of its result from those of its operands, or None."""
_ARGUMENT: _Polynomial = (((("x",),), 1.0),)
_SCALE, _CUBE = math.sqrt(2.0 / math.pi), 0.044715
_INNER = _sort_terms({(("x",),): 2.0 * _SCALE, (("x",),) * 3: 2.0 * _SCALE * _CUBE})
_HALF = _multiply(_constant(0.5), _ARGUMENT)
_ACTIVATIONS = {
    "relu": _function("between", _ARGUMENT, 0.0, math.inf),
    "relu6": _function("between", _ARGUMENT, 0.0, 6.0),
    "silu": _multiply(_ARGUMENT, _sigmoid(_ARGUMENT)),
    "gelu": _add(_HALF, _multiply(_HALF, _function("erf", _multiply(_constant(math.sqrt(0.5)), _ARGUMENT)))),
    "gelu_tanh": _multiply(_ARGUMENT, _sigmoid(_INNER)),
}
"""Activation -> its polynomial."""
_IRRATIONAL = (math.sqrt(2.0), math.sqrt(0.5), _SCALE, _CUBE, 2.0 * _SCALE)
_SIGNIFICANT_BITS = (11, 8)
"""The significant bits of float16 and bfloat16."""
_FROM_HALVES = {
    math.ldexp(round(math.ldexp(part, bits)), power - bits): number
    for number in _IRRATIONAL
    for part, power in (math.frexp(number),)
    for bits in _SIGNIFICANT_BITS
}
"""The constants of activations rounded to 16 bits -> the exact constants."""


def _is_equal(poly: object, other: object) -> bool:
    """Return whether two polynomials are equal up to the rounding of factors; exact numbers have to agree."""
    if isinstance(poly, tuple) and isinstance(other, tuple):
        return len(poly) == len(other) and all(_is_equal(part, same) for part, same in zip(poly, other, strict=True))
    if isinstance(poly, float) and isinstance(other, float) and not (2.0 * other).is_integer() and math.isfinite(other):
        return abs(poly - other) <= _ROUNDED * abs(other)
    return poly == other


def _polynomial_of_number(number: float, *, is_half: bool) -> _Polynomial | None:
    """Return a constant as a polynomial, or None if it is so large that it rounds the number it is added to."""
    if _LARGEST < abs(number) < math.inf:
        return None
    return _constant(_FROM_HALVES.get(number, number) if is_half else number)


def _polynomial_of(
    value: Argument, sums: dict[Value, _Polynomial | None], depth: int = 0, *, is_half: bool
) -> _Polynomial | None:
    """Return a value as a polynomial, or None if it depends on values without one or has too many terms."""
    if isinstance(value, Scalar):
        return _polynomial_of_number(float(value.value), is_half=is_half)
    if not isinstance(value, Value) or depth > _DEEPEST:
        return None
    if value not in sums:
        sums[value] = None
        if isinstance(value, Constant) and value.array.size == 1:
            sums[value] = _polynomial_of_number(float(value.array.reshape(())), is_half=is_half)
        elif _spells(value):
            operands: list[_Polynomial] = []
            for argument in value.arguments:
                poly = _polynomial_of(argument, sums, depth + 1, is_half=is_half)
                if poly is None or len(poly) > _MOST_TERMS or any(len(term[0]) > _MOST_FACTORS for term in poly):
                    return None  # skip the other operands, of which there may be many
                operands.append(poly)
            sums[value] = _FUNCTIONS[value.op](*operands)
    return sums[value]
