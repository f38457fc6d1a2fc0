"""Windows that slide over images: where they lie, largest elements, means and norms of them, and what undoes them."""

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
    padded,
    permute,
    pool,
    reduced,
    reshape,
    scattered,
    taken,
    widen_to_float32,
)
from anatune.network.graph.nodes import HALVES, Array, Value, tensor_type
from anatune.network.graph.onnx.call import Call, Convert, RefusedError
from anatune.network.graph.orders import pool_sizes

__all__ = ["READERS", "Windows", "check_kernel", "windows_of"]


class Windows(NamedTuple):
    """Windows over an image, each with as many numbers as it has dimensions; `padding`: all before, then all behind."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def outputs(self, sizes: Sequence[int], *, ceil_mode: bool = False) -> tuple[int, ...]:
        """Return how many there are along each dimension."""
        return pool_sizes(sizes, *self, ceil_mode=ceil_mode)

    def places(self, outputs: Sequence[int]) -> list[Array]:
        """Return what each window reads along each dimension, (outputs, window); negative: before the image."""
        rank = len(self.window)
        return [
            (np.arange(outputs[d]) * self.strides[d] - self.padding[d])[:, None]
            + np.arange(self.window[d]) * self.dilation[d]
            for d in range(rank)
        ]

    def whole(self, sizes: Sequence[int], outputs: Sequence[int]) -> Windows:
        """Return the same windows with as much padding behind an image as the last ones reach over."""
        rank = len(self.window)
        ends = [int(one.max(initial=0)) + 1 - size for one, size in zip(self.places(outputs), sizes, strict=True)]
        behind = (max(0, self.padding[rank + d] if ends[d] <= self.padding[rank + d] else ends[d]) for d in range(rank))
        return self._replace(padding=(*self.padding[:rank], *behind))


def windows_of(call: Call, window: Sequence[int]) -> Windows:
    """Return the windows that the attributes of a node say."""
    own, sizes, rank = call.attributes, call.kind().shape[2:], len(window)
    if len(sizes) != rank:
        raise RefusedError(f"has windows of {rank} dimensions for images of {len(sizes)}")
    check_kernel(call, window)
    strides = tuple(own.get("strides") or (1,) * rank)
    dilation = tuple(own.get("dilations") or (1,) * rank)
    padding = tuple(own.get("pads") or (0,) * 2 * rank)
    word = own.get("auto_pad", "NOTSET")
    if word != "NOTSET":
        padding = (0,) * 2 * rank
    if word.startswith("SAME"):
        total = [
            max(0, (-(-sizes[d] // strides[d]) - 1) * strides[d] + (window[d] - 1) * dilation[d] + 1 - sizes[d])
            for d in range(rank)
        ]
        less = [one // 2 for one in total]
        rest = [one - half for one, half in zip(total, less, strict=True)]
        padding = tuple(less + rest if word == "SAME_UPPER" else rest + less)
    if not all(len(one) == count * rank for one, count in ((strides, 1), (dilation, 1), (padding, 2))):
        raise RefusedError("has strides, dilations or pads of another number of dimensions than its windows")
    if min(*strides, *dilation, *window) < 1 or min(padding) < 0:
        raise RefusedError("has strides, dilations or a window below 1, or pads below 0")
    return Windows(tuple(window), strides, padding, dilation)


def check_kernel(call: Call, window: Sequence[int]) -> None:
    """Raise a `RefusedError` where a node says other sizes of its windows than its weights have."""
    said = call.attributes.get("kernel_shape") or window
    if tuple(said) != tuple(window):
        raise RefusedError(f"has kernel_shape {list(said)} for weights of {list(window)}, expected the same")


def _of_call(call: Call) -> tuple[Windows, tuple[int, ...]]:
    """Return the windows of a pool, and how many there are along each dimension."""
    windows = windows_of(call, call.attributes["kernel_shape"])
    is_ceil = bool(call.attributes.get("ceil_mode")) and not call.attributes["auto_pad"].startswith("SAME")
    return windows, windows.outputs(call.kind().shape[2:], ceil_mode=is_ceil)


def _pooled(kind: str, value: Value, windows: Windows, outputs: Sequence[int], *, counts: bool = False) -> Value:
    """Return a pool of windows that reach over the image's padding as what kernels have: with more padding behind."""
    own = windows.whole(tensor_type(value).shape[2:], outputs)
    return pool(
        kind, value, window=own.window, strides=own.strides, padding=own.padding, dilation=own.dilation,
        count_include_pad=counts,
    )  # fmt: skip


def _along(word: str, value: Value, tables: Sequence[Array]) -> Value:
    """Return windows reduced, one dimension after another; `tables`: what each reads along each dimension."""
    for axis, table in enumerate(tables, start=2):
        value = reduced(word, taken(value, constant(table, "int64"), axis), [axis + 1], keepdims=False)
    return value


def _inside(windows: Windows, sizes: Sequence[int], outputs: Sequence[int]) -> list[Array]:
    """Return what each window reads, its first or last element inside the image in place of those outside."""
    found = []
    for places, size in zip(windows.places(outputs), sizes, strict=True):
        is_in = (places >= 0) & (places < size)
        low = np.where(is_in, places, size).min(axis=1, keepdims=True)
        high = np.where(is_in, places, -1).max(axis=1, keepdims=True)
        found.append(np.clip(np.clip(places, low, high), 0, size - 1))
    return found


def _max_pool(call: Call) -> Sequence[Value]:
    """Return largest elements and, where somebody reads them, their places in the whole tensor."""
    windows, outputs = _of_call(call)
    batch, channels, *sizes = call.kind().shape
    rank, dtype = len(sizes), call.kind().dtype
    tables = _inside(windows, sizes, outputs)
    if dtype in ("float32", "float64", "int8", "uint8") and rank <= 3:
        found = _pooled("max", call[0], windows, outputs)
    else:
        found = _along("max", call[0], tables)
    if len(call.outputs) < 2 or not call.outputs[1]:
        return [found]
    value = call[0]
    for d, table in enumerate(tables):
        value = taken(value, constant(table, "int64"), 2 + 2 * d)
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
    return [found, elementwise("add", taken(constant(flat.reshape(-1), "int64"), tap, 0), constant(images, "int64"))]


def _means(value: Value, windows: Windows, outputs: Sequence[int], *, counts: bool) -> Value:
    """Return means of windows: of what lies in the image or, with `counts`, in the padded one."""
    sizes, rank = tensor_type(value).shape[2:], len(outputs)
    dtype = tensor_type(value).dtype
    if dtype in HALVES:
        return cast(_means(cast(value, "float32"), windows, outputs, counts=counts), dtype)
    places = windows.places(outputs)
    ends = [
        (-windows.padding[d], sizes[d] + windows.padding[rank + d]) if counts else (0, sizes[d]) for d in range(rank)
    ]
    number = [((at >= low) & (at < high)).sum(axis=1) for at, (low, high) in zip(places, ends, strict=True)]
    whole = functools.reduce(np.multiply.outer, number)[None, None]
    if rank <= 3 and all(step == 1 for step in windows.dilation):
        found = _pooled("avg", value, windows, outputs, counts=counts)
        factors = math.prod(windows.window) / np.maximum(whole, 1)
        return found if not counts or (factors == 1).all() else elementwise("multiply", found, constant(factors, dtype))
    return elementwise("divide", _sums(value, windows, outputs), constant(np.maximum(whole, 1), dtype))


def _sums(value: Value, windows: Windows, outputs: Sequence[int]) -> Value:
    """Return sums of windows."""
    rank = len(outputs)
    own = windows.whole(tensor_type(value).shape[2:], outputs)
    if rank <= 3 and all(step == 1 for step in windows.dilation):
        return elementwise(
            "multiply", _pooled("avg", value, own, outputs, counts=True), float(math.prod(windows.window))
        )
    around = padded(value, [0, 0, *own.padding[:rank]], [0, 0, *own.padding[rank:]])
    tables = [at + before for at, before in zip(own.places(outputs), own.padding, strict=False)]
    return _along("sum", around, tables)


def _average_pool(call: Call) -> Value:
    windows, outputs = _of_call(call)
    return _means(call[0], windows, outputs, counts=bool(call.attributes.get("count_include_pad")))


def _norm(value: Value, power: float, total: functools.partial[Value]) -> Value:
    """Return the root of sums of powers; `total` sums."""
    dtype = tensor_type(value).dtype
    if dtype in HALVES:
        return cast(_norm(cast(value, "float32"), power, total), dtype)
    if power == 2:
        return elementwise("sqrt", total(elementwise("multiply", value, value)))
    size = elementwise("abs", value)
    return total(size) if power == 1 else elementwise("power", total(elementwise("power", size, power)), 1 / power)


def _lp_pool(call: Call) -> Value:
    windows, outputs = _of_call(call)
    return _norm(call[0], call.attributes["p"], functools.partial(_sums, windows=windows, outputs=outputs))


def _of_image(word: str) -> Convert:
    """Return what reads a reduction of whole images."""
    return lambda call: cast(
        reduced(word, widen_to_float32(call[0]) if word == "mean" else call[0], range(2, call.rank), keepdims=True),
        call.kind().dtype,
    )


def _global_lp_pool(call: Call) -> Value:
    total = functools.partial(_total, axes=range(2, call.rank))
    return _norm(call[0], call.attributes["p"], total)


def _total(value: Value, axes: Sequence[int]) -> Value:
    return reduced("sum", value, axes, keepdims=True)


def _max_unpool(call: Call) -> Value:
    """Return zeros with elements at places of the whole tensor, and more zeros behind where a size is given."""
    (batch, channels, *sizes), dtype = call.kind().shape, call.kind().dtype
    windows = windows_of(call, call.attributes["kernel_shape"])
    rank = len(sizes)
    own = [
        (sizes[d] - 1) * windows.strides[d] - windows.padding[d] - windows.padding[rank + d] + windows.window[d]
        for d in range(rank)
    ]
    shape = (batch, channels, *own)
    zeros = broadcast(constant(0, dtype), (math.prod(shape),))
    found = scattered(
        zeros, clamp_indices(reshape(call[1], (-1,)), math.prod(shape)), reshape(call[0], (-1,)), 0, "update"
    )
    found = reshape(found, shape)
    if call.get(2) is None:
        return found
    wanted = [int(size) for size in call.known(2, "the sizes").reshape(-1)]
    more = [size - one for size, one in zip(wanted, shape, strict=True)]
    if min(more) < 0:
        raise RefusedError(f"makes the sizes {list(shape)}, expected no more than {wanted}")
    return padded(found, [0] * len(more), more)


READERS: dict[str, Convert] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": _of_image("mean"),
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": _of_image("max"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
