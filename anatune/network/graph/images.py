"""Images at other places: resized along each axis by weights that are known, or read where another tensor says."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    axis_indices,
    cast,
    constant,
    elementwise,
    gather_rows,
    matmul,
    permute,
    reshape,
    sliced,
    taken,
    where,
)
from anatune.network.graph.nodes import Array, Value, tensor_type

__all__ = ["Tap", "clipped", "grid_sampled", "neighbours", "resized_axis", "weighted"]

_MOST_TAPS = 4
"""Of which a sum of takes is made; of more, a product with a matrix."""
Tap = tuple[Value, Value | None]
"""Places along a dimension, int64 and in range, and their weights; None: 1."""


def _cubic(away: Array, a: float) -> Array:
    near = ((a + 2) * away - (a + 3)) * away**2 + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return np.asarray(np.where(away <= 1, near, np.where(away < 2, far, 0)))


def neighbours(
    centres: Array, size: int, mode: str, *, shrunk: float = 1.0, slope: float = -0.75, exclude_outside: bool = False
) -> tuple[Array, Array]:
    """Return which elements each output is made of, and their weights; both (outputs, taps).

    Parameters
    ----------
    centres : ndarray
        Where each output lies among `size` elements.
    mode : {"linear", "cubic"}
    shrunk : float
        By how much the image shrinks, where weights are to reach over all that an output covers; else 1.
    slope : float
        Of the cubic, a.
    exclude_outside : bool
        Whether elements that are not there have no weight; else the outermost ones are there again.
    """
    first = math.floor((-2 if mode == "cubic" else -1) / shrunk) + 1
    places = np.ceil(centres)[:, None] - 1 + np.arange(first, 2 - first)
    away = np.abs(places - centres[:, None]) * shrunk
    weights = _cubic(away, slope) if mode == "cubic" else np.maximum(1 - away, 0)
    if exclude_outside:
        weights = np.where((places >= 0) & (places < size), weights, 0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.any(weights != 0, axis=0)
    used[0] |= not len(weights)  # a sum of no taps has no shape
    return np.clip(places, 0, size - 1).astype(np.int64)[:, used], weights[:, used]


def resized_axis(value: Value, axis: int, places: Array, weights: Array) -> Value:
    """Return a tensor whose axis is made of weighted elements."""
    kind = tensor_type(value)
    rank, size, (outputs, taps) = len(kind.shape), kind.shape[axis], places.shape
    if taps == 1 and np.all(weights == 1):
        return taken(value, constant(places[:, 0], "int64"), axis)
    if taps > _MOST_TAPS:
        matrix = np.zeros((size, outputs))
        np.add.at(matrix, (places, np.arange(outputs)[:, None]), weights)
        order = [*(place for place in range(rank) if place != axis), axis]
        found = matmul(permute(value, order), constant(matrix, kind.dtype))
        return permute(found, np.argsort(order).tolist())
    total: Value | None = None
    for tap in range(taps):
        factor = constant(weights[:, tap].reshape(-1, *(1,) * (rank - 1 - axis)), kind.dtype)
        part = elementwise("multiply", taken(value, constant(places[:, tap], "int64"), axis), factor)
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return total


def clipped(value: Value, low: float, high: float) -> Value:
    """Return a value, or the end of a range that it is beyond."""
    return elementwise("minimum", elementwise("maximum", value, low), high)


def _reflected(place: Value, low: float, high: float) -> Value:
    """Return places turned around at both ends of a range, as often as it takes."""
    length = high - low
    if length == 0:
        return elementwise("add", elementwise("multiply", place, 0), low)
    away = elementwise("abs", elementwise("subtract", place, low))
    turns = elementwise("floor", elementwise("divide", away, 2 * length))
    rest = elementwise("subtract", away, elementwise("multiply", turns, 2 * length))
    back = elementwise("subtract", 2 * length + low, rest)
    return elementwise("minimum", elementwise("add", rest, low), back)


def _cubic_at(away: Value, distance: int) -> Value:
    """Return the weights of elements that are `distance` steps from the one before a place; Keys, a = -0.75."""
    a = -0.75
    x = elementwise("abs", elementwise("subtract", away, float(distance)))

    def of(*factors: float) -> Value:
        return functools.reduce(
            lambda total, factor: elementwise("add", elementwise("multiply", total, x), factor),
            factors[2:],
            elementwise("add", elementwise("multiply", x, factors[0]), factors[1]),
        )

    return of(a + 2, -(a + 3), 0, 1) if distance in (0, 1) else of(a, -5 * a, 8 * a, -4 * a)


def _taps(place: Value, size: int, mode: str, padding: str, is_aligned: bool, clips_first: bool) -> list[Tap]:
    """Return what an image is read at along a dimension for places between its elements; weights have their dtype."""
    dtype = tensor_type(place).dtype
    low, high = (0.0, size - 1.0) if is_aligned else (-0.5, size - 0.5)
    if mode == "nearest":
        place = elementwise("round", place)
    if padding == "border" and clips_first:
        inside = clipped(place, 0, size - 1)
        if mode == "cubic":  # what is less than half an element outside stays there
            is_near = elementwise("equal", place, clipped(place, low, high))
            inside = where(is_near, place, inside)
        place = inside
    elif padding == "reflection":
        place = _reflected(place, low, high)
    base = elementwise("floor", place)
    away = elementwise("subtract", place, base)
    if mode == "nearest":
        around: list[tuple[int, Value | None]] = [(0, None)]
    elif mode == "linear":
        around = [(0, elementwise("add", elementwise("negative", away), 1)), (1, away)]
    else:
        around = [(step, _cubic_at(away, step)) for step in (-1, 0, 1, 2)]
    found: list[Tap] = []
    for step, weight in around:
        at = elementwise("add", base, float(step))
        if padding == "reflection":
            at = _reflected(at, low, high)
        elif padding == "zeros":
            kept = elementwise(
                "logical_and", elementwise("greater_equal", at, 0), elementwise("less_equal", at, size - 1)
            )
            weight = where(kept, constant(1, dtype) if weight is None else weight, constant(0, dtype))
        found.append((cast(clipped(at, 0, size - 1), "int64"), weight))
    return found


def weighted(rows: Value, weights: Sequence[Value | None]) -> Value:
    """Return rows times the weights of all dimensions, which have theirs but for the last."""
    given = [weight for weight in weights if weight is not None]
    if not given:
        return rows
    factor = functools.reduce(lambda one, other: elementwise("multiply", one, other), given)
    return elementwise("multiply", rows, reshape(factor, (*tensor_type(factor).shape, 1)))


def grid_sampled(
    image: Value, grid: Value, *, mode: str, padding: str, is_aligned: bool, clips_first: bool = True
) -> Value:
    """Return an image at places between its elements.

    Parameters
    ----------
    image, grid : Value
        (n, channels, sizes); (n, outputs, dimensions), from -1 to 1, the last dimension first.
    mode : {"nearest", "linear", "cubic"}
    padding : {"zeros", "border", "reflection"}
        What is read outside.
    is_aligned : bool
        Whether -1 and 1 are the centres of the outermost elements, not their edges.
    clips_first : bool
        Whether a place beyond a border is moved there before its neighbours are looked at, as ONNX says; PyTorch moves
        each neighbour, which differs for cubics.
    """
    kind, (batch, *outputs, count) = tensor_type(image), tensor_type(grid).shape
    rank, sizes = len(kind.shape), kind.shape[2:]
    dtype = "float64" if "float64" in (kind.dtype, tensor_type(grid).dtype) else "float32"
    image, grid, taps = cast(permute(image, (0, *range(2, rank), 1)), dtype), cast(grid, dtype), []
    for axis, size in enumerate(sizes):
        place = sliced(grid, [-1], [count - 1 - axis], [count - axis])
        place = elementwise("add", reshape(place, (batch, *outputs)), 1.0)
        if is_aligned:
            place = elementwise("multiply", place, (size - 1) / 2)
        else:
            place = elementwise("divide", elementwise("subtract", elementwise("multiply", place, size), 1.0), 2.0)
        taps.append(_taps(place, size, mode, padding, is_aligned, clips_first))
    first, total = axis_indices(0, 1 + len(outputs), batch), None
    for chosen in itertools.product(*taps):
        part = weighted(gather_rows(image, [first, *(place for place, _ in chosen)]), [weight for _, weight in chosen])
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return cast(permute(total, (0, rank - 1, *range(1, rank - 1))), kind.dtype)
