"""Readers of pools over sliding windows: maxima, means, norms, and the inverse of max pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    broadcast,
    cast,
    clamp_indices,
    constant,
    elementwise,
    pad_tensor,
    permute,
    pool,
    reduce_axes,
    reshape,
    scatter,
    take_slices,
    widen_to_float32,
)
from anatune.network.graph.nodes import HALVES, Array, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError
from anatune.network.graph.orders import pool_sizes

__all__ = ["READERS", "Windows", "check_kernel", "windows_of"]


class Windows(NamedTuple):
    """Sliding windows with a number for each dimension of the image; `padding` lists all starts, then all ends."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def outputs(self, sizes: Sequence[int], *, ceil_mode: bool = False) -> tuple[int, ...]:
        """Return the number of windows along each dimension."""
        return pool_sizes(sizes, *self, ceil_mode=ceil_mode)

    def indices(self, outputs: Sequence[int]) -> list[Array]:
        """Return the indices that each window reads along each dimension, (outputs, window); negative in padding."""
        rank = len(self.window)
        return [
            (np.arange(outputs[d]) * self.strides[d] - self.padding[d])[:, None]
            + np.arange(self.window[d]) * self.dilation[d]
            for d in range(rank)
        ]

    def extend(self, sizes: Sequence[int], outputs: Sequence[int]) -> Windows:
        """Return the same windows with the padding at the end extended to all that the last windows read."""
        rank = len(self.window)
        ends = [int(one.max(initial=0)) + 1 - size for one, size in zip(self.indices(outputs), sizes, strict=True)]
        behind = (max(0, self.padding[rank + d] if ends[d] <= self.padding[rank + d] else ends[d]) for d in range(rank))
        return self._replace(padding=(*self.padding[:rank], *behind))


def windows_of(call: OnnxCall, window: Sequence[int]) -> Windows:
    """Return the windows that the attributes of a node describe."""
    attrs, sizes, rank = call.attributes, call.kind().shape[2:], len(window)
    if len(sizes) != rank:
        raise RefusedError(f"has windows of {rank} dimensions for images of {len(sizes)} dimensions")
    check_kernel(call, window)
    strides = tuple(attrs.get("strides") or (1,) * rank)
    dilation = tuple(attrs.get("dilations") or (1,) * rank)
    padding = tuple(attrs.get("pads") or (0,) * 2 * rank)
    word = attrs.get("auto_pad", "NOTSET")
    if word != "NOTSET":
        padding = (0,) * 2 * rank
    if word.startswith("SAME"):
        total = [
            max(0, (-(-sizes[d] // strides[d]) - 1) * strides[d] + (window[d] - 1) * dilation[d] + 1 - sizes[d])
            for d in range(rank)
        ]
        smaller_half = [size // 2 for size in total]
        larger_half = [size - half for size, half in zip(total, smaller_half, strict=True)]
        padding = tuple(smaller_half + larger_half if word == "SAME_UPPER" else larger_half + smaller_half)
    if not all(len(size) == count * rank for size, count in ((strides, 1), (dilation, 1), (padding, 2))):
        raise RefusedError("has strides, dilations or pads for another number of dimensions than its windows")
    if min(*strides, *dilation, *window) < 1 or min(padding) < 0:
        raise RefusedError("has strides, dilations or window sizes below 1, or pads below 0")
    return Windows(tuple(window), strides, padding, dilation)


def check_kernel(call: OnnxCall, window: Sequence[int]) -> None:
    """Raise `RefusedError` if a node declares other window sizes than its weights have."""
    kernel_shape = call.attributes.get("kernel_shape") or window
    if tuple(kernel_shape) != tuple(window):
        raise RefusedError(f"has kernel_shape {list(kernel_shape)} for weights of {list(window)}, expected the same")


def _pool_windows(call: OnnxCall) -> tuple[Windows, tuple[int, ...]]:
    """Return the windows of a pool and their number along each dimension."""
    windows = windows_of(call, call.attributes["kernel_shape"])
    is_ceil = bool(call.attributes.get("ceil_mode")) and not call.attributes["auto_pad"].startswith("SAME")
    return windows, windows.outputs(call.kind().shape[2:], ceil_mode=is_ceil)


def _pool(kind: str, value: Value, windows: Windows, outputs: Sequence[int], *, counts: bool = False) -> Value:
    """Return a pool whose windows may reach beyond the padding, with the padding extended for the kernel."""
    wider = windows.extend(tensor_type(value).shape[2:], outputs)
    return pool(
        kind, value, window=wider.window, strides=wider.strides, padding=wider.padding, dilation=wider.dilation,
        count_include_pad=counts,
    )  # fmt: skip


def _reduce_windows(word: str, value: Value, tables: Sequence[Array]) -> Value:
    """Return windows reduced along one dimension after another; `tables` holds the indices along each dimension."""
    for axis, table in enumerate(tables, start=2):
        value = reduce_axes(word, take_slices(value, constant(table, "int64"), axis), [axis + 1], keepdims=False)
    return value


def _clamped_indices(windows: Windows, sizes: Sequence[int], outputs: Sequence[int]) -> list[Array]:
    """Return the indices that each window reads, with those outside clamped to the window's elements in the image."""
    tables = []
    for indices, size in zip(windows.indices(outputs), sizes, strict=True):
        is_in = (indices >= 0) & (indices < size)
        low = np.where(is_in, indices, size).min(axis=1, keepdims=True)
        high = np.where(is_in, indices, -1).max(axis=1, keepdims=True)
        tables.append(np.clip(np.clip(indices, low, high), 0, size - 1))
    return tables


def _max_pool(call: OnnxCall) -> Sequence[Value]:
    """Return maxima and, if they are read, their indices in the whole tensor."""
    windows, outputs = _pool_windows(call)
    batch, channels, *sizes = call.kind().shape
    rank, dtype = len(sizes), call.kind().dtype
    tables = _clamped_indices(windows, sizes, outputs)
    if dtype in ("float32", "float64", "int8", "uint8") and rank <= 3:
        largest = _pool("max", call[0], windows, outputs)
    else:
        largest = _reduce_windows("max", call[0], tables)
    if len(call.outputs) < 2 or not call.outputs[1]:
        return [largest]
    value = call[0]
    for d, table in enumerate(tables):
        value = take_slices(value, constant(table, "int64"), 2 + 2 * d)
    order = [0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2)]
    count = math.prod(windows.window)
    taps = reshape(permute(value, order), (batch, channels, *outputs, count))
    strides = [math.prod(sizes[d + 1 :]) for d in range(rank)]
    if call.attributes.get("storage_order"):
        strides = [math.prod(sizes[:d]) for d in range(rank)]
    flat = np.zeros((1,) * 2 * rank, np.int64)
    for d, table in enumerate(tables):
        shape = [1] * 2 * rank
        shape[d], shape[rank + d] = table.shape
        flat = flat + table.reshape(shape) * strides[d]
    windows_before = np.arange(math.prod(outputs)).reshape(outputs) * count
    tap = elementwise("add", arg_extreme("argmax", taps, -1, keepdims=False), constant(windows_before, "int64"))
    images = np.arange(batch * channels).reshape(batch, channels, *(1,) * rank) * math.prod(sizes)
    return [
        largest,
        elementwise("add", take_slices(constant(flat.reshape(-1), "int64"), tap, 0), constant(images, "int64")),
    ]


def _means(value: Value, windows: Windows, outputs: Sequence[int], *, counts: bool) -> Value:
    """Return the means of windows, divided by the elements in the image or, with `counts`, in the padded image."""
    sizes, rank = tensor_type(value).shape[2:], len(outputs)
    dtype = tensor_type(value).dtype
    if dtype in HALVES:
        return cast(_means(cast(value, "float32"), windows, outputs, counts=counts), dtype)
    tables = windows.indices(outputs)
    ends = [
        (-windows.padding[d], sizes[d] + windows.padding[rank + d]) if counts else (0, sizes[d]) for d in range(rank)
    ]
    number = [((table >= low) & (table < high)).sum(axis=1) for table, (low, high) in zip(tables, ends, strict=True)]
    element_counts = functools.reduce(np.multiply.outer, number)[None, None]
    if rank <= 3 and all(step == 1 for step in windows.dilation):
        means = _pool("avg", value, windows, outputs, counts=counts)
        factors = math.prod(windows.window) / np.maximum(element_counts, 1)
        return means if not counts or (factors == 1).all() else elementwise("multiply", means, constant(factors, dtype))
    return elementwise("divide", _sums(value, windows, outputs), constant(np.maximum(element_counts, 1), dtype))


def _sums(value: Value, windows: Windows, outputs: Sequence[int]) -> Value:
    """Return the sums of windows."""
    rank = len(outputs)
    wider = windows.extend(tensor_type(value).shape[2:], outputs)
    if rank <= 3 and all(step == 1 for step in windows.dilation):
        return elementwise(
            "multiply", _pool("avg", value, wider, outputs, counts=True), float(math.prod(windows.window))
        )
    padded_value = pad_tensor(value, [0, 0, *wider.padding[:rank]], [0, 0, *wider.padding[rank:]])
    tables = [indices + before for indices, before in zip(wider.indices(outputs), wider.padding, strict=False)]
    return _reduce_windows("sum", padded_value, tables)


def _average_pool(call: OnnxCall) -> Value:
    windows, outputs = _pool_windows(call)
    return _means(call[0], windows, outputs, counts=bool(call.attributes.get("count_include_pad")))


def _norm(value: Value, power: float, total: functools.partial[Value]) -> Value:
    """Return the root of the sum of powers; `total` computes the sum."""
    dtype = tensor_type(value).dtype
    if dtype in HALVES:
        return cast(_norm(cast(value, "float32"), power, total), dtype)
    if power == 2:
        return elementwise("sqrt", total(elementwise("multiply", value, value)))
    size = elementwise("abs", value)
    return total(size) if power == 1 else elementwise("power", total(elementwise("power", size, power)), 1 / power)


def _lp_pool(call: OnnxCall) -> Value:
    windows, outputs = _pool_windows(call)
    return _norm(call[0], call.attributes["p"], functools.partial(_sums, windows=windows, outputs=outputs))


def _read_global(word: str) -> Convert:
    """Return a reader of a reduction over whole images."""
    return lambda call: cast(
        reduce_axes(word, widen_to_float32(call[0]) if word == "mean" else call[0], range(2, call.rank), keepdims=True),
        call.kind().dtype,
    )


def _global_lp_pool(call: OnnxCall) -> Value:
    total = functools.partial(_sum, axes=range(2, call.rank))
    return _norm(call[0], call.attributes["p"], total)


def _sum(value: Value, axes: Sequence[int]) -> Value:
    return reduce_axes("sum", value, axes, keepdims=True)


def _max_unpool(call: OnnxCall) -> Value:
    """Return zeros with elements at indices into the whole tensor, padded to a given size."""
    (batch, channels, *sizes), dtype = call.kind().shape, call.kind().dtype
    windows = windows_of(call, call.attributes["kernel_shape"])
    rank = len(sizes)
    result_sizes = [
        (sizes[d] - 1) * windows.strides[d] - windows.padding[d] - windows.padding[rank + d] + windows.window[d]
        for d in range(rank)
    ]
    shape = (batch, channels, *result_sizes)
    zeros = broadcast(constant(0, dtype), (math.prod(shape),))
    result = scatter(
        zeros, clamp_indices(reshape(call[1], (-1,)), math.prod(shape)), reshape(call[0], (-1,)), 0, "update"
    )
    result = reshape(result, shape)
    if call.get(2) is None:
        return result
    given_sizes = [int(size) for size in call.constant_values(2, "the sizes").reshape(-1)]
    more = [size - smaller for size, smaller in zip(given_sizes, shape, strict=True)]
    if min(more) < 0:
        raise RefusedError(f"has a result of the sizes {list(shape)}, expected at most {given_sizes}")
    return pad_tensor(result, [0] * len(more), more)


READERS: dict[str, Convert] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _read_global("mean"),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _read_global("max"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
