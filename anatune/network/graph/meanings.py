"""NumPy implementations of the operators that need more than one expression.

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
    "argsort", "attention", "cumulative_sum", "erf", "erfc", "histogram", "layer_norm", "log_softmax", "masked_softmax",
    "pad", "put", "recurrent", "scatter_elements", "sigmoid", "sign", "softmax", "strided_slice", "take", "top_indices",
    "whole_quotients", "window",
]  # fmt: skip

# SciPy is imported in the functions: running a compiled network does not need it.


def erf(array: Array) -> Array:
    """Return the error function."""
    from scipy import special

    return np.asarray(special.erf(array))


def erfc(array: Array) -> Array:
    """Return 1 minus the error function."""
    from scipy import special

    return np.asarray(special.erfc(array))


def sign(array: Array) -> Array:
    """Return 1, -1 or 0; 0 for NaN."""
    return np.asarray((array > 0).astype(array.dtype) - (array < 0).astype(array.dtype))


def sigmoid(array: Array) -> Array:
    """Return the logistic function."""
    from scipy import special

    return np.asarray(special.expit(array))


def softmax(array: Array, axis: int) -> Array:
    """Return the softmax along an axis."""
    from scipy import special

    return np.asarray(special.softmax(array, axis=axis))


def log_softmax(array: Array, axis: int) -> Array:
    """Return the logarithm of the softmax along an axis."""
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
    """Return data with mean 0 and variance 1 along `axes`, times a factor, plus a term."""
    centred = data - data.mean(axis=tuple(axes), keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=tuple(axes), keepdims=True) + epsilon)
    return np.asarray(scaled * (factor if scale else 1.0) + (term if center else 0.0))


def unpack_bits(packed: Array, bits: int) -> Array:
    """Return the numbers of `bits` bits that bytes hold along the last axis, those in the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def pack_bits(numbers: Array, bits: int) -> Array:
    """Return numbers of 4 or 8 bits packed into bytes along the last axis, the inverse of `unpack_bits`."""
    return numbers[..., ::2] | numbers[..., 1::2] << 4 if bits == 4 else numbers


def scaled_weights(weight: Array, scales: Array, zeros: Array | None, *, bits: int) -> Array:
    """Return quantised weights (n, k) as the numbers that they represent, in the scales' dtype."""
    numbers = (weight if bits == 8 else unpack_bits(weight, bits)).astype(scales.dtype)
    columns, groups = scales.shape
    grouped = numbers.reshape(columns, groups, -1)
    zero_points = (8.0 if bits == 4 else 0.0) if zeros is None else zeros[..., None].astype(scales.dtype)
    return ((grouped - zero_points) * scales[..., None]).reshape(columns, -1)


def scaled_matmul(
    data: Array, weight: Array, scales: Array, zeros: Array | None = None, *, bits: int, **_: object
) -> Array:
    """Return the product of data (..., k) with quantised weights."""
    return np.asarray(data @ scaled_weights(weight, scales, zeros, bits=bits).T)


def strided_slice(
    array: Array, axes: Sequence[int], begin: Sequence[int], end: Sequence[int], strides: Sequence[int] | None = None
) -> Array:
    """Return a slice of an array: every step-th element from `begin` to `end` along `axes`."""
    slices = [slice(None)] * array.ndim
    steps = strides if strides is not None else (1,) * len(axes)
    for axis, start, stop, step in zip(axes, begin, end, steps, strict=True):
        slices[axis] = slice(start, stop, step)
    return array[tuple(slices)]


def take(array: Array, indices: Array, axis: int | None = None, **_: object) -> Array:
    """Return the slices of an array at indices along an axis; negative indices count from the end."""
    return np.take(array, indices, axis=axis, mode="wrap" if indices.size and indices.min() < 0 else "raise")


def pad(array: Array, pad_width: Sequence[int], pad_value: float, pad_mode: str) -> Array:
    """Return an array padded with a number; `pad_width` holds (before, after) for each dimension."""
    if pad_mode != "constant":
        raise ValueError(pad_mode)
    return np.pad(array, np.reshape(pad_width, (-1, 2)), constant_values=pad_value)


def quantize(data: Array, scale: Array, zero: Array, *, low: int, high: int) -> Array:
    """Return ``data / scale`` rounded half to even, plus a zero point, clipped to `low` and `high`."""
    return np.clip(np.round(data / scale) + zero, low, high)


def dequantize(data: Array, scale: Array, zero: Array) -> Array:
    """Return ``(data - zero) * scale``."""
    return np.asarray((data.astype(np.int32) - zero) * scale)


def lookup(data: Array, *, table: Sequence[int]) -> Array:
    """Return the table entry of each integer; the first entry is that of the smallest integer."""
    return np.asarray(table)[data.astype(np.int64) - np.iinfo(data.dtype).min]


_UPDATES = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}


def scatter_elements(data: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    """Return data with updates at indices along an axis, which replace elements or are combined with them."""
    result, places = data.copy(), [*np.ix_(*map(range, updates.shape))]
    places[axis] = np.broadcast_to(indices, updates.shape)
    if reduction == "update":
        result[tuple(places)] = updates
    else:
        _UPDATES[reduction].at(result, tuple(places), updates)
    return result


def put(data: Array, rows: Array, places: Array | int, axis: int) -> Array:
    """Return data with rows along an axis written at places, or from one place on if `places` is a number."""
    result = data.copy()
    indices = places + np.arange(rows.shape[axis]) if np.ndim(places) == 0 else places
    np.moveaxis(result, axis, 0)[indices] = np.moveaxis(rows, axis, 0)
    return result


def cumulative_sum(array: Array, axis: int, *, exclusive: bool) -> Array:
    """Return the cumulative sum along an axis; if `exclusive`, each sum leaves out its own element."""
    sums = array.cumsum(axis)
    if exclusive:
        sums = np.roll(sums, 1, axis)
        np.moveaxis(sums, axis, 0)[:1] = 0
    return sums


def histogram(array: Array, bins: int, low: float, high: float) -> Array:
    """Return how many elements lie in each of `bins` equal intervals between two numbers."""
    bins_of_elements = np.where(array == high, bins - 1, np.floor((array - low) * bins / (high - low)))
    return np.bincount(
        bins_of_elements[(bins_of_elements >= 0) & (bins_of_elements < bins)].astype(np.int64), minlength=bins
    )


def whole_quotients(first: Array, second: Array) -> Array:
    """Return quotients of integers, rounded towards zero; no divisor is zero."""
    quotients = np.floor_divide(first, second)
    is_low = (np.not_equal(first, quotients * second)) & (np.less(first, 0) != np.less(second, 0))
    return np.asarray(quotients + is_low.astype(quotients.dtype))


def argsort(array: Array, axis: int, *, descending: bool) -> Array:
    """Return the indices that sort the elements along an axis; equal elements stay in order."""
    if descending:
        flipped_order = np.argsort(np.flip(array, axis), axis, kind="stable")
        return np.asarray(array.shape[axis] - 1 - np.flip(flipped_order, axis))
    return np.argsort(array, axis, kind="stable")


def top_indices(array: Array, k: int, axis: int, largest: bool, **_: object) -> Array:
    """Return the indices of the k largest or smallest elements, sorted; equal elements stay in order."""
    return argsort(array, axis, descending=largest).take(range(k), axis)


def masked_softmax(data: Array, mask: Array | None = None, *, scale: float, zero_rows: bool, block: int) -> Array:
    """Return the softmax of the rows of a matrix, as ``anatune.softmax`` defines it."""
    scores = data * scale
    if mask is not None:
        rows = np.arange(len(scores))
        block_rows = len(mask) // (len(scores) // block)
        scores = scores + mask[rows // block * block_rows % len(mask) + rows % block_rows]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    if zero_rows:
        weights = np.where(np.isneginf(scores).all(axis=-1, keepdims=True), 0.0, weights)
    return np.asarray(weights)


def attention(query: Array, key: Array, value: Array, mask: Array | None = None, **attrs: Any) -> Array:
    """Return the result of attention, as ``anatune.attention`` defines it."""
    sizes = [(attrs["queries"], attrs["dim"]), (attrs["keys"], attrs["dim"]), (attrs["keys"], attrs["value_dim"])]
    heads = np.indices((attrs["batch"], attrs["heads"]))[..., None, None]
    tensors = []
    for array, (rows, columns), layout in zip((query, key, value), sizes, attrs["places"], strict=True):
        offset, *strides, group = layout
        places = zip(strides, (heads[0], heads[1] // group, np.arange(rows)[:, None]), strict=True)
        tensors.append(array.reshape(-1)[offset + np.arange(columns) + sum(stride * place for stride, place in places)])
    scores = tensors[0] @ np.swapaxes(tensors[1], -1, -2)
    softmax_attributes = {name: attrs[name] for name in ("scale", "zero_rows", "block")}
    powers = masked_softmax(scores.reshape(-1, attrs["keys"]), mask, **softmax_attributes).reshape(scores.shape)
    return np.asarray(np.swapaxes(powers @ tensors[2], 1, 2).reshape(attrs["batch"] * attrs["queries"], -1))


def recurrent(inputs: Array, *operands: Array, **attrs: Argument) -> Array:
    """Return the states of all steps of a recurrent layer, then the last ones, as ``recurrent`` defines it."""
    remaining, kind = list(operands), attrs["kind"]
    hidden = inputs.shape[2] // {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    weight = remaining.pop(0)
    if weight.ndim == 4:
        parts = [weight, *(remaining.pop(0) for _ in range(kind == "gru" and not attrs["is_late"]))]
        flat = [block.transpose(1, 2, 0, 3).reshape(hidden, block.shape[2], -1)[:, :, :hidden] for block in parts]
        weight = np.concatenate(flat, axis=1).reshape(hidden, -1)
    state, cells = remaining.pop(0), remaining.pop(0) if kind == "lstm" else None
    term, peepholes, lengths = (remaining.pop(0) if attrs[f"has_{word}"] else None for word in _OPTIONAL)
    table: dict[str, Callable[[Array], Array]] = {"sigmoid": sigmoid, "tanh": np.tanh, "nn.relu": ACTIVATIONS["relu"]}
    functions = [table[name] for name in attrs["functions"]]
    states = np.zeros((*inputs.shape[:2], hidden), inputs.dtype)
    order = range(len(inputs))
    for index, step in enumerate(reversed(order) if attrs["is_turned"] else order):
        gates, new_cells = np.split(inputs[step], inputs.shape[2] // hidden, axis=1), cells
        if kind == "rnn":
            new = functions[0](gates[0] + state @ weight)
        elif kind == "gru":
            update, reset = (functions[0](gates[g] + state @ weight[:, g * hidden :][:, :hidden]) for g in (0, 1))
            if attrs["is_late"]:
                inner = reset * (state @ weight[:, 2 * hidden :] + (0 if term is None else term))
            else:
                inner = (reset * state) @ weight[:, 2 * hidden :]
            new = (1 - update) * functions[1](gates[2] + inner) + update * state
        else:
            assert cells is not None
            sums = np.split(np.concatenate(gates, axis=1) + state @ weight, 4, axis=1)
            peeps = np.zeros((3, hidden)) if peepholes is None else peepholes.reshape(3, hidden)
            input_gate = functions[0](sums[0] + peeps[0] * cells)
            forget_gate = 1 - input_gate if attrs["joins_forget"] else functions[0](sums[2] + peeps[2] * cells)
            new_cells = forget_gate * cells + input_gate * functions[1](sums[3])
            new = functions[0](sums[1] + peeps[1] * new_cells) * functions[2](new_cells)
        is_active = np.ones((len(state), 1), bool) if lengths is None else (lengths > index)[:, None]
        states[step] = np.where(is_active, new, 0)
        state = np.where(is_active, new, state)
        cells = cells if new_cells is None or cells is None else np.where(is_active, new_cells, cells)
    return np.concatenate([states, state[None], *([] if cells is None else [cells[None]])])


_OPTIONAL = ("term", "peepholes", "lengths")


def window(data: Array, *operands: Array, **attrs: Any) -> Array:
    """Return convolutions of small groups, maxima or means over windows, as ``anatune.window`` defines them."""
    kind, sizes, remaining = attrs["kind"], data.shape[2:4], list(operands)
    weight = remaining.pop(0) if kind in ("depthwise", "grouped") else None
    group = attrs.get("group", 1)
    if weight is not None:
        if kind == "grouped":  # [blocks, units, y, group, x, unit]
            weight = weight.transpose(0, 2, 4, 3, 1, 5)
        weight = weight.reshape(*weight.shape[:3], group, -1)[..., : data.shape[4]]
        weight = weight.reshape(*weight.shape[:4], -1, group)
    shape = (*data.shape[:2], *attrs["outputs"], data.shape[4])
    result = np.full(shape, -np.inf if kind == "max" else 0.0)
    count = np.zeros((*attrs["outputs"], 1))
    for taps in np.ndindex(attrs["window"]):
        input_positions: list[NDArray[np.int64]] = []
        output_positions: list[NDArray[np.int64]] = []
        for axis in range(2):
            places = np.arange(attrs["outputs"][axis])
            positions = places * attrs["strides"][axis] + taps[axis] * attrs["dilation"][axis]
            positions -= attrs["before"][axis]
            is_inside = (positions >= 0) & (positions < sizes[axis])
            input_positions.append(positions[is_inside])
            output_positions.append(places[is_inside])
        part = data[:, :, input_positions[0][:, None], input_positions[1][None]]
        y, x = output_positions[0][:, None], output_positions[1][None]
        if kind == "max":
            result[:, :, y, x] = np.maximum(result[:, :, y, x], part)
        else:
            if weight is not None:
                split = part.reshape(*part.shape[:-1], part.shape[-1] // group, group)
                products = np.einsum("nbyxgi,bigo->nbyxgo", split, weight[:, taps[0], taps[1]])
                part = products.reshape(part.shape)
            result[:, :, y, x] += part
        count[y, x] += 1
    if kind == "mean":
        result /= math.prod(attrs["window"]) if attrs["counts_padding"] else np.maximum(count, 1)
    for step in attrs["epilogue"]:
        if step == "bias":
            result += remaining.pop(0)[:, None, None]
        else:
            result = result + remaining.pop(0) if step == "add" else ACTIVATIONS[step](result)
    return result
