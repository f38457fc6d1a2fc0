"""What operators compute, with NumPy, where that is more than an expression.

Functions take arrays in the order of an operator's arguments, and its attributes by name (`graph.operators`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.core.activations import ACTIVATIONS
from anatune.network.graph.nodes import Argument, Array

__all__ = [
    "argsort",
    "attention",
    "cumulative_sum",
    "erf",
    "erfc",
    "histogram",
    "layer_norm",
    "log_softmax",
    "masked_softmax",
    "pad",
    "put",
    "recurrent",
    "scatter_elements",
    "sigmoid",
    "sign",
    "softmax",
    "strided_slice",
    "take",
    "top_places",
    "whole_quotients",
    "window",
]

# SciPy is imported late: models are run without it.


def erf(array: Array) -> Array:
    """Return the error function."""
    from scipy import special

    return np.asarray(special.erf(array))


def erfc(array: Array) -> Array:
    """Return 1 less the error function."""
    from scipy import special

    return np.asarray(special.erfc(array))


def sign(array: Array) -> Array:
    """Return 1, -1 or 0; of what is no number 0."""
    return np.asarray((array > 0).astype(array.dtype) - (array < 0).astype(array.dtype))


def sigmoid(array: Array) -> Array:
    """Return the logistic function."""
    from scipy import special

    return np.asarray(special.expit(array))


def softmax(array: Array, axis: int) -> Array:
    """Return powers of e over their sum along an axis."""
    from scipy import special

    return np.asarray(special.softmax(array, axis=axis))


def log_softmax(array: Array, axis: int) -> Array:
    """Return the logarithms of `softmax`."""
    from scipy import special

    return np.asarray(special.log_softmax(array, axis=axis))


def layer_norm(
    data: Array,
    factor: Array | float = 1.0,
    term: Array | float = 0.0,
    *,
    epsilon: float,
    axes: Sequence[int] = (-1,),
    center: bool = True,
    scale: bool = True,
) -> Array:
    """Return data of mean 0 and variance 1 along `axes`, times a factor, plus a term."""
    away = data - data.mean(axis=tuple(axes), keepdims=True)
    scaled = away / np.sqrt((away**2).mean(axis=tuple(axes), keepdims=True) + epsilon)
    return np.asarray(scaled * (factor if scale else 1.0) + (term if center else 0.0))


def unpacked(packed: Array, bits: int) -> Array:
    """Return the numbers in bytes along the last axis, those of the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def in_bytes(numbers: Array, bits: int) -> Array:
    """Return numbers of 4 or 8 bits as bytes along the last axis, as `unpacked` takes them apart."""
    return numbers[..., ::2] | numbers[..., 1::2] << 4 if bits == 4 else numbers


def scaled_weights(weight: Array, scales: Array, zeros: Array | None, *, bits: int) -> Array:
    """Return weights of few bits (n, k) as the numbers that they mean, in the scales' dtype."""
    numbers = (weight if bits == 8 else unpacked(weight, bits)).astype(scales.dtype)
    columns, groups = scales.shape
    apart = numbers.reshape(columns, groups, -1)
    less = (8.0 if bits == 4 else 0.0) if zeros is None else zeros[..., None].astype(scales.dtype)
    return ((apart - less) * scales[..., None]).reshape(columns, -1)


def scaled_matmul(
    data: Array, weight: Array, scales: Array, zeros: Array | None = None, *, bits: int, **_: object
) -> Array:
    """Return products of data (..., k) with weights of few bits."""
    return np.asarray(data @ scaled_weights(weight, scales, zeros, bits=bits).T)


def strided_slice(
    array: Array, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Return a part of an array, along `axes` every step-th element from `begin` to `end`."""
    cut = [slice(None)] * array.ndim
    steps = strides if strides is not None else (1,) * len(axes)
    for axis, start, stop, step in zip(axes, begin, end, steps, strict=True):
        cut[axis] = slice(start, stop, step)
    return array[tuple(cut)]


def take(array: Array, indices: Array, axis: int | None = None, **_: object) -> Array:
    """Return the parts of an array that indices name; negative ones count from the end."""
    return np.take(array, indices, axis=axis, mode="wrap" if indices.size and indices.min() < 0 else "raise")


def pad(array: Array, pad_width: Sequence[int], pad_value: float, pad_mode: str) -> Array:
    """Return an array with a number around it: so often before and behind each dimension."""
    if pad_mode != "constant":
        raise ValueError(pad_mode)
    return np.pad(array, np.reshape(pad_width, (-1, 2)), constant_values=pad_value)


def quantize(data: Array, scale: Array, zero: Array, *, low: int, high: int) -> Array:
    """Return ``data / scale`` rounded, halves to even, plus a zero point, cut off at the ends."""
    return np.clip(np.round(data / scale) + zero, low, high)


def dequantize(data: Array, scale: Array, zero: Array) -> Array:
    """Return ``(data - zero) * scale``."""
    return np.asarray((data.astype(np.int32) - zero) * scale)


def lookup(data: Array, *, table: Sequence[int]) -> Array:
    """Return what a table has for each integer, the least one's first."""
    return np.asarray(table)[data.astype(np.int64) - np.iinfo(data.dtype).min]


_UPDATES = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


def scatter_elements(data: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    """Return data with updates at indices along an axis: in place of elements, or joined with them."""
    found, places = data.copy(), [*np.ix_(*map(range, updates.shape))]
    places[axis] = np.broadcast_to(indices, updates.shape)
    if reduction == "update":
        found[tuple(places)] = updates
    else:
        _UPDATES[reduction].at(found, tuple(places), updates)
    return found


def put(data: Array, rows: Array, places: Array | int, axis: int) -> Array:
    """Return data with rows along an axis at places, or from a place on."""
    found = data.copy()
    listed = places + np.arange(rows.shape[axis]) if np.ndim(places) == 0 else places
    np.moveaxis(found, axis, 0)[listed] = np.moveaxis(rows, axis, 0)
    return found


def cumulative_sum(array: Array, axis: int, *, exclusive: bool) -> Array:
    """Return the sums of the elements up to each one along an axis, or of those before it."""
    found = array.cumsum(axis)
    if exclusive:
        found = np.roll(found, 1, axis)
        np.moveaxis(found, axis, 0)[:1] = 0
    return found


def histogram(array: Array, bins: int, low: float, high: float) -> Array:
    """Return how many elements lie in each of equal parts between two numbers."""
    place = np.where(array == high, bins - 1, np.floor((array - low) * bins / (high - low)))
    return np.bincount(place[(place >= 0) & (place < bins)].astype(np.int64), minlength=bins)


def whole_quotients(first: Array, second: Array) -> Array:
    """Return quotients of whole numbers, rounded to zero; no divisor is zero."""
    found = np.floor_divide(first, second)
    is_low = (np.not_equal(first, found * second)) & (np.less(first, 0) != np.less(second, 0))
    return np.asarray(found + is_low.astype(found.dtype))


def argsort(array: Array, axis: int, *, descending: bool) -> Array:
    """Return the places of the elements in order; equal ones stay in order."""
    if descending:
        found = np.argsort(np.flip(array, axis), axis, kind="stable")
        return np.asarray(array.shape[axis] - 1 - np.flip(found, axis))
    return np.argsort(array, axis, kind="stable")


def top_places(array: Array, k: int, axis: int, largest: bool, **_: object) -> Array:
    """Return the places of the k largest or smallest elements in order; equal ones stay in order."""
    return argsort(array, axis, descending=largest).take(range(k), axis)


def masked_softmax(data: Array, mask: Array | None = None, *, scale: float, zero_rows: bool, block: int) -> Array:
    """Return the softmax of the rows of a matrix, as ``anatune.softmax``."""
    scores = data * scale
    if mask is not None:
        rows = np.arange(len(scores))
        own = len(mask) // (len(scores) // block)
        scores = scores + mask[rows // block * own % len(mask) + rows % own]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found = powers / powers.sum(axis=-1, keepdims=True)
    if zero_rows:
        found = np.where(np.isneginf(scores).all(axis=-1, keepdims=True), 0.0, found)
    return np.asarray(found)


def attention(query: Array, key: Array, value: Array, mask: Array | None = None, **own: Any) -> Array:
    """Return what attention weighs, as ``anatune.attention``."""
    sizes = [(own["queries"], own["dim"]), (own["keys"], own["dim"]), (own["keys"], own["value_dim"])]
    heads = np.indices((own["batch"], own["heads"]))[..., None, None]
    found = []
    for array, (rows, columns), place in zip((query, key, value), sizes, own["places"], strict=True):
        offset, *strides, group = place
        places = zip(strides, (heads[0], heads[1] // group, np.arange(rows)[:, None]), strict=True)
        found.append(array.reshape(-1)[offset + np.arange(columns) + sum(stride * place for stride, place in places)])
    scores = found[0] @ np.swapaxes(found[1], -1, -2)
    named = {name: own[name] for name in ("scale", "zero_rows", "block")}
    powers = masked_softmax(scores.reshape(-1, own["keys"]), mask, **named).reshape(scores.shape)
    return np.asarray(np.swapaxes(powers @ found[2], 1, 2).reshape(own["batch"] * own["queries"], -1))


def recurrent(inputs: Array, *operands: Array, **own: Argument) -> Array:
    """Return the states of all steps of a layer, and the last ones, as ``recurrent`` and ``anatune.recurrent``."""
    more, kind = list(operands), own["kind"]
    hidden = inputs.shape[2] // {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    weight = more.pop(0)
    if weight.ndim == 4:
        parts = [weight, *(more.pop(0) for _ in range(kind == "gru" and not own["is_late"]))]
        flat = [one.transpose(1, 2, 0, 3).reshape(hidden, one.shape[2], -1)[:, :, :hidden] for one in parts]
        weight = np.concatenate(flat, axis=1).reshape(hidden, -1)
    state, cells = more.pop(0), more.pop(0) if kind == "lstm" else None
    term, peepholes, lengths = (more.pop(0) if own[f"has_{word}"] else None for word in _OPTIONAL)
    known: dict[str, Callable[[Array], Array]] = {"sigmoid": sigmoid, "tanh": np.tanh, "nn.relu": ACTIVATIONS["relu"]}
    functions = [known[name] for name in own["functions"]]
    found = np.zeros((*inputs.shape[:2], hidden), inputs.dtype)
    order = range(len(inputs))
    for number, place in enumerate(reversed(order) if own["is_turned"] else order):
        gates, new_cells = np.split(inputs[place], inputs.shape[2] // hidden, axis=1), cells
        if kind == "rnn":
            new = functions[0](gates[0] + state @ weight)
        elif kind == "gru":
            update, reset = (functions[0](gates[at] + state @ weight[:, at * hidden :][:, :hidden]) for at in (0, 1))
            if own["is_late"]:
                inner = reset * (state @ weight[:, 2 * hidden :] + (0 if term is None else term))
            else:
                inner = (reset * state) @ weight[:, 2 * hidden :]
            new = (1 - update) * functions[1](gates[2] + inner) + update * state
        else:
            assert cells is not None
            sums = np.split(np.concatenate(gates, axis=1) + state @ weight, 4, axis=1)
            peeps = np.zeros((3, hidden)) if peepholes is None else peepholes.reshape(3, hidden)
            taken = functions[0](sums[0] + peeps[0] * cells)
            kept = 1 - taken if own["joins_forget"] else functions[0](sums[2] + peeps[2] * cells)
            new_cells = kept * cells + taken * functions[1](sums[3])
            new = functions[0](sums[1] + peeps[1] * new_cells) * functions[2](new_cells)
        inside = np.ones((len(state), 1), bool) if lengths is None else (lengths > number)[:, None]
        found[place] = np.where(inside, new, 0)
        state = np.where(inside, new, state)
        cells = cells if new_cells is None or cells is None else np.where(inside, new_cells, cells)
    return np.concatenate([found, state[None], *([] if cells is None else [cells[None]])])


_OPTIONAL = ("term", "peepholes", "lengths")


def window(data: Array, *operands: Array, **own: Any) -> Array:
    """Return depthwise convolutions, largest elements or means of windows, as ``anatune.window``."""
    kind, sizes, more = own["kind"], data.shape[2:4], list(operands)
    weight = more.pop(0) if kind == "depthwise" else None
    shape = (*data.shape[:2], *own["outputs"], data.shape[4])
    found = np.full(shape, -np.inf if kind == "max" else 0.0)
    count = np.zeros((*own["outputs"], 1))
    for taps in np.ndindex(own["window"]):
        inner: list[NDArray[np.int64]] = []
        whole: list[NDArray[np.int64]] = []
        for axis in range(2):
            places = np.arange(own["outputs"][axis])
            at = places * own["strides"][axis] + taps[axis] * own["dilation"][axis]
            at -= own["before"][axis]
            is_inside = (at >= 0) & (at < sizes[axis])
            inner.append(at[is_inside])
            whole.append(places[is_inside])
        part = data[:, :, inner[0][:, None], inner[1][None]]
        y, x = whole[0][:, None], whole[1][None]
        if kind == "max":
            found[:, :, y, x] = np.maximum(found[:, :, y, x], part)
        else:
            found[:, :, y, x] += part if weight is None else part * weight[:, taps[0], taps[1], None, None]
        count[y, x] += 1
    if kind == "mean":
        found /= math.prod(own["window"]) if own["counts_padding"] else np.maximum(count, 1)
    for step in own["epilogue"]:
        if step == "bias":
            found += more.pop(0)[:, None, None]
        else:
            found = found + more.pop(0) if step == "add" else ACTIVATIONS[step](found)
    return found
