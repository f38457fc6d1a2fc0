"""Operators that take elements from places, or put them there, which may be known only at run time."""

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
    scattered,
    sliced,
    taken,
    where,
    wrap_negative_indices,
)
from anatune.network.graph.nodes import Value
from anatune.network.graph.onnx.call import Call, Convert, RefusedError, check_table

__all__ = ["READERS"]


def _check_others(call: Call, axis: int) -> None:
    """Raise a `RefusedError` where indices have more elements than data along another dimension than an axis."""
    data, indices = call.kind(), call.kind(1)
    if len(data.shape) != len(indices.shape) or any(
        one > size for place, (size, one) in enumerate(zip(data.shape, indices.shape, strict=True)) if place != axis
    ):
        raise RefusedError(f"has indices {indices} for data {data}, expected no more beside axis {axis}")


def _gather(call: Call) -> Value:
    axis = call.attributes["axis"]
    return taken(call[0], wrap_negative_indices(call[1], call.kind().shape[axis]), axis)


def _gather_elements(call: Call) -> Value:
    """Return an element for each index; the indices may leave out the last ones of other dimensions."""
    axis, shape = call.attributes["axis"] % call.rank, call.kind(1).shape
    _check_others(call, axis)
    others = [place for place in range(call.rank) if place != axis]
    data = sliced(call[0], others, [0] * len(others), [shape[place] for place in others])
    places = clamp_indices(call[1], call.kind().shape[axis])
    return gather(data, places, axis)


def _columns(call: Call, batch: int = 0) -> list[Value]:
    """Return the places of tuples of indices, of batches in front too, each of the shape that the tuples have."""
    *shape, count = call.kind(1).shape
    sizes = call.kind().shape
    places = [axis_indices(axis, len(shape), sizes[axis]) for axis in range(batch)]
    for place in range(count):
        column = reshape(sliced(call[1], [len(shape)], [place], [place + 1]), shape)
        places.append(clamp_indices(column, sizes[batch + place]))
    return places


def _gather_nd(call: Call) -> Value:
    return gather_rows(call[0], _columns(call, call.attributes.get("batch_dims", 0)))


_REDUCTIONS = {"none": "update"}


def _reduction(call: Call) -> str:
    word: str = call.attributes.get("reduction", "none")
    return _REDUCTIONS.get(word, word)


def _scatter_elements(call: Call) -> Value:
    """Return a tensor with updates at indices along an axis; where they leave out others, it is flat meanwhile."""
    axis, shape, kind = call.attributes["axis"] % call.rank, call.kind(1).shape, call.kind()
    _check_others(call, axis)
    if call.kind(2).shape != shape:
        raise RefusedError(f"has indices {call.kind(1)} for updates {call.kind(2)}, expected as many")
    if not math.prod(shape):
        return call[0]
    places = clamp_indices(call[1], kind.shape[axis])
    if all(size == kind.shape[place] for place, size in enumerate(shape) if place != axis):
        return scattered(call[0], places, call[2], axis, _reduction(call))
    own = [places if place == axis else axis_indices(place, call.rank, size) for place, size in enumerate(shape)]
    flat = reshape(flatten_indices(own, kind.shape), (-1,))
    found = scattered(reshape(call[0], (-1,)), flat, reshape(call[2], (-1,)), 0, _reduction(call))
    return reshape(found, kind.shape)


def _scatter_nd(call: Call) -> Value:
    """Return a tensor with updates in place of the rows that tuples of indices name."""
    kind, (*shape, count) = call.kind(), call.kind(1).shape
    rows, length, places = math.prod(kind.shape[:count]), math.prod(kind.shape[count:]), math.prod(shape)
    if not places * length:
        return call[0]
    flat = broadcast(reshape(flatten_indices(_columns(call), kind.shape[:count]), (places, 1)), (places, length))
    data, updates = reshape(call[0], (rows, length)), reshape(call[2], (places, length))
    return reshape(scattered(data, flat, updates, 0, _reduction(call)), kind.shape)


def _tensor_scatter(call: Call) -> Value:
    """Return a cache with new rows behind those that each batch has: each place asks which row is its own."""
    kind, axis = call.kind(), call.attributes["axis"] % call.rank
    size, count = kind.shape[axis], call.kind(1).shape[axis]
    begins = constant(np.zeros(kind.shape[0]), "int64") if call.get(2) is None else cast(call[2], "int64")
    row = elementwise("subtract", axis_indices(1, 2, size), reshape(begins, (-1, 1)))
    if call.attributes["mode"] == "circular":
        row = elementwise("floor_mod", row, size)
    is_new = elementwise("logical_and", elementwise("greater_equal", row, 0), elementwise("less", row, count))
    order = (0, axis, *(place for place in range(1, call.rank) if place != axis))
    updates = permute(call[1], order)
    inside = elementwise("minimum", elementwise("maximum", row, 0), count - 1)
    new = permute(gather_rows(updates, [axis_indices(0, 2, kind.shape[0]), inside]), np.argsort(order).tolist())
    sizes = [s if place in (0, axis) else 1 for place, s in enumerate(kind.shape)]
    return where(reshape(is_new, sizes), new, call[0])


def _one_hot(call: Call) -> Value:
    """Return one of two values: the second one where a place along the new dimension is the index."""
    depth = int(call.known(1, "the depth").reshape(()))
    check_table(depth)
    rank = call.rank + 1
    axis, values = call.attributes["axis"] % rank, call[2]
    places = wrap_negative_indices(call[0], depth)
    shape = list(call.kind().shape)
    is_here = elementwise("equal", reshape(places, (*shape[:axis], 1, *shape[axis:])), axis_indices(axis, rank, depth))
    off, on = (reshape(sliced(values, [0], [place], [place + 1]), ()) for place in (0, 1))
    return where(is_here, on, off)


def _reverse_sequence(call: Call) -> Value:
    """Return each batch with its first steps turned around."""
    batch, time = call.attributes["batch_axis"], call.attributes["time_axis"]
    order = (batch, time, *range(2, call.rank))
    count, steps = call.kind().shape[batch], call.kind().shape[time]
    lengths, place = reshape(cast(call[1], "int64"), (-1, 1)), axis_indices(1, 2, steps)
    turned = elementwise("subtract", elementwise("subtract", lengths, 1), place)
    places = where(elementwise("less", place, lengths), turned, place)
    return permute(gather_rows(permute(call[0], order), [axis_indices(0, 2, count), places]), order)


def _non_zero(call: Call) -> Value:
    found = np.nonzero(np.atleast_1d(call.known(0, "how many there are")))
    return constant(np.stack(found)[: call.rank], "int64")  # of a number no rows, as the standard says


def _unique(call: Call) -> Sequence[Value]:
    axis = call.attributes.get("axis")
    array = call.known(0, "how many there are")
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(len(first)) if call.attributes["sorted"] else np.argsort(first)
    numbers = (first[order], np.argsort(order)[inverse.reshape(-1)], counts[order])
    found = [constant(values.take(order, axis or 0), array.dtype.name), *(constant(one, "int64") for one in numbers)]
    return found[: len(call.outputs)]


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
