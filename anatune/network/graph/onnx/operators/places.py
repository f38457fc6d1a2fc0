"""Readers of operators that gather and scatter elements, at indices that may be unknown before run time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    axis_indices,
    broadcast,
    cast,
    clamp_indices,
    constant,
    elementwise,
    flatten_indices,
    gather,
    gather_rows,
    permute,
    reshape,
    scatter,
    slice_axes,
    take_slices,
    where,
    wrap_negative_indices,
)
from anatune.network.graph.nodes import Value
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError, check_table

__all__ = ["READERS"]


def _check_other_axes(call: OnnxCall, axis: int) -> None:
    """Raise `RefusedError` if indices have more elements than data along a dimension other than `axis`."""
    data, indices = call.kind(), call.kind(1)
    if len(data.shape) != len(indices.shape) or any(
        count > size for d, (size, count) in enumerate(zip(data.shape, indices.shape, strict=True)) if d != axis
    ):
        raise RefusedError(f"has indices {indices} for data {data}, expected no more elements except along axis {axis}")


def _gather(call: OnnxCall) -> Value:
    axis = call.attributes["axis"]
    return take_slices(call[0], wrap_negative_indices(call[1], call.kind().shape[axis]), axis)


def _gather_elements(call: OnnxCall) -> Value:
    """Return an element for each index; indices may have fewer elements than data along other dimensions."""
    axis, shape = call.attributes["axis"] % call.rank, call.kind(1).shape
    _check_other_axes(call, axis)
    others = [place for place in range(call.rank) if place != axis]
    data = slice_axes(call[0], others, [0] * len(others), [shape[place] for place in others])
    indices = clamp_indices(call[1], call.kind().shape[axis])
    return gather(data, indices, axis)


def _columns(call: OnnxCall, batch: int = 0) -> list[Value]:
    """Return a tensor of indices for each indexed dimension: batch dimensions first, then those of the index tuples."""
    *shape, count = call.kind(1).shape
    sizes = call.kind().shape
    columns = [axis_indices(axis, len(shape), sizes[axis]) for axis in range(batch)]
    for column_index in range(count):
        column = reshape(slice_axes(call[1], [len(shape)], [column_index], [column_index + 1]), shape)
        columns.append(clamp_indices(column, sizes[batch + column_index]))
    return columns


def _gather_nd(call: OnnxCall) -> Value:
    return gather_rows(call[0], _columns(call, call.attributes.get("batch_dims", 0)))


_REDUCTIONS = {"none": "update"}


def _reduction(call: OnnxCall) -> str:
    reduction: str = call.attributes.get("reduction", "none")
    return _REDUCTIONS.get(reduction, reduction)


def _scatter_elements(call: OnnxCall) -> Value:
    """Return a tensor with updates at indices along an axis; if indices skip elements, it is flattened first."""
    axis, shape, kind = call.attributes["axis"] % call.rank, call.kind(1).shape, call.kind()
    _check_other_axes(call, axis)
    if call.kind(2).shape != shape:
        raise RefusedError(f"has indices {call.kind(1)} for updates {call.kind(2)}, expected the same shape")
    if not math.prod(shape):
        return call[0]
    indices = clamp_indices(call[1], kind.shape[axis])
    if all(size == kind.shape[d] for d, size in enumerate(shape) if d != axis):
        return scatter(call[0], indices, call[2], axis, _reduction(call))
    columns = [indices if d == axis else axis_indices(d, call.rank, size) for d, size in enumerate(shape)]
    flat = reshape(flatten_indices(columns, kind.shape), (-1,))
    result = scatter(reshape(call[0], (-1,)), flat, reshape(call[2], (-1,)), 0, _reduction(call))
    return reshape(result, kind.shape)


def _scatter_nd(call: OnnxCall) -> Value:
    """Return a tensor with updates in place of the rows that tuples of indices select."""
    kind, (*shape, count) = call.kind(), call.kind(1).shape
    rows, length, total = math.prod(kind.shape[:count]), math.prod(kind.shape[count:]), math.prod(shape)
    if not total * length:
        return call[0]
    flat = broadcast(reshape(flatten_indices(_columns(call), kind.shape[:count]), (total, 1)), (total, length))
    data, updates = reshape(call[0], (rows, length)), reshape(call[2], (total, length))
    return reshape(scatter(data, flat, updates, 0, _reduction(call)), kind.shape)


def _tensor_scatter(call: OnnxCall) -> Value:
    """Return a cache with new rows written after the rows of each batch element, by a row index for each position."""
    kind, axis = call.kind(), call.attributes["axis"] % call.rank
    size, count = kind.shape[axis], call.kind(1).shape[axis]
    begins = constant(np.zeros(kind.shape[0]), "int64") if call.get(2) is None else cast(call[2], "int64")
    row = elementwise("subtract", axis_indices(1, 2, size), reshape(begins, (-1, 1)))
    if call.attributes["mode"] == "circular":
        row = elementwise("floor_mod", row, size)
    is_new = elementwise("logical_and", elementwise("greater_equal", row, 0), elementwise("less", row, count))
    order = (0, axis, *(place for place in range(1, call.rank) if place != axis))
    updates = permute(call[1], order)
    clamped = elementwise("minimum", elementwise("maximum", row, 0), count - 1)
    new = permute(gather_rows(updates, [axis_indices(0, 2, kind.shape[0]), clamped]), np.argsort(order).tolist())
    sizes = [s if place in (0, axis) else 1 for place, s in enumerate(kind.shape)]
    return where(reshape(is_new, sizes), new, call[0])


def _one_hot(call: OnnxCall) -> Value:
    """Return the second of two values where the position along the new dimension is the index, else the first."""
    depth = int(call.constant_values(1, "the depth").reshape(()))
    check_table(depth)
    rank = call.rank + 1
    axis, values = call.attributes["axis"] % rank, call[2]
    indices = wrap_negative_indices(call[0], depth)
    shape = list(call.kind().shape)
    is_here = elementwise("equal", reshape(indices, (*shape[:axis], 1, *shape[axis:])), axis_indices(axis, rank, depth))
    off, on = (reshape(slice_axes(values, [0], [place], [place + 1]), ()) for place in (0, 1))
    return where(is_here, on, off)


def _reverse_sequence(call: OnnxCall) -> Value:
    """Return each batch with its first elements along the time axis reversed."""
    batch, time = call.attributes["batch_axis"], call.attributes["time_axis"]
    order = (batch, time, *range(2, call.rank))
    count, steps = call.kind().shape[batch], call.kind().shape[time]
    lengths, step = reshape(cast(call[1], "int64"), (-1, 1)), axis_indices(1, 2, steps)
    reversed_step = elementwise("subtract", elementwise("subtract", lengths, 1), step)
    indices = where(elementwise("less", step, lengths), reversed_step, step)
    return permute(gather_rows(permute(call[0], order), [axis_indices(0, 2, count), indices]), order)


def _non_zero(call: OnnxCall) -> Value:
    indices = np.nonzero(np.atleast_1d(call.constant_values(0, "how many there are")))
    return constant(np.stack(indices)[: call.rank], "int64")  # no rows for a scalar, as the standard says


def _unique(call: OnnxCall) -> Sequence[Value]:
    axis = call.attributes.get("axis")
    array = call.constant_values(0, "how many there are")
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(len(first)) if call.attributes["sorted"] else np.argsort(first)
    numbers = (first[order], np.argsort(order)[inverse.reshape(-1)], counts[order])
    results = [constant(values.take(order, axis or 0), array.dtype.name), *(constant(one, "int64") for one in numbers)]
    return results[: len(call.outputs)]


READERS: dict[str, Convert] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
