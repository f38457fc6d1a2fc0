"""Nodes as readers of models write them: each operator with its type and all attributes, known values computed at once.

Functions return values: a node, or the constant that it is. Axes may be negative. Numbers beside tensors are constants
of the tensors' dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.folding import computed
from anatune.network.graph.nodes import (
    HALVES,
    Argument,
    Array,
    Constant,
    Input,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    item_of,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, applied
from anatune.network.graph.orders import pool_sizes

__all__ = [
    "RefusedError", "along", "arg_extreme", "broadcast", "cast", "concat", "constant", "convolution",
    "cumulative", "elementwise", "flat_places", "from_start", "gathered", "histogram", "in_float32", "inside",
    "layer_norm", "made", "matmul", "padded", "permute", "pool", "reduced", "reshape", "rows_at", "scattered",
    "sliced", "softmax", "sorted_places", "split", "standardised", "statistics", "taken", "taken_at",
    "top_places", "turned", "where",
]  # fmt: skip

_MOST_TOP = 64
"""Elements that are chosen without all being sorted."""
_ORDERS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_KERNELS = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


class RefusedError(Exception):
    """An operator cannot be read; the message says why, and goes behind the operator's name."""


def made(name: str, arguments: tuple[Argument, ...], kind: TensorType, **attributes: object) -> Value:
    """Return an operator whose result's type is given."""
    return computed(Node(name, arguments, kind, attributes, OPERATORS[name].kind))


def constant(number: object, dtype: str) -> Constant:
    """Return a constant of a number, a list or an array."""
    return Constant(np.asarray(number).astype(dtype))


def elementwise(name: str, *values: Value | float) -> Value:
    """Return an operator on elements, which are broadcast; numbers have the dtype of the first tensor."""
    dtype = next(tensor_type(value).dtype for value in values if isinstance(value, Value))
    if dtype.startswith("uint") and name in ("negative", "sign"):  # TVM has a -1 in both
        name, values = ("subtract", (0, *values)) if name == "negative" else ("minimum", (*values, 1))
    return computed(applied(name, *(one if isinstance(one, Value) else constant(one, dtype) for one in values)))


def cast(value: Value, dtype: str) -> Value:
    """Return a value in another dtype."""
    kind = tensor_type(value)
    return value if kind.dtype == dtype else made("astype", (value,), TensorType(kind.shape, dtype), dtype=dtype)


def in_float32(value: Value) -> Value:
    """Return numbers of 16 bits in float32, in which sums are taken; others as they are."""
    return cast(value, "float32") if tensor_type(value).dtype in HALVES else value


def where(condition: Value, yes: Value, no: Value) -> Value:
    """Return elements of one or the other; all three are broadcast."""
    shape = np.broadcast_shapes(*(tensor_type(value).shape for value in (condition, yes, no)))
    return made("where", (condition, yes, no), TensorType(shape, tensor_type(yes).dtype))


def _within(axis: int, rank: int) -> int:
    """Return an axis counted from the first one."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} of a tensor of {rank} dimensions")
    return int(axis) % rank


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape; one size may be -1."""
    kind, sizes = tensor_type(value), [int(size) for size in shape]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(kind.shape) // max(1, -math.prod(sizes))
    if min(sizes, default=0) < 0 or math.prod(sizes) != math.prod(kind.shape):
        raise ValueError(f"{kind} cannot have the shape {'x'.join(map(str, shape))}")
    return value if tuple(sizes) == kind.shape else computed(applied("reshape", value, Shape(sizes)))


def permute(value: Value, axes: Sequence[int]) -> Value:
    """Return a value with its dimensions in another order."""
    rank = len(tensor_type(value).shape)
    order = tuple(_within(axis, rank) for axis in axes)
    if sorted(order) != list(range(rank)):
        raise ValueError(f"the order {list(axes)} of {rank} dimensions")
    return value if order == tuple(range(rank)) else computed(applied("permute_dims", value, axes=order))


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """Return a value repeated to a shape."""
    kind = tensor_type(value)
    sizes = tuple(np.broadcast_shapes(kind.shape, tuple(map(int, shape))))
    if sizes == kind.shape:
        return value
    return made("broadcast_to", (value, Shape(sizes)), TensorType(sizes, kind.dtype))


def concat(values: Sequence[Value], axis: int) -> Value:
    """Return tensors of one dtype behind each other."""
    kinds = [tensor_type(value) for value in values]
    shape = list(kinds[0].shape)
    axis = _within(axis, len(shape))
    for kind in kinds:
        if [*kind.shape[:axis], shape[axis], *kind.shape[axis + 1 :]] != shape:
            raise ValueError(f"{kinds[0]} and {kind} cannot be joined along axis {axis}")
    shape[axis] = sum(kind.shape[axis] for kind in kinds)
    kept = tuple(
        value for value, kind in zip(values, kinds, strict=True) if math.prod(kind.shape) or isinstance(value, Input)
    )  # what a state holds at first may be nothing
    if sum(tensor_type(value).shape[axis] for value in kept) != shape[axis]:  # none has elements
        kept = tuple(values)
    return kept[0] if len(kept) == 1 else made("concat", (kept,), TensorType(tuple(shape), kinds[0].dtype), axis=axis)


def split(value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Return the parts of a tensor along an axis."""
    kind = tensor_type(value)
    axis = _within(axis, len(kind.shape))
    if min(sizes) < 0:
        raise ValueError(f"parts of {list(sizes)} elements")
    kinds = tuple(TensorType((*kind.shape[:axis], int(size), *kind.shape[axis + 1 :]), kind.dtype) for size in sizes)
    if len(kinds) == 1:
        return [value]
    ends = np.cumsum(sizes)
    if isinstance(value, Constant) or not all(math.prod(one.shape) for one in kinds):
        return [sliced(value, [axis], [end - size], [end]) for end, size in zip(ends, sizes, strict=True)]
    places = tuple(int(end) for end in ends[:-1])
    parts = Node("split", (value,), kinds, {"indices_or_sections": places, "axis": axis}, OPERATORS["split"].kind)
    return [item_of(parts, place) for place in range(len(kinds))]


def sliced(
    value: Value,
    axes: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int] | None = None,
) -> Value:
    """Return each `steps`-th element from `begins` to before `ends` along axes, as Python slices with these numbers."""
    kind, shape, numbers = tensor_type(value), list(tensor_type(value).shape), []
    for axis, begin, end, step in zip(axes, begins, ends, steps or [1] * len(axes), strict=True):
        axis = _within(axis, len(shape))
        places = range(kind.shape[axis])[slice(int(begin), int(end), int(step))]
        if places.step < 0 and len(places):
            value = turned(sliced(value, [axis], [places[-1]], [places[0] + 1], [-places.step]), axis)
            shape[axis] = len(places)
        elif len(places) != shape[axis]:
            shape[axis] = len(places)
            end = min(places.start + len(places) * places.step, kind.shape[axis])
            numbers.append((axis, places.start, end, places.step))
    if not numbers:
        return value
    words = tuple(tuple(Scalar(number, "int64") for number in column) for column in zip(*numbers, strict=True))
    return made("strided_slice", (value, *words), TensorType(tuple(shape), kind.dtype), assume_inbound=False)


def turned(value: Value, axis: int) -> Value:
    """Return a tensor whose last element along an axis is the first one."""
    return made("flip", (value,), kind := tensor_type(value), axis=_within(axis, len(kind.shape)))


def taken_at(value: Value, places: Array, axis: int) -> Value:
    """Return the parts of a tensor at known places along a dimension, none negative."""
    if places.ndim == 1 and places.size > 1 and np.all(np.diff(places) == -1):
        return turned(sliced(value, [axis], [places[-1]], [places[0] + 1]), axis)
    return taken(value, constant(places, "int64"), axis)


def taken(value: Value, indices: Value, axis: int) -> Value:
    """Return the parts of a tensor that indices along an axis name; they are in range and not negative.

    One index that is known, or some that are evenly apart, make a slice, whose elements passes know where to find.
    """
    kind, places = tensor_type(value), tensor_type(indices)
    axis, mode = _within(axis, len(kind.shape)), "fast" if isinstance(indices, Constant) else "clip"
    if isinstance(indices, Constant) and indices.array.size:
        ends = int(indices.array.min()), int(indices.array.max())
        if ends[0] < 0 or ends[1] >= kind.shape[axis]:
            raise ValueError(f"indices from {ends[0]} to {ends[1]} of {kind.shape[axis]} elements along axis {axis}")
        first, *more = indices.array.reshape(-1)[:2].tolist()
        step = more[0] - first if more else 1
        if step > 0 and np.array_equal(indices.array.reshape(-1), np.arange(first, ends[1] + 1, step)):
            part = sliced(value, [axis], [first], [ends[1] + 1], [step])
            return reshape(part, (*kind.shape[:axis], *places.shape, *kind.shape[axis + 1 :]))
    result = TensorType((*kind.shape[:axis], *places.shape, *kind.shape[axis + 1 :]), kind.dtype)
    return made("take", (value, indices), result, axis=axis, mode=mode)


def reduced(name: str, value: Value, axes: Sequence[int] | None, *, keepdims: bool) -> Value:
    """Return "sum", "mean", "max", "min" or "prod" along axes; None: all."""
    kind = tensor_type(value)
    rank = len(kind.shape)
    named = tuple(range(rank)) if axes is None else tuple(sorted({_within(axis, rank) for axis in axes}))
    if not named:
        return value
    sizes = [1 if axis in named else size for axis, size in enumerate(kind.shape)]
    shape = tuple(sizes if keepdims else (size for axis, size in enumerate(sizes) if axis not in named))
    if math.prod(kind.shape) == 0:
        return broadcast(constant(_of_nothing(name, kind.dtype), kind.dtype), shape)
    return made(name, (value,), TensorType(shape, kind.dtype), axis=named, keepdims=keepdims)


def _of_nothing(name: str, dtype: str) -> float:
    """Return what a reduction of no elements is; extremes have the number that loses against all others."""
    if name not in ("max", "min"):
        return {"sum": 0.0, "prod": 1.0, "mean": np.nan}[name]
    is_max = name == "max"
    if not dtype.startswith(("int", "uint")):
        return -np.inf if is_max else np.inf
    return int(np.iinfo(dtype).min if is_max else np.iinfo(dtype).max)


def arg_extreme(name: str, value: Value, axis: int, *, keepdims: bool) -> Value:
    """Return where "argmax" or "argmin" is along an axis, the first place, int64."""
    shape = list(tensor_type(value).shape)
    axis = _within(axis, len(shape))
    if not shape[axis]:
        raise RefusedError(f"chooses one of no elements along axis {axis} of {tensor_type(value)}, expected some")
    shape[axis : axis + 1] = [1] if keepdims else []
    return made(name, (value,), TensorType(tuple(shape), "int64"), axis=axis, keepdims=keepdims)


def cumulative(name: str, value: Value, axis: int, *, exclusive: bool = False) -> Value:
    """Return "cumsum" or "cumprod" along an axis."""
    kind = tensor_type(value)
    return made(name, (value,), kind, axis=_within(axis, len(kind.shape)), dtype=kind.dtype, exclusive=exclusive)


def sorted_places(value: Value, axis: int, *, descending: bool) -> Value:
    """Return the places of the elements in order along an axis, int64; equal ones stay in order."""
    kind = tensor_type(value)
    own = {"axis": _within(axis, len(kind.shape)), "descending": descending, "dtype": "int64"}
    return made("argsort", (value,), TensorType(kind.shape, "int64"), **own)


def top_places(value: Value, count: int, axis: int, *, largest: bool) -> Value:
    """Return the places of the largest or smallest elements along an axis, in order, int64."""
    kind = tensor_type(value)
    axis = _within(axis, len(kind.shape))
    if not 0 < count <= _MOST_TOP:
        return sliced(sorted_places(value, axis, descending=largest), [axis], [0], [count])
    shape = (*kind.shape[:axis], count, *kind.shape[axis + 1 :])
    own = {"k": count, "axis": axis, "ret_type": "indices", "largest": largest, "dtype": "int64"}
    return made("topk", (value,), TensorType(shape, "int64"), **own)


def histogram(value: Value, bins: int, first: Value, last: Value) -> Value:
    """Return how many elements lie in each of equal parts between two numbers, in the elements' dtype."""
    dtype, x = tensor_type(value).dtype, reshape(value, (-1, 1))
    along = elementwise("multiply", elementwise("subtract", x, first), bins)
    place = elementwise("floor", elementwise("divide", along, elementwise("subtract", last, first)))
    place = where(elementwise("equal", x, last), constant(bins - 1, dtype), place)
    hits = elementwise("equal", place, constant(np.arange(bins), dtype))
    return reduced("sum", cast(hits, dtype), [0], keepdims=False)


def scattered(data: Value, indices: Value, updates: Value, axis: int, reduction: str) -> Value:
    """Return data with updates at places along an axis; `reduction`: "update", "add", "mul", "min" or "max"."""
    kind = tensor_type(data)
    return made("scatter_elements", (data, indices, updates), kind, axis=axis % len(kind.shape), reduction=reduction)


def softmax(value: Value, axis: int, *, is_log: bool = False) -> Value:
    """Return the softmax along an axis, or its logarithm."""
    return made("nn.log_softmax" if is_log else "nn.softmax", (value,), tensor_type(value), axis=axis)


def layer_norm(data: Value, factor: Value, term: Value, axes: Sequence[int], epsilon: float) -> Value:
    """Return the last dimensions with mean 0 and variance 1, times a factor, plus a term."""
    sizes = tensor_type(data).shape[-len(axes) :]
    for one in (factor, term):
        if tensor_type(one).shape != sizes:
            raise ValueError(f"a norm of {tensor_type(data)} along {len(axes)} dimensions by {tensor_type(one)}")
    dtype = tensor_type(data).dtype
    if dtype not in ("float16", "float32"):  # TVM has norms of these alone
        wide = in_float32(data)
        first = len(tensor_type(data).shape) - len(axes)
        normed = statistics(wide, range(first, first + len(axes)), epsilon)[0]
        for word, one in (("multiply", factor), ("add", term)):
            normed = elementwise(word, normed, cast(one, tensor_type(wide).dtype))
        return cast(normed, dtype)
    own = {"axes": tuple(axes), "epsilon": float(epsilon), "center": True, "scale": True}
    return made("nn.layer_norm", (data, factor, term), tensor_type(data), **own)


def statistics(value: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Return a value without its mean along axes over its standard deviation, and 1 over that deviation."""
    away = elementwise("subtract", value, reduced("mean", value, axes, keepdims=True))
    variance = reduced("mean", elementwise("multiply", away, away), axes, keepdims=True)
    deviation = elementwise("sqrt", elementwise("add", variance, epsilon))
    one = constant(1, tensor_type(value).dtype)
    return elementwise("divide", away, deviation), elementwise("divide", one, deviation)


def standardised(value: Value, count: int, epsilon: float) -> Value:
    """Return the last `count` dimensions with mean 0 and variance 1."""
    kind = tensor_type(value)
    sizes = kind.shape[len(kind.shape) - count :]
    factor, term = (Constant(np.full(sizes, number, kind.dtype)) for number in (1, 0))
    return layer_norm(value, factor, term, range(-count, 0), epsilon)


def matmul(first: Value, second: Value) -> Value:
    """Return products of matrices as NumPy's ``matmul``; both have the same dtype."""
    one, other = tensor_type(first), tensor_type(second)
    if not one.shape or not other.shape or one.shape[-1] != other.shape[-2 if len(other.shape) > 1 else 0]:
        raise ValueError(f"{one} and {other} cannot be multiplied")
    left = one.shape if len(one.shape) > 1 else (1, *one.shape)
    right = other.shape if len(other.shape) > 1 else (*other.shape, 1)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    ends = (left[-2:-1] if len(one.shape) > 1 else ()) + (right[-1:] if len(other.shape) > 1 else ())
    return made("matmul", (first, second), TensorType((*batch, *ends), one.dtype), out_dtype=None)


def padded(value: Value, before: Sequence[int], after: Sequence[int], number: float = 0.0) -> Value:
    """Return a tensor with `number` around it: so many in each dimension."""
    kind = tensor_type(value)
    if not any((*before, *after)):
        return value
    width = tuple(int(size) for pair in zip(before, after, strict=True) for size in pair)
    shape = tuple(int(b) + size + int(a) for b, size, a in zip(before, kind.shape, after, strict=True))
    return made(
        "nn.pad", (value,), TensorType(shape, kind.dtype), pad_width=width, pad_value=number, pad_mode="constant"
    )


def convolution(
    data: Value, weight: Value, *, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Value:
    """Return a convolution of 1 to 3 dimensions with its channels first; `padding`: all before, then all behind."""
    kind, taps = tensor_type(data), tensor_type(weight)
    rank = len(kind.shape) - 2
    sizes = pool_sizes(kind.shape[2:], taps.shape[2:], strides, padding, dilation)
    own = {
        "strides": tuple(map(int, strides)), "padding": tuple(map(int, padding)), "dilation": tuple(map(int, dilation)),
        "groups": int(groups), "data_layout": _ORDERS[rank], "kernel_layout": _KERNELS[rank],
        "out_layout": _ORDERS[rank], "out_dtype": None,
    }  # fmt: skip
    return made(
        f"nn.conv{rank}d", (data, weight), TensorType((kind.shape[0], taps.shape[0], *sizes), kind.dtype), **own
    )


def pool(
    kind: str,
    value: Value,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Value:
    """Return a pool, "max" or "avg", of 1 to 3 dimensions with the channels first; `padding` as of a convolution."""
    own = tensor_type(value)
    rank = len(own.shape) - 2
    sizes = pool_sizes(own.shape[2:], window, strides, padding, dilation, ceil_mode=ceil_mode)
    return made(
        f"nn.{kind}_pool{rank}d", (value,), TensorType((*own.shape[:2], *sizes), own.dtype),
        pool_size=tuple(map(int, window)), strides=tuple(map(int, strides)), dilation=tuple(map(int, dilation)),
        padding=tuple(map(int, padding)), ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        layout=_ORDERS[rank], out_layout=_ORDERS[rank],
    )  # fmt: skip


def along(axis: int, rank: int, size: int) -> Value:
    """Return 0, 1 ... along one dimension of many, int64."""
    return constant(np.arange(size).reshape([-1 if place == axis % rank else 1 for place in range(rank)]), "int64")


def rows_at(data: Value, places: Sequence[Value]) -> Value:
    """Return the parts of a tensor that places in its first dimensions name.

    Parameters
    ----------
    data : Value
        (sizes of those dimensions, rest).
    places : sequence of Value
        int64, in range; they are broadcast to a shape that comes before the rest.
    """
    kind, count = tensor_type(data), len(places)
    flat = reshape(data, (math.prod(kind.shape[:count]), *kind.shape[count:]))
    return taken(flat, flat_places(places, kind.shape[:count]), 0)


def flat_places(places: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return places in many dimensions as places in a tensor that is flat."""
    terms = [
        elementwise("multiply", place, math.prod(sizes[number + 1 :])) if math.prod(sizes[number + 1 :]) != 1 else place
        for number, place in enumerate(places)
    ]
    return functools.reduce(lambda one, other: elementwise("add", one, other), terms)


def from_start(indices: Value, size: int) -> Value:
    """Return indices of which negative ones counted from the end, int64."""
    own = cast(indices, "int64")
    if tensor_type(indices).dtype.startswith("uint"):
        return own
    return where(elementwise("less", own, 0), elementwise("add", own, size), own)


def inside(indices: Value, size: int) -> Value:
    """Return indices counted from the start, none outside of so many elements: kernels go wherever they are told.

    What is outside stops at the ends.

    Raises
    ------
    RefusedError
        Some are outside, and known to be.
    """
    indices = from_start(indices, size)
    if not isinstance(indices, Constant):
        return elementwise("minimum", elementwise("maximum", indices, 0), max(0, size - 1))
    if indices.array.size and not 0 <= indices.array.min() <= indices.array.max() < size:
        raise RefusedError(f"has indices from {indices.array.min()} to {indices.array.max()} of {size} elements")
    return indices


def gathered(value: Value, places: Value, axis: int) -> Value:
    """Return the element at each of many places along an axis; they are in range and not negative, int64."""
    kind = TensorType(tensor_type(places).shape, tensor_type(value).dtype)
    return made("gather_elements", (value, places), kind, axis=_within(axis, len(kind.shape)))
