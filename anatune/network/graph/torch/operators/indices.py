"""Readers of operators that gather or scatter elements: indices, masks, embeddings."""

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
    make_node,
    matmul,
    permute,
    reduce_axes,
    reshape,
    scatter,
    slice_axes,
    take_constant_slices,
    take_slices,
    where,
)
from anatune.network.graph.nodes import Constant, Value, tensor_type
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall, to_dtype

__all__ = ["READERS"]


class _IndexedElements(NamedTuple):
    """The elements that a list of indices selects.

    Attributes
    ----------
    data : Value
        The tensor with its indexed dimensions adjacent.
    axis : int
        The first indexed dimension of `data`.
    number : int
        The number of indexed dimensions.
    order : tuple of int
        The original dimensions in the order of `data`.
    flat : Value
        Flat indices into the indexed dimensions, int64.
    """

    data: Value
    axis: int
    number: int
    order: tuple[int, ...]
    flat: Value


def _select_elements(call: TorchCall) -> _IndexedElements:
    """Return the elements that a list of indices selects; constant masks become the indices of true elements."""
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
                    "selects elements by a mask that is known only when the model runs, so that their number varies"
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
    others = [dimension for dimension in range(len(shape)) if dimension not in dims]
    order = (*others[:first], *dims, *others[first:])
    sizes = [shape[dim] for dim in dims]
    flat = flatten_indices([clamp_indices(index, size) for index, size in zip(indices, sizes, strict=True)], sizes)
    return _IndexedElements(permute(data, order), first, len(dims), order, flat)


def _flatten_indexed(elements: _IndexedElements) -> Value:
    """Return the data with the indexed dimensions flattened into one."""
    shape = tensor_type(elements.data).shape
    first, last = elements.axis, elements.axis + elements.number
    return reshape(elements.data, (*shape[:first], math.prod(shape[first:last]), *shape[last:]))


def _index(call: TorchCall) -> Value:
    if all(index is None for index in call["indices"]):
        return call.operand("self")
    elements = _select_elements(call)
    data = _flatten_indexed(elements)
    if isinstance(elements.flat, Constant):
        return take_constant_slices(data, elements.flat.array, elements.axis)
    return take_slices(data, elements.flat, elements.axis)


def _index_put(call: TorchCall) -> Value:
    """Return a tensor with values written at indices: selected by a mask, or scattered along one dimension."""
    values, dtype = to_dtype(call["values"], call.kind.dtype), call.kind.dtype
    masks = [index for index in call["indices"] if index is not None]
    if len(masks) == 1 and tensor_type(masks[0]).dtype == "bool" and not isinstance(masks[0], Constant):
        return _put_by_mask(call, masks[0], values)
    elements = _select_elements(call)
    data = _flatten_indexed(elements)
    shape, first = tensor_type(data).shape, elements.axis
    index_shape = tensor_type(elements.flat).shape
    values = broadcast(values, (*shape[:first], *index_shape, *shape[first + 1 :]))
    count = math.prod(index_shape)
    values = reshape(values, (*shape[:first], count, *shape[first + 1 :]))
    along = [count if dimension == first else 1 for dimension in range(len(shape))]
    indices = broadcast(reshape(elements.flat, along), tensor_type(values).shape)
    result = scatter(data, indices, values, first, "add" if call["accumulate"] else "update")
    result = reshape(result, tensor_type(elements.data).shape)
    return cast(permute(result, np.argsort(elements.order).tolist()), dtype)


def _put_by_mask(call: TorchCall, mask: Value, values: Value) -> Value:
    """Return a tensor with a single value written where a mask is true."""
    first = call["indices"].index(mask)
    rank, mask_shape = len(call.kind.shape), tensor_type(mask).shape
    if math.prod(tensor_type(values).shape) != 1:
        raise RefusedError("writes several values where a mask is true, but the mask is known only when the model runs")
    mask = reshape(mask, (*mask_shape, *(1,) * (rank - first - len(mask_shape))))
    values = reshape(values, ())
    return where(mask, elementwise("add", call["self"], values) if call["accumulate"] else values, call["self"])


def _index_select(call: TorchCall) -> Value:
    axis, index = call["dim"] if call.shape() else 0, call["index"]
    value = call["self"] if call.shape() else reshape(call["self"], (1,))
    index = index if tensor_type(index).shape else reshape(index, (1,))
    selected = (
        take_constant_slices(value, index.array, axis)
        if isinstance(index, Constant)
        else take_slices(value, index, axis)
    )
    return reshape(selected, call.kind.shape)


def _embedding(call: TorchCall) -> Value:
    weight, indices = call["weight"], call["indices"]
    return take_slices(weight, indices, 0)


def _embedding_bags(call: TorchCall) -> Sequence[Value | None]:
    """Return sums, means or maxima of the rows of each bag, as reductions if bags have one size, else as products."""
    weight, indices, offsets = call["weight"], call["indices"], cast(call["offsets"], "int64")
    count, size, padding = call.shape("indices")[0], call.kind.shape[-1], call["padding_idx"]
    if call["include_last_offset"]:
        offsets = slice_axes(offsets, [0], [0], [call.shape("offsets")[0] - 1])
    word = ("sum", "mean", "max")[call["mode"]]
    rows = take_slices(weight, indices, 0)
    if call["per_sample_weights"] is not None:
        rows = elementwise("multiply", rows, reshape(call["per_sample_weights"], (-1, 1)))
    bags = call.kind.shape[0]
    starts = offsets.array if isinstance(offsets, Constant) else np.zeros(0)
    if padding < 0 and count % bags == 0 and np.array_equal(starts, np.arange(0, count, count // bags)):
        return [reduce_axes(word, reshape(rows, (bags, -1, size)), [1], keepdims=False), None, None, None]
    dtype = call.kind.dtype
    ends = concat([slice_axes(offsets, [0], [1], [bags]), constant([count], "int64")], 0)
    positions = constant(np.arange(count)[None], "int64")
    mask = elementwise(
        "logical_and",
        elementwise("greater_equal", positions, reshape(offsets, (-1, 1))),
        elementwise("less", positions, reshape(ends, (-1, 1))),
    )
    if padding >= 0:
        mask = elementwise(
            "logical_and", mask, elementwise("not_equal", reshape(cast(indices, "int64"), (1, -1)), padding)
        )
    number = reduce_axes("sum", cast(mask, dtype), [1], keepdims=True)
    if word == "max":
        lowest = constant(np.finfo(np.dtype(dtype)).min, dtype)
        result = reduce_axes(
            "max", where(reshape(mask, (bags, count, 1)), reshape(rows, (1, count, size)), lowest), [1], keepdims=False
        )
        return [where(elementwise("equal", number, 0), constant(0, dtype), result), None, None, None]
    result = matmul(cast(mask, dtype), rows)
    result = elementwise("divide", result, elementwise("maximum", number, 1)) if word == "mean" else result
    return [result, None, None, None]


def _gather_along(call: TorchCall) -> Value:
    """Return the elements at indices along a dimension."""
    value, index, rank = call["self"], call["index"], len(call.shape())
    if not rank:
        return broadcast(reshape(value, (1,) * len(call.kind.shape)), call.kind.shape)
    axis = call["dim"] % rank
    for dimension, size in enumerate(call.kind.shape):
        if dimension != axis:
            value = slice_axes(value, [dimension], [0], [size])
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


def _identity_of(reduction: str, dtype: str) -> float:
    """Return the identity of a reduction."""
    if reduction in ("max", "min"):
        limits = np.finfo(np.dtype(dtype)) if "float" in dtype else np.iinfo(dtype)
        return float(limits.min if reduction == "max" else limits.max)
    return float(reduction == "mul")


def _scatter(call: TorchCall) -> Value:
    """Return a tensor with elements written, added or combined at indices along a dimension."""
    kind, rank = call.kind, len(call.shape())
    data, index = call["self"], clamp_indices(call["index"], call.shape()[call["dim"]] if rank else 1)
    reduction = _REDUCTIONS[call["reduce"]] if "reduce" in call.arguments else "update"
    reduction = "add" if call.name.startswith("scatter_add") else reduction
    sizes = tensor_type(index).shape
    if "value" in call.arguments:
        updates = broadcast(call.operand("value"), sizes)
    else:
        updates = to_dtype(call["src"], kind.dtype)
        updates = slice_axes(updates, range(len(sizes)), [0] * len(sizes), sizes)
    if not rank:
        data, index, updates = (reshape(tensor, (1,)) for tensor in (data, index, updates))
    axis = call["dim"] % max(rank, 1)
    if reduction == "mean":
        return _scatter_mean(call, data, index, updates, axis)
    if not call.get("include_self", True):
        neutral = broadcast(constant(_identity_of(reduction, kind.dtype), kind.dtype), tensor_type(index).shape)
        data = scatter(data, index, neutral, axis, "update")
    return reshape(scatter(data, index, updates, axis, reduction), kind.shape)


def _scatter_mean(call: TorchCall, data: Value, index: Value, updates: Value, axis: int) -> Value:
    """Return the mean of the elements at each index."""
    kind, sizes = tensor_type(data), tensor_type(index).shape
    start = data
    count = broadcast(constant(int(call["include_self"]), kind.dtype), kind.shape)
    if not call["include_self"]:
        start = scatter(data, index, broadcast(constant(0, kind.dtype), sizes), axis, "update")
    total = scatter(start, index, updates, axis, "add")
    count = scatter(count, index, broadcast(constant(1, kind.dtype), sizes), axis, "add")
    count = elementwise("maximum", count, 1)
    mean = elementwise("divide" if "float" in kind.dtype else "floor_divide", total, count)
    return reshape(mean, call.kind.shape)


def _index_add(call: TorchCall) -> Value:
    """Return a tensor with slices of another tensor added at indices along a dimension."""
    data, source = call["self"], to_dtype(call["source"], call.kind.dtype)
    shape, axis = tensor_type(source).shape, call["dim"] % max(len(call.shape()), 1)
    along = [-1 if dimension == axis else 1 for dimension in range(len(shape))]
    index = clamp_indices(call["index"], call.shape()[axis] if call.shape() else 1)
    index = broadcast(reshape(index, along), shape)
    return scatter(data, index, source, axis, "add")


def _nonzero(call: TorchCall) -> Value:
    return constant(np.stack(np.nonzero(call.constant_values("self", "what it looks for")), axis=-1), "int64")


def _repeat_interleave(call: TorchCall) -> Value:
    repeats = call.constant_values("repeats", "how often each is there")
    return constant(np.repeat(np.arange(len(repeats)), repeats), "int64")


def _masked_select(call: TorchCall) -> Value:
    shape = np.broadcast_shapes(call.shape(), call.shape("mask"))
    mask = np.broadcast_to(call.constant_values("mask", "elements"), shape)
    return take_constant_slices(reshape(broadcast(call["self"], shape), (-1,)), np.flatnonzero(mask), 0)


def _masked_scatter(call: TorchCall) -> Value:
    """Return a tensor in which elements selected by a mask are replaced by the first elements of another tensor."""
    mask = broadcast(call.operand("mask", "bool"), call.kind.shape)
    flat = cast(reshape(mask, (-1,)), "int64")
    size = math.prod(call.shape("source"))
    positions = elementwise(
        "subtract", make_node("cumsum", (flat,), tensor_type(flat), axis=0, dtype="int64", exclusive=False), 1
    )
    positions = elementwise("minimum", elementwise("maximum", positions, 0), size - 1)
    source = take_slices(reshape(call["source"], (-1,)), positions, 0)
    return where(mask, reshape(source, call.kind.shape), call["self"])


READERS: dict[str, Convert] = {
    "_embedding_bag": _embedding_bags,
    "_embedding_bag_forward_only": _embedding_bags,
    "_unsafe_index": _index,
    "_unsafe_index_put": _index_put,
    "embedding": _embedding,
    "gather": _gather_along,
    "index": _index,
    "index_add": _index_add,
    "index_put": _index_put,
    "index_select": _index_select,
    "masked_scatter": _masked_scatter,
    "masked_select": _masked_select,
    "nonzero": _nonzero,
    "repeat_interleave": _repeat_interleave,
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_reduce": _scatter,
}
"""Operator without its overload -> reader."""
