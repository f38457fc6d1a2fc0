"""Operators that move elements: other shapes and orders, parts, joins, what lies around a tensor."""

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
    padded,
    permute,
    reshape,
    sliced,
    split,
    taken,
    taken_at,
    where,
)
from anatune.network.graph.nodes import Array, Value, tensor_type
from anatune.network.graph.torch.call import Call, Convert, RefusedError, converted

__all__ = ["READERS"]


def picked(value: Value, places: Array) -> Value:
    """Return the elements of a tensor at known places in its row-major order."""
    return taken(reshape(value, (-1,)), constant(places, "int64"), 0)


def _places_of(value: Value) -> Array:
    shape = tensor_type(value).shape
    return np.arange(math.prod(shape)).reshape(shape)


def _reshaped(call: Call) -> Value:
    """Return what is the same in another shape: the result's."""
    if call.kind.dtype != tensor_type(call["self"]).dtype:
        raise RefusedError("reads the bits of numbers as others, expected a conversion")
    return reshape(call["self"], call.kind.shape)


def _permuted(call: Call) -> Value:
    return permute(call["self"], call["dims"])


def _expanded(call: Call) -> Value:
    return broadcast(call["self"], call.kind.shape)


def _repeated(call: Call) -> Value:
    """Return a tensor behind itself so many times in each dimension: each dimension is broadcast beside it."""
    own = (1,) * (len(call["repeats"]) - len(call.shape())) + call.shape()
    pairs = list(zip(call["repeats"], own, strict=True))
    whole = broadcast(
        reshape(call["self"], [n for size in own for n in (1, size)]), [n for pair in pairs for n in pair]
    )
    return reshape(whole, call.kind.shape)


def _joined(call: Call) -> Value:
    """Return tensors behind each other; those without elements may be of another rank."""
    rank = len(call.kind.shape)
    parts = [converted(one, call.kind.dtype) for one in call["tensors"] if len(tensor_type(one).shape) == rank]
    return concat(parts, call["dim"])


def _parts(call: Call) -> Sequence[Value]:
    return split(call["self"], call["split_sizes"], call["dim"])


def _bounds(call: Call, axis: int) -> tuple[int, int, int]:
    size, start, end = call.shape()[axis], call["start"], call["end"]
    return slice(start, end, call["step"]).indices(size)


def _sliced(call: Call) -> Value:
    axis = call["dim"] % len(call.shape())
    start, end, step = _bounds(call, axis)
    return sliced(call["self"], [axis], [start], [end], [step])


def _selected(call: Call) -> Value:
    axis = call["dim"] % len(call.shape())
    place = call["index"] % call.shape()[axis]
    return reshape(sliced(call["self"], [axis], [place], [place + 1]), call.kind.shape)


def _with_slice(call: Call) -> Value:
    """Return a tensor with a part along a dimension in the place of its own: what lies around it on either side."""
    axis, value = call["dim"] % len(call.shape()), call["self"]
    size, source = call.shape()[axis], converted(call["src"], call.kind.dtype)
    if call.name.startswith("select"):
        start = call["index"] % size
        end, step = start + 1, 1
        source = reshape(source, (*call.shape()[:axis], 1, *call.shape()[axis + 1 :]))
    else:
        start, end, step = _bounds(call, axis)
    places = np.arange(start, max(start, end), step)
    source = broadcast(source, (*call.shape()[:axis], len(places), *call.shape()[axis + 1 :]))
    if step == 1:
        around = [sliced(value, [axis], [0], [start]), source, sliced(value, [axis], [start + len(places)], [size])]
        return concat(around, axis)
    is_own, at = np.ones(size, bool), np.zeros(size, np.int64)
    is_own[places], at[places] = False, np.arange(len(places))
    mask = constant(is_own.reshape([-1 if place == axis else 1 for place in range(len(call.shape()))]), "bool")
    return where(mask, value, taken(source, constant(at, "int64"), axis))


def _turned(call: Call) -> Value:
    return functools.reduce(
        lambda value, axis: taken_at(value, np.arange(call.shape()[axis])[::-1], axis),
        call.axes("dims"),
        call.operand("self"),
    )


def _rolled(call: Call) -> Value:
    if not call["dims"]:
        flat = reshape(call["self"], (-1,))
        return reshape(taken_at(flat, np.roll(_places_of(flat), call["shifts"][0]), 0), call.kind.shape)
    value = call.operand("self")
    for shift, axis in zip(call["shifts"], call["dims"], strict=True):
        value = taken_at(value, np.roll(np.arange(call.shape()[axis]), shift), axis)
    return value


def _diagonal(call: Call) -> Value:
    return picked(call["self"], np.diagonal(_places_of(call["self"]), call["offset"], call["dim1"], call["dim2"]))


def _with_strides(call: Call) -> Value:
    """Return elements of a tensor that lies row by row, each so many behind another."""
    places = np.full((), call["storage_offset"] or 0)
    for size, stride in zip(call["size"], call["stride"], strict=True):
        places = places[..., None] + np.arange(size) * stride
    if places.size and places.max() >= math.prod(call.shape()):
        raise RefusedError("reads beyond a tensor, expected a view of all that it reads")
    return picked(call["self"], places)


def _windows(call: Call) -> Value:
    """Return windows along a dimension: one of their number in its place, and one of their elements at the end."""
    rank = len(call.shape())
    if not rank:
        return reshape(call["self"], call.kind.shape)
    axis, size, step = call["dimension"] % rank, call["size"], call["step"]
    count = call.kind.shape[axis]
    found = taken(call["self"], constant(np.arange(count)[:, None] * step + np.arange(size), "int64"), axis)
    return permute(found, [place for place in range(rank + 1) if place != axis + 1] + [axis + 1])


def _padded(call: Call) -> Value:
    """Return a tensor with a number around it; where that is less than nothing, it is cut."""
    rank, pad = len(call.shape()), list(call["pad"])
    before, after = ([0] * (rank - len(pad) // 2) + pad[place::2][::-1] for place in (0, 1))
    value = call["self"]
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        value = sliced(value, [axis], [max(-first, 0)], [call.shape()[axis] - max(-last, 0)])
    before, after = ([max(size, 0) for size in sizes] for sizes in (before, after))
    number = call.get("value", 0) or 0
    if call.kind.dtype == "bool":
        inner = padded(converted(value, "int8"), before, after, float(bool(number)))
        return converted(inner, "bool")
    return padded(value, before, after, float(number))


def _reflected(mode: str) -> Convert:
    """Return what reads a tensor with itself around it: its places along each dimension are known."""

    def read(call: Call) -> Value:
        value, pad, rank = call.operand("self"), call["padding"], len(call.shape())
        for place in range(len(pad) // 2):
            axis = rank - 1 - place
            first, last = pad[2 * place : 2 * place + 2]
            inner = np.arange(call.shape()[axis])[max(-first, 0) : call.shape()[axis] - max(-last, 0)]
            places = np.pad(inner, (max(first, 0), max(last, 0)), mode)  # type: ignore[call-overload]
            value = taken_at(value, places, axis)
        return value

    return read


def _columns_of_windows(call: Call) -> list[tuple[Array, Array]]:
    """Return for each dimension of an image which place each window has of each tap: taps down, windows across."""
    found = []
    for axis, size in enumerate(call["output_size"]):
        tap, step, dilation, before = (call[name][axis] for name in ("kernel_size", "stride", "dilation", "padding"))
        count = (size + 2 * before - dilation * (tap - 1) - 1) // step + 1
        offset = np.arange(size)[None] + before - np.arange(tap)[:, None] * dilation
        place = offset // step
        found.append((place, (offset % step == 0) & (place >= 0) & (place < count)))
    return found


def _summed_windows(call: Call) -> Value:
    """Return an image of which each element is the sum of what windows have of it: one term a tap, or zeros."""
    (rows, down), (columns, across) = _columns_of_windows(call)
    taps = math.prod(call["kernel_size"])
    channels = call.kind.shape[-3]
    counts = [
        (size + 2 * before - dilation * (tap - 1) - 1) // step + 1
        for size, tap, step, dilation, before in zip(
            *(call[name] for name in ("output_size", "kernel_size", "stride", "dilation", "padding")), strict=True
        )
    ]
    value = reshape(call["self"], (-1, channels, taps, *counts))
    found = None
    for place, (y, x) in enumerate(np.ndindex(*call["kernel_size"])):
        mask = down[y][:, None] & across[x][None]
        if not mask.any():
            continue
        term = sliced(value, [2], [place], [place + 1])
        term = taken_at(term, np.clip(rows[y], 0, counts[0] - 1), 3)
        term = taken_at(term, np.clip(columns[x], 0, counts[1] - 1), 4)
        term = reshape(term, (-1, channels, *call["output_size"]))
        term = elementwise("multiply", term, constant(mask, call.kind.dtype))
        found = term if found is None else elementwise("add", found, term)
    assert found is not None
    return reshape(found, call.kind.shape)


_PERMUTED = dict.fromkeys(("permute", "permute_copy"), _permuted)
_RESHAPED = dict.fromkeys(("_reshape_copy", "squeeze", "unsqueeze", "view", "view_copy", "_unsafe_view"), _reshaped)
READERS: dict[str, Convert] = {
    **_PERMUTED,
    **_RESHAPED,
    "as_strided": _with_strides,
    "as_strided_copy": _with_strides,
    "cat": _joined,
    "col2im": _summed_windows,
    "constant_pad_nd": _padded,
    "diagonal": _diagonal,
    "expand": _expanded,
    "flip": _turned,
    **{f"reflection_pad{rank}d": _reflected("reflect") for rank in (1, 2, 3)},
    "repeat": _repeated,
    **{f"replication_pad{rank}d": _reflected("edge") for rank in (1, 2, 3)},
    "roll": _rolled,
    "select": _selected,
    "select_scatter": _with_slice,
    "slice": _sliced,
    "slice_scatter": _with_slice,
    "split_with_sizes": _parts,
    "unfold": _windows,
}
"""Operator without its overload -> what reads it."""
