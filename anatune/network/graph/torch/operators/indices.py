"""Operators that take or put elements by numbers: indices, masks, embeddings, scatters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    cast,
    clamp_indices,
    concat,
    constant,
    elementwise,
    flatten_indices,
    gather,
    made,
    matmul,
    permute,
    reduced,
    reshape,
    scattered,
    sliced,
    taken,
    taken_at,
    where,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.torch.call import Call, Convert, RefusedError, converted

__all__ = ["READERS"]


class _Places(NamedTuple):
    """Elements that indices name.

    Attributes
    ----------
    data : Value
        The tensor, the dimensions that are named side by side.
    axis : int
        The first of them there.
    number : int
        How many they are.
    order : tuple of int
        Of the dimensions of the tensor in `data`.
    flat : Value
        Which element of the named dimensions, int64.
    """

    data: Value
    axis: int
    number: int
    order: tuple[int, ...]
    flat: Value


def _places(call: Call) -> _Places:
    """Return what a list of indices names; known masks are the indices of what is true."""
    data, dims, indices = call["self"], [], []
    axis = 0
    for index in call["indices"]:
        if index is None:
            axis += 1
            continue
        kind = tensor_type(index)
        if kind.dtype in ("bool", "uint8"):
            if not isinstance(index, Constant):
                raise RefusedError(
                    "takes elements by a mask that is known only when the model runs: their number varies"
                )
            for numbers in np.nonzero(index.array):
                dims.append(axis)
                indices.append(constant(numbers, "int64"))
                axis += 1
            continue
        dims.append(axis)
        indices.append(index)
        axis += 1
    shape = tensor_type(data).shape
    is_one_block = dims == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if is_one_block else 0
    others = [place for place in range(len(shape)) if place not in dims]
    order = (*others[:first], *dims, *others[first:])
    sizes = [shape[dim] for dim in dims]
    flat = flatten_indices([clamp_indices(index, size) for index, size in zip(indices, sizes, strict=True)], sizes)
    return _Places(permute(data, order), first, len(dims), order, flat)


def _one_dimension(places: _Places) -> Value:
    """Return the data with the named dimensions as one."""
    shape = tensor_type(places.data).shape
    first, last = places.axis, places.axis + places.number
    return reshape(places.data, (*shape[:first], math.prod(shape[first:last]), *shape[last:]))


def _indexed(call: Call) -> Value:
    if all(index is None for index in call["indices"]):
        return call.operand("self")
    places = _places(call)
    data = _one_dimension(places)
    if isinstance(places.flat, Constant):
        return taken_at(data, places.flat.array, places.axis)
    return taken(data, places.flat, places.axis)


def _put(call: Call) -> Value:
    """Return a tensor with values at places: where a mask is true, or scattered along one dimension."""
    values, dtype = converted(call["values"], call.kind.dtype), call.kind.dtype
    masks = [index for index in call["indices"] if index is not None]
    if len(masks) == 1 and tensor_type(masks[0]).dtype == "bool" and not isinstance(masks[0], Constant):
        return _put_by_mask(call, masks[0], values)
    places = _places(call)
    data = _one_dimension(places)
    shape, first = tensor_type(data).shape, places.axis
    own = tensor_type(places.flat).shape
    values = broadcast(values, (*shape[:first], *own, *shape[first + 1 :]))
    count = math.prod(own)
    values = reshape(values, (*shape[:first], count, *shape[first + 1 :]))
    along = [count if place == first else 1 for place in range(len(shape))]
    indices = broadcast(reshape(places.flat, along), tensor_type(values).shape)
    found = scattered(data, indices, values, first, "add" if call["accumulate"] else "update")
    found = reshape(found, tensor_type(places.data).shape)
    return cast(permute(found, np.argsort(places.order).tolist()), dtype)


def _put_by_mask(call: Call, mask: Value, values: Value) -> Value:
    """Return values of one element in the place of what a mask names."""
    first = call["indices"].index(mask)
    rank, own = len(call.kind.shape), tensor_type(mask).shape
    if math.prod(tensor_type(values).shape) != 1:
        raise RefusedError("puts several values where a mask is true that is known only when the model runs")
    mask = reshape(mask, (*own, *(1,) * (rank - first - len(own))))
    values = reshape(values, ())
    return where(mask, elementwise("add", call["self"], values) if call["accumulate"] else values, call["self"])


def _index_select(call: Call) -> Value:
    axis, index = call["dim"] if call.shape() else 0, call["index"]
    value = call["self"] if call.shape() else reshape(call["self"], (1,))
    index = index if tensor_type(index).shape else reshape(index, (1,))
    found = taken_at(value, index.array, axis) if isinstance(index, Constant) else taken(value, index, axis)
    return reshape(found, call.kind.shape)


def _embedded(call: Call) -> Value:
    weight, indices = call["weight"], call["indices"]
    return taken(weight, indices, 0)


def _embedding_bags(call: Call) -> Sequence[Value | None]:
    """Return sums, means or largest elements of the rows of each bag: equal bags are reduced, others products."""
    weight, indices, offsets = call["weight"], call["indices"], cast(call["offsets"], "int64")
    count, size, padding = call.shape("indices")[0], call.kind.shape[-1], call["padding_idx"]
    if call["include_last_offset"]:
        offsets = sliced(offsets, [0], [0], [call.shape("offsets")[0] - 1])
    word = ("sum", "mean", "max")[call["mode"]]
    rows = taken(weight, indices, 0)
    if call["per_sample_weights"] is not None:
        rows = elementwise("multiply", rows, reshape(call["per_sample_weights"], (-1, 1)))
    bags = call.kind.shape[0]
    starts = offsets.array if isinstance(offsets, Constant) else np.zeros(0)
    if padding < 0 and count % bags == 0 and np.array_equal(starts, np.arange(0, count, count // bags)):
        return [reduced(word, reshape(rows, (bags, -1, size)), [1], keepdims=False), None, None, None]
    dtype = call.kind.dtype
    ends = concat([sliced(offsets, [0], [1], [bags]), constant([count], "int64")], 0)
    places = constant(np.arange(count)[None], "int64")
    own = elementwise(
        "logical_and",
        elementwise("greater_equal", places, reshape(offsets, (-1, 1))),
        elementwise("less", places, reshape(ends, (-1, 1))),
    )
    if padding >= 0:
        own = elementwise(
            "logical_and", own, elementwise("not_equal", reshape(cast(indices, "int64"), (1, -1)), padding)
        )
    number = reduced("sum", cast(own, dtype), [1], keepdims=True)
    if word == "max":
        lowest = constant(np.finfo(np.dtype(dtype)).min, dtype)
        found = reduced(
            "max", where(reshape(own, (bags, count, 1)), reshape(rows, (1, count, size)), lowest), [1], keepdims=False
        )
        return [where(elementwise("equal", number, 0), constant(0, dtype), found), None, None, None]
    found = matmul(cast(own, dtype), rows)
    found = elementwise("divide", found, elementwise("maximum", number, 1)) if word == "mean" else found
    return [found, None, None, None]


def _gathered(call: Call) -> Value:
    """Return for each place the element that an index along a dimension names."""
    value, index, rank = call["self"], call["index"], len(call.shape())
    if not rank:
        return broadcast(reshape(value, (1,) * len(call.kind.shape)), call.kind.shape)
    axis = call["dim"] % rank
    for place, size in enumerate(call.kind.shape):
        if place != axis:
            value = sliced(value, [place], [0], [size])
    return gather(value, clamp_indices(index, call.shape()[axis]), axis)


_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "amax": "max",
    "amin": "min",
    "mean": "mean",
}


def _neutral(reduction: str, dtype: str) -> float:
    """Return what a reduction leaves as it is."""
    if reduction in ("max", "min"):
        limits = np.finfo(np.dtype(dtype)) if "float" in dtype else np.iinfo(dtype)
        return float(limits.min if reduction == "max" else limits.max)
    return float(reduction == "mul")


def _scatter(call: Call) -> Value:
    """Return a tensor with elements at places that indices along a dimension name: put, added, ..."""
    kind, rank = call.kind, len(call.shape())
    data, index = call["self"], clamp_indices(call["index"], call.shape()[call["dim"]] if rank else 1)
    reduction = _REDUCTIONS[call["reduce"]] if "reduce" in call.arguments else "update"
    reduction = "add" if call.name.startswith("scatter_add") else reduction
    sizes = tensor_type(index).shape
    if "value" in call.arguments:
        updates = broadcast(call.operand("value"), sizes)
    else:
        updates = converted(call["src"], kind.dtype)
        updates = sliced(updates, range(len(sizes)), [0] * len(sizes), sizes)
    if not rank:
        data, index, updates = (reshape(one, (1,)) for one in (data, index, updates))
    axis = call["dim"] % max(rank, 1)
    if reduction == "mean":
        return _scattered_mean(call, data, index, updates, axis)
    if not call.get("include_self", True):
        neutral = broadcast(constant(_neutral(reduction, kind.dtype), kind.dtype), tensor_type(index).shape)
        data = scattered(data, index, neutral, axis, "update")
    return reshape(scattered(data, index, updates, axis, reduction), kind.shape)


def _scattered_mean(call: Call, data: Value, index: Value, updates: Value, axis: int) -> Value:
    """Return sums of what lies at each place, divided by how many that are."""
    kind, sizes = tensor_type(data), tensor_type(index).shape
    start = data
    count = broadcast(constant(int(call["include_self"]), kind.dtype), kind.shape)
    if not call["include_self"]:
        start = scattered(data, index, broadcast(constant(0, kind.dtype), sizes), axis, "update")
    total = scattered(start, index, updates, axis, "add")
    count = scattered(count, index, broadcast(constant(1, kind.dtype), sizes), axis, "add")
    count = elementwise("maximum", count, 1)
    found = elementwise("divide" if "float" in kind.dtype else "floor_divide", total, count)
    return reshape(found, call.kind.shape)


def _index_add(call: Call) -> Value:
    """Return a tensor to whose parts along a dimension those of another one are added."""
    data, source = call["self"], converted(call["source"], call.kind.dtype)
    shape, axis = tensor_type(source).shape, call["dim"] % max(len(call.shape()), 1)
    along = [-1 if place == axis else 1 for place in range(len(shape))]
    index = clamp_indices(call["index"], call.shape()[axis] if call.shape() else 1)
    index = broadcast(reshape(index, along), shape)
    return scattered(data, index, source, axis, "add")


def _not_zero(call: Call) -> Value:
    return constant(np.stack(np.nonzero(call.known("self", "what it looks for")), axis=-1), "int64")


def _numbers_repeated(call: Call) -> Value:
    repeats = call.known("repeats", "how often each is there")
    return constant(np.repeat(np.arange(len(repeats)), repeats), "int64")


def _masked_select(call: Call) -> Value:
    shape = np.broadcast_shapes(call.shape(), call.shape("mask"))
    mask = np.broadcast_to(call.known("mask", "elements"), shape)
    return taken_at(reshape(broadcast(call["self"], shape), (-1,)), np.flatnonzero(mask), 0)


def _masked_scatter(call: Call) -> Value:
    """Return a tensor in which the elements that a mask names are the first ones of another tensor, in order."""
    mask = broadcast(call.operand("mask", "bool"), call.kind.shape)
    flat = cast(reshape(mask, (-1,)), "int64")
    size = math.prod(call.shape("source"))
    places = elementwise(
        "subtract", made("cumsum", (flat,), tensor_type(flat), axis=0, dtype="int64", exclusive=False), 1
    )
    places = elementwise("minimum", elementwise("maximum", places, 0), size - 1)
    source = taken(reshape(call["source"], (-1,)), places, 0)
    return where(mask, reshape(source, call.kind.shape), call["self"])


READERS: dict[str, Convert] = {
    "_embedding_bag": _embedding_bags,
    "_embedding_bag_forward_only": _embedding_bags,
    "_unsafe_index": _indexed,
    "_unsafe_index_put": _put,
    "embedding": _embedded,
    "gather": _gathered,
    "index": _indexed,
    "index_add": _index_add,
    "index_put": _put,
    "index_select": _index_select,
    "masked_scatter": _masked_scatter,
    "masked_select": _masked_select,
    "nonzero": _not_zero,
    "repeat_interleave": _numbers_repeated,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_reduce": _scatter,
}
"""Operator without its overload -> what reads it."""
