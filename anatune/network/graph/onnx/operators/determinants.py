"""Determinants, spelt as the elimination of one column after the other; the largest element of a column comes first."""

from __future__ import annotations

import math

from anatune.network.graph.building import (
    along,
    arg_extreme,
    broadcast,
    cast,
    constant,
    elementwise,
    reduced,
    reshape,
    sliced,
    where,
)
from anatune.network.graph.nodes import Value
from anatune.network.graph.onnx.call import Call, Convert, RefusedError

__all__ = ["READERS"]

_MOST_ROWS = 64
"""Of a matrix whose elimination is written out."""


def _determinant(call: Call) -> Value:
    """Return the determinants of matrices: products of pivots, each of which changes the sign if it is moved.

    As in ONNX's reference they are computed in float64: pivots of float32 lose what cancels, and products overflow.
    """
    *batch, size, _ = call.kind().shape
    if size > _MOST_ROWS:
        raise RefusedError(f"is of {size} rows, expected {_MOST_ROWS} at most")
    count, dtype = math.prod(batch), "float64"
    rest, found = reshape(cast(call[0], dtype), (count, size, size)), broadcast(constant(1, dtype), (count,))
    while size:
        column = reshape(sliced(rest, [2], [0], [1]), (count, size))
        place = arg_extreme("argmax", elementwise("abs", column), 1, keepdims=True)
        is_chosen = reshape(elementwise("equal", place, along(1, 2, size)), (count, size, 1))
        zero = constant(0, dtype)
        row = reduced("sum", where(is_chosen, rest, zero), [1], keepdims=True)
        others = sliced(where(is_chosen, sliced(rest, [1], [0], [1]), rest), [1], [1], [size])
        pivot = sliced(row, [2], [0], [1])
        flat = reshape(pivot, (count,))
        sign = where(elementwise("equal", reshape(place, (count,)), 0), constant(1, dtype), constant(-1, dtype))
        found = elementwise("multiply", found, elementwise("multiply", flat, sign))
        divisor = where(elementwise("equal", pivot, 0), constant(1, dtype), pivot)
        factor = elementwise("divide", sliced(others, [2], [0], [1]), divisor)
        size -= 1
        if size:
            ends = ([2], [1], [size + 1])
            taken_off = elementwise("multiply", factor, sliced(row, *ends))
            rest = elementwise("subtract", sliced(others, *ends), taken_off)
    return cast(reshape(found, batch), call.kind().dtype)


READERS: dict[str, Convert] = {"Det": _determinant}
