"""Resample images: along each axis with constant weights, or at positions that another tensor holds."""

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
    slice_axes,
    take_slices,
    where,
)
from anatune.network.graph.nodes import Array, Value, tensor_type

__all__ = ["Tap", "clip", "neighbours", "resize_axis", "sample_grid", "weight_rows"]

_MOST_TAPS = 4
"""The most elements that are added as weighted slices; more are multiplied by a matrix."""
Tap = tuple[Value, Value | None]
"""Indices along a dimension, int64 and in range, and their weights; None: all weights are 1."""


def _cubic_kernel(away: Array, a: float) -> Array:
    near = ((a + 2) * away - (a + 3)) * away**2 + 1
    far = ((a * away - 5 * a) * away + 8 * a) * away - 4 * a
    return np.asarray(np.where(away <= 1, near, np.where(away < 2, far, 0)))


def neighbours(
    centres: Array, size: int, mode: str, *, shrunk: float = 1.0, slope: float = -0.75, exclude_outside: bool = False
) -> tuple[Array, Array]:
    """Return the indices of the elements that interpolate each output, and their weights; both (outputs, taps).

    Parameters
    ----------
    centres : ndarray
        The position of each output among `size` elements.
    mode : {"linear", "cubic"}
    shrunk : float
        The factor by which the image shrinks, if the weights are to cover everything below an output; else 1.
    slope : float
        The parameter ``a`` of the cubic kernel.
    exclude_outside : bool
        Whether elements outside of the image get no weight; if not, the outermost elements are repeated.
    """
    first = math.floor((-2 if mode == "cubic" else -1) / shrunk) + 1
    indices = np.ceil(centres)[:, None] - 1 + np.arange(first, 2 - first)
    distance = np.abs(indices - centres[:, None]) * shrunk
    weights = _cubic_kernel(distance, slope) if mode == "cubic" else np.maximum(1 - distance, 0)
    if exclude_outside:
        weights = np.where((indices >= 0) & (indices < size), weights, 0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    used = np.any(weights != 0, axis=0)
    used[0] |= not len(weights)  # keep one tap, because a sum of no taps has no shape
    return np.clip(indices, 0, size - 1).astype(np.int64)[:, used], weights[:, used]


def resize_axis(value: Value, axis: int, indices: Array, weights: Array) -> Value:
    """Return a tensor resampled along an axis: each output is a weighted sum of elements."""
    kind = tensor_type(value)
    rank, size, (outputs, taps) = len(kind.shape), kind.shape[axis], indices.shape
    if taps == 1 and np.all(weights == 1):
        return take_slices(value, constant(indices[:, 0], "int64"), axis)
    if taps > _MOST_TAPS:
        matrix = np.zeros((size, outputs))
        np.add.at(matrix, (indices, np.arange(outputs)[:, None]), weights)
        order = [*(dimension for dimension in range(rank) if dimension != axis), axis]
        product = matmul(permute(value, order), constant(matrix, kind.dtype))
        return permute(product, np.argsort(order).tolist())
    total: Value | None = None
    for tap in range(taps):
        factor = constant(weights[:, tap].reshape(-1, *(1,) * (rank - 1 - axis)), kind.dtype)
        part = elementwise("multiply", take_slices(value, constant(indices[:, tap], "int64"), axis), factor)
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return total


def clip(value: Value, low: float, high: float) -> Value:
    """Return a value clipped to a range."""
    return elementwise("minimum", elementwise("maximum", value, low), high)


def _reflect(position: Value, low: float, high: float) -> Value:
    """Return positions reflected at both ends of a range until they are in it."""
    length = high - low
    if length == 0:
        return elementwise("add", elementwise("multiply", position, 0), low)
    distance = elementwise("abs", elementwise("subtract", position, low))
    periods = elementwise("floor", elementwise("divide", distance, 2 * length))
    remainder = elementwise("subtract", distance, elementwise("multiply", periods, 2 * length))
    reflected = elementwise("subtract", 2 * length + low, remainder)
    return elementwise("minimum", elementwise("add", remainder, low), reflected)


def _cubic_weights(fraction: Value, distance: int) -> Value:
    """Return Keys' cubic weights (a = -0.75) of the elements `distance` after the one before a position."""
    a = -0.75
    x = elementwise("abs", elementwise("subtract", fraction, float(distance)))

    def horner(*factors: float) -> Value:
        return functools.reduce(
            lambda total, factor: elementwise("add", elementwise("multiply", total, x), factor),
            factors[2:],
            elementwise("add", elementwise("multiply", x, factors[0]), factors[1]),
        )

    return horner(a + 2, -(a + 3), 0, 1) if distance in (0, 1) else horner(a, -5 * a, 8 * a, -4 * a)


def _interpolation_taps(
    position: Value, size: int, mode: str, padding: str, is_aligned: bool, clips_first: bool
) -> list[Tap]:
    """Return the indices and weights that interpolate an image along a dimension; weights have the dtype of `place`."""
    dtype = tensor_type(position).dtype
    low, high = (0.0, size - 1.0) if is_aligned else (-0.5, size - 0.5)
    if mode == "nearest":
        position = elementwise("round", position)
    if padding == "border" and clips_first:
        clamped = clip(position, 0, size - 1)
        if mode == "cubic":  # positions less than half an element outside are not moved
            is_near = elementwise("equal", position, clip(position, low, high))
            clamped = where(is_near, position, clamped)
        position = clamped
    elif padding == "reflection":
        position = _reflect(position, low, high)
    base = elementwise("floor", position)
    fraction = elementwise("subtract", position, base)
    if mode == "nearest":
        neighbours: list[tuple[int, Value | None]] = [(0, None)]
    elif mode == "linear":
        neighbours = [(0, elementwise("add", elementwise("negative", fraction), 1)), (1, fraction)]
    else:
        neighbours = [(step, _cubic_weights(fraction, step)) for step in (-1, 0, 1, 2)]
    taps: list[Tap] = []
    for step, weight in neighbours:
        index = elementwise("add", base, float(step))
        if padding == "reflection":
            index = _reflect(index, low, high)
        elif padding == "zeros":
            is_inside = elementwise(
                "logical_and", elementwise("greater_equal", index, 0), elementwise("less_equal", index, size - 1)
            )
            weight = where(is_inside, constant(1, dtype) if weight is None else weight, constant(0, dtype))
        taps.append((cast(clip(index, 0, size - 1), "int64"), weight))
    return taps


def weight_rows(rows: Value, weights: Sequence[Value | None]) -> Value:
    """Return rows times the product of the weights of all dimensions; rows have one more dimension."""
    known_weights = [weight for weight in weights if weight is not None]
    if not known_weights:
        return rows
    factor = functools.reduce(lambda one, other: elementwise("multiply", one, other), known_weights)
    return elementwise("multiply", rows, reshape(factor, (*tensor_type(factor).shape, 1)))


def sample_grid(
    image: Value, grid: Value, *, mode: str, padding: str, is_aligned: bool, clips_first: bool = True
) -> Value:
    """Return an image sampled at the positions of a grid.

    Parameters
    ----------
    image, grid : Value
        (n, channels, sizes) and (n, outputs, dimensions). Positions go from -1 to 1, those of the last dimension first.
    mode : {"nearest", "linear", "cubic"}
    padding : {"zeros", "border", "reflection"}
        The values that are read outside of the image.
    is_aligned : bool
        Whether -1 and 1 are the centres of the outermost elements; if not, they are their outer edges.
    clips_first : bool
        Whether a position outside is moved to the border before its neighbours are selected, as in ONNX. PyTorch moves
        each neighbour, which gives other results for cubic interpolation.
    """
    kind, (batch, *outputs, count) = tensor_type(image), tensor_type(grid).shape
    rank, sizes = len(kind.shape), kind.shape[2:]
    dtype = "float64" if "float64" in (kind.dtype, tensor_type(grid).dtype) else "float32"
    image, grid, taps = cast(permute(image, (0, *range(2, rank), 1)), dtype), cast(grid, dtype), []
    for axis, size in enumerate(sizes):
        position = slice_axes(grid, [-1], [count - 1 - axis], [count - axis])
        position = elementwise("add", reshape(position, (batch, *outputs)), 1.0)
        if is_aligned:
            position = elementwise("multiply", position, (size - 1) / 2)
        else:
            position = elementwise("divide", elementwise("subtract", elementwise("multiply", position, size), 1.0), 2.0)
        taps.append(_interpolation_taps(position, size, mode, padding, is_aligned, clips_first))
    first, total = axis_indices(0, 1 + len(outputs), batch), None
    for corner in itertools.product(*taps):
        part = weight_rows(
            gather_rows(image, [first, *(place for place, _ in corner)]), [weight for _, weight in corner]
        )
        total = part if total is None else elementwise("add", total, part)
    assert total is not None
    return cast(permute(total, (0, rank - 1, *range(1, rank - 1))), kind.dtype)
