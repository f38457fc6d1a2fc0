"""Readers of operators that move elements: reshapes, transposes, slices, concatenations, padding."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    broadcast,
    concat,
    constant,
    elementwise,
    pad_tensor,
    permute,
    reshape,
    slice_axes,
    split,
    take_constant_slices,
    take_slices,
    where,
)
from anatune.network.graph.nodes import Array, Value, tensor_type
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall, to_dtype

__all__ = ["READERS"]


def pick(value: Value, indices: Array) -> Value:
    """Return the elements of a tensor at constant flat indices."""
    return take_slices(reshape(value, (-1,)), constant(indices, "int64"), 0)


def _flat_indices(value: Value) -> Array:
    shape = tensor_type(value).shape
    return np.arange(math.prod(shape)).reshape(shape)


def _reshape(call: TorchCall) -> Value:
    """Return a value in the shape of the result."""
    if call.kind.dtype != tensor_type(call["self"]).dtype:
        raise RefusedError("reads the bits of numbers as another dtype, expected a conversion")
    return reshape(call["self"], call.kind.shape)


def _permute(call: TorchCall) -> Value:
    return permute(call["self"], call["dims"])


def _expand(call: TorchCall) -> Value:
    return broadcast(call["self"], call.kind.shape)


def _repeat(call: TorchCall) -> Value:
    """Return a tensor repeated in each dimension, by broadcasting a new dimension beside each."""
    full_shape = (1,) * (len(call["repeats"]) - len(call.shape())) + call.shape()
    pairs = list(zip(call["repeats"], full_shape, strict=True))
    whole = broadcast(
        reshape(call["self"], [n for size in full_shape for n in (1, size)]), [n for pair in pairs for n in pair]
    )
    return reshape(whole, call.kind.shape)


def _cat(call: TorchCall) -> Value:
    """Return the concatenation of tensors; empty ones may have another rank."""
    rank = len(call.kind.shape)
    parts = [to_dtype(tensor, call.kind.dtype) for tensor in call["tensors"] if len(tensor_type(tensor).shape) == rank]
    return concat(parts, call["dim"])


def _split(call: TorchCall) -> Sequence[Value]:
    return split(call["self"], call["split_sizes"], call["dim"])


def _slice_bounds(call: TorchCall, axis: int) -> tuple[int, int, int]:
    size, start, end = call.shape()[axis], call["start"], call["end"]
    return slice(start, end, call["step"]).indices(size)


def _slice(call: TorchCall) -> Value:
    axis = call["dim"] % len(call.shape())
    start, end, step = _slice_bounds(call, axis)
    return slice_axes(call["self"], [axis], [start], [end], [step])


def _select(call: TorchCall) -> Value:
    axis = call["dim"] % len(call.shape())
    index = call["index"] % call.shape()[axis]
    return reshape(slice_axes(call["self"], [axis], [index], [index + 1]), call.kind.shape)


def _replace_slice(call: TorchCall) -> Value:
    """Return a tensor in which a slice along a dimension is replaced."""
    axis, value = call["dim"] % len(call.shape()), call["self"]
    size, source = call.shape()[axis], to_dtype(call["src"], call.kind.dtype)
    if call.name.startswith("select"):
        start = call["index"] % size
        end, step = start + 1, 1
        source = reshape(source, (*call.shape()[:axis], 1, *call.shape()[axis + 1 :]))
    else:
        start, end, step = _slice_bounds(call, axis)
    indices = np.arange(start, max(start, end), step)
    source = broadcast(source, (*call.shape()[:axis], len(indices), *call.shape()[axis + 1 :]))
    if step == 1:
        parts = [
            slice_axes(value, [axis], [0], [start]),
            source,
            slice_axes(value, [axis], [start + len(indices)], [size]),
        ]
        return concat(parts, axis)
    is_kept, of_source = np.ones(size, bool), np.zeros(size, np.int64)
    is_kept[indices], of_source[indices] = False, np.arange(len(indices))
    mask = constant(is_kept.reshape([-1 if d == axis else 1 for d in range(len(call.shape()))]), "bool")
    return where(mask, value, take_slices(source, constant(of_source, "int64"), axis))


def _flip(call: TorchCall) -> Value:
    return functools.reduce(
        lambda value, axis: take_constant_slices(value, np.arange(call.shape()[axis])[::-1], axis),
        call.axes("dims"),
        call.operand("self"),
    )


def _roll(call: TorchCall) -> Value:
    if not call["dims"]:
        flat = reshape(call["self"], (-1,))
        return reshape(take_constant_slices(flat, np.roll(_flat_indices(flat), call["shifts"][0]), 0), call.kind.shape)
    value = call.operand("self")
    for shift, axis in zip(call["shifts"], call["dims"], strict=True):
        value = take_constant_slices(value, np.roll(np.arange(call.shape()[axis]), shift), axis)
    return value


def _diagonal(call: TorchCall) -> Value:
    return pick(call["self"], np.diagonal(_flat_indices(call["self"]), call["offset"], call["dim1"], call["dim2"]))


def _strided_view(call: TorchCall) -> Value:
    """Return a strided view of a contiguous tensor."""
    indices = np.full((), call["storage_offset"] or 0)
    for size, stride in zip(call["size"], call["stride"], strict=True):
        indices = indices[..., None] + np.arange(size) * stride
    if indices.size and indices.max() >= math.prod(call.shape()):
        raise RefusedError("reads memory outside of the tensor, expected a view within it")
    return pick(call["self"], indices)


def _unfold(call: TorchCall) -> Value:
    """Return the windows along a dimension, which becomes their number; their elements are a new last dimension."""
    rank = len(call.shape())
    if not rank:
        return reshape(call["self"], call.kind.shape)
    axis, size, step = call["dimension"] % rank, call["size"], call["step"]
    count = call.kind.shape[axis]
    windows = take_slices(call["self"], constant(np.arange(count)[:, None] * step + np.arange(size), "int64"), axis)
    return permute(windows, [dimension for dimension in range(rank + 1) if dimension != axis + 1] + [axis + 1])


def _pad(call: TorchCall) -> Value:
    """Return a tensor padded with a number; negative padding crops it."""
    rank, pad = len(call.shape()), list(call["pad"])
    before, after = ([0] * (rank - len(pad) // 2) + pad[side::2][::-1] for side in (0, 1))
    value = call["self"]
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        value = slice_axes(value, [axis], [max(-first, 0)], [call.shape()[axis] - max(-last, 0)])
    before, after = ([max(size, 0) for size in sizes] for sizes in (before, after))
    number = call.get("value", 0) or 0
    if call.kind.dtype == "bool":
        inner = pad_tensor(to_dtype(value, "int8"), before, after, float(bool(number)))
        return to_dtype(inner, "bool")
    return pad_tensor(value, before, after, float(number))


def _read_pad(mode: str) -> Convert:
    """Return a reader of reflection and replication padding, whose indices along each dimension are constants."""

    def read(call: TorchCall) -> Value:
        value, pad, rank = call.operand("self"), call["padding"], len(call.shape())
        for pair in range(len(pad) // 2):
            axis = rank - 1 - pair
            first, last = pad[2 * pair : 2 * pair + 2]
            inner = np.arange(call.shape()[axis])[max(-first, 0) : call.shape()[axis] - max(-last, 0)]
            indices = np.pad(inner, (max(first, 0), max(last, 0)), mode)  # type: ignore[call-overload]
            value = take_constant_slices(value, indices, axis)
        return value

    return read


def _window_tables(call: TorchCall) -> list[tuple[Array, Array]]:
    """Return for each image dimension the window that covers an element with a tap, and whether it exists."""
    tables = []
    for axis, size in enumerate(call["output_size"]):
        tap, step, dilation, before = (call[name][axis] for name in ("kernel_size", "stride", "dilation", "padding"))
        count = (size + 2 * before - dilation * (tap - 1) - 1) // step + 1
        offset = np.arange(size)[None] + before - np.arange(tap)[:, None] * dilation
        window = offset // step
        tables.append((window, (offset % step == 0) & (window >= 0) & (window < count)))
    return tables


def _fold(call: TorchCall) -> Value:
    """Return an image whose elements sum the overlapping windows, with one term for each tap."""
    (rows, down), (columns, across) = _window_tables(call)
    taps = math.prod(call["kernel_size"])
    channels = call.kind.shape[-3]
    counts = [
        (size + 2 * before - dilation * (tap - 1) - 1) // step + 1
        for size, tap, step, dilation, before in zip(
            *(call[name] for name in ("output_size", "kernel_size", "stride", "dilation", "padding")), strict=True
        )
    ]
    value = reshape(call["self"], (-1, channels, taps, *counts))
    total = None
    for tap_index, (y, x) in enumerate(np.ndindex(*call["kernel_size"])):
        mask = down[y][:, None] & across[x][None]
        if not mask.any():
            continue
        term = slice_axes(value, [2], [tap_index], [tap_index + 1])
        term = take_constant_slices(term, np.clip(rows[y], 0, counts[0] - 1), 3)
        term = take_constant_slices(term, np.clip(columns[x], 0, counts[1] - 1), 4)
        term = reshape(term, (-1, channels, *call["output_size"]))
        term = elementwise("multiply", term, constant(mask, call.kind.dtype))
        total = term if total is None else elementwise("add", total, term)
    assert total is not None
    return reshape(total, call.kind.shape)


_PERMUTED = dict.fromkeys(("permute", "permute_copy"), _permute)
_RESHAPED = dict.fromkeys(("_reshape_copy", "squeeze", "unsqueeze", "view", "view_copy", "_unsafe_view"), _reshape)
READERS: dict[str, Convert] = {
    **_PERMUTED,
    **_RESHAPED,
    "as_strided": _strided_view,
    "as_strided_copy": _strided_view,
    "cat": _cat,
    "col2im": _fold,
    "constant_pad_nd": _pad,
    "diagonal": _diagonal,
    "expand": _expand,
    "flip": _flip,
    **{f"reflection_pad{rank}d": _read_pad("reflect") for rank in (1, 2, 3)},
    "repeat": _repeat,
    **{f"replication_pad{rank}d": _read_pad("edge") for rank in (1, 2, 3)},
    "roll": _roll,
    "select": _select,
    "select_scatter": _replace_slice,
    "slice": _slice,
    "slice_scatter": _replace_slice,
    "split_with_sizes": _split,
    "unfold": _unfold,
}
"""Operator without its overload -> reader."""
