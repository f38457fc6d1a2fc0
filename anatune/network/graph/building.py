"""Functions that build nodes for the readers of networks, with types and attributes; known values are folded at once.

Each function returns a value: a node, or a constant if the result is known. Axes may be negative. Numbers beside
tensors become constants of the tensors' dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.folding import fold
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
    select_result,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, apply_operator
from anatune.network.graph.orders import pool_sizes

__all__ = [
    "RefusedError", "arg_extreme", "argsort", "axis_indices", "broadcast", "cast", "clamp_indices", "concat",
    "constant", "convolution", "cumulative", "elementwise", "flatten_indices", "flip", "gather", "gather_rows",
    "histogram", "layer_norm", "make_node", "matmul", "pad_tensor", "permute", "pool", "reduce_axes", "reshape",
    "scatter", "slice_axes", "softmax", "split", "standardise", "standardise_last", "take_constant_slices",
    "take_slices", "top_indices", "where", "widen_to_float32", "wrap_negative_indices",
]  # fmt: skip

_MOST_TOP = 64
"""The most elements that are selected without sorting all of them."""
_ORDERS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
_KERNELS = {1: "OIW", 2: "OIHW", 3: "OIDHW"}


class RefusedError(Exception):
    """An operator cannot be read. The message gives the reason and is appended to the operator's name."""


def make_node(name: str, arguments: tuple[Argument, ...], kind: TensorType, **attributes: object) -> Value:
    """Return an operator with a result of the given type."""
    return fold(Node(name, arguments, kind, attributes, OPERATORS[name].kind))


def constant(number: object, dtype: str) -> Constant:
    """Return a constant from a number, a list or an array."""
    return Constant(np.asarray(number).astype(dtype))


def elementwise(name: str, *values: Value | float) -> Value:
    """Return an elementwise operator on broadcast operands; numbers get the dtype of the first tensor."""
    dtype = next(tensor_type(value).dtype for value in values if isinstance(value, Value))
    if dtype.startswith("uint") and name in ("negative", "sign"):  # TVM computes both with a -1
        name, values = ("subtract", (0, *values)) if name == "negative" else ("minimum", (*values, 1))
    return fold(apply_operator(name, *(part if isinstance(part, Value) else constant(part, dtype) for part in values)))


def cast(value: Value, dtype: str) -> Value:
    """Return a value cast to another dtype."""
    kind = tensor_type(value)
    return value if kind.dtype == dtype else make_node("astype", (value,), TensorType(kind.shape, dtype), dtype=dtype)


def widen_to_float32(value: Value) -> Value:
    """Return a 16-bit float tensor cast to float32, in which sums are computed; others are returned unchanged."""
    return cast(value, "float32") if tensor_type(value).dtype in HALVES else value


def where(condition: Value, yes: Value, no: Value) -> Value:
    """Return elements of `yes` where the condition holds, else of `no`; all three are broadcast."""
    shape = np.broadcast_shapes(*(tensor_type(value).shape for value in (condition, yes, no)))
    return make_node("where", (condition, yes, no), TensorType(shape, tensor_type(yes).dtype))


def _wrap_axis(axis: int, rank: int) -> int:
    """Return a non-negative axis for an axis that may count from the end."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for a tensor of {rank} dimensions")
    return int(axis) % rank


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """Return a value in another shape, in which one size may be -1."""
    kind, sizes = tensor_type(value), [int(size) for size in shape]
    if -1 in sizes:
        sizes[sizes.index(-1)] = math.prod(kind.shape) // max(1, -math.prod(sizes))
    if min(sizes, default=0) < 0 or math.prod(sizes) != math.prod(kind.shape):
        raise ValueError(f"{kind} cannot be reshaped to {'x'.join(map(str, shape))}")
    return value if tuple(sizes) == kind.shape else fold(apply_operator("reshape", value, Shape(sizes)))


def permute(value: Value, axes: Sequence[int]) -> Value:
    """Return a value with its dimensions in another order."""
    rank = len(tensor_type(value).shape)
    order = tuple(_wrap_axis(axis, rank) for axis in axes)
    if sorted(order) != list(range(rank)):
        raise ValueError(f"{list(axes)} is not an order of {rank} dimensions")
    return value if order == tuple(range(rank)) else fold(apply_operator("permute_dims", value, axes=order))


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """Return a value broadcast to a shape."""
    kind = tensor_type(value)
    sizes = tuple(np.broadcast_shapes(kind.shape, tuple(map(int, shape))))
    if sizes == kind.shape:
        return value
    return make_node("broadcast_to", (value, Shape(sizes)), TensorType(sizes, kind.dtype))


def concat(values: Sequence[Value], axis: int) -> Value:
    """Return the concatenation of tensors of one dtype along an axis."""
    kinds = [tensor_type(value) for value in values]
    shape = list(kinds[0].shape)
    axis = _wrap_axis(axis, len(shape))
    for kind in kinds:
        if [*kind.shape[:axis], shape[axis], *kind.shape[axis + 1 :]] != shape:
            raise ValueError(f"{kinds[0]} and {kind} cannot be concatenated along axis {axis}")
    shape[axis] = sum(kind.shape[axis] for kind in kinds)
    full = tuple(
        value for value, kind in zip(values, kinds, strict=True) if math.prod(kind.shape) or isinstance(value, Input)
    )  # the initial content of a state may be empty
    if sum(tensor_type(value).shape[axis] for value in full) != shape[axis]:  # all are empty
        full = tuple(values)
    return (
        full[0] if len(full) == 1 else make_node("concat", (full,), TensorType(tuple(shape), kinds[0].dtype), axis=axis)
    )


def split(value: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    """Return the parts of a tensor along an axis, of the given sizes."""
    kind = tensor_type(value)
    axis = _wrap_axis(axis, len(kind.shape))
    if min(sizes) < 0:
        raise ValueError(f"cannot split into parts of {list(sizes)} elements")
    kinds = tuple(TensorType((*kind.shape[:axis], int(size), *kind.shape[axis + 1 :]), kind.dtype) for size in sizes)
    if len(kinds) == 1:
        return [value]
    ends = np.cumsum(sizes)
    if isinstance(value, Constant) or not all(math.prod(part.shape) for part in kinds):
        return [slice_axes(value, [axis], [end - size], [end]) for end, size in zip(ends, sizes, strict=True)]
    borders = tuple(int(end) for end in ends[:-1])
    parts = Node("split", (value,), kinds, {"indices_or_sections": borders, "axis": axis}, OPERATORS["split"].kind)
    return [select_result(parts, place) for place in range(len(kinds))]


def slice_axes(
    value: Value, axes: Sequence[int], begins: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None
) -> Value:
    """Return a slice of a tensor: along each axis the elements ``begin:end:step``, as in Python."""
    kind, shape, numbers = tensor_type(value), list(tensor_type(value).shape), []
    for axis, begin, end, step in zip(axes, begins, ends, steps or [1] * len(axes), strict=True):
        axis = _wrap_axis(axis, len(shape))
        positions = range(kind.shape[axis])[slice(int(begin), int(end), int(step))]
        if positions.step < 0 and len(positions):
            value = flip(slice_axes(value, [axis], [positions[-1]], [positions[0] + 1], [-positions.step]), axis)
            shape[axis] = len(positions)
        elif len(positions) != shape[axis]:
            shape[axis] = len(positions)
            end = min(positions.start + len(positions) * positions.step, kind.shape[axis])
            numbers.append((axis, positions.start, end, positions.step))
    if not numbers:
        return value
    words = tuple(tuple(Scalar(number, "int64") for number in column) for column in zip(*numbers, strict=True))
    return make_node("strided_slice", (value, *words), TensorType(tuple(shape), kind.dtype), assume_inbound=False)


def flip(value: Value, axis: int) -> Value:
    """Return a tensor with its elements along an axis in reverse order."""
    return make_node("flip", (value,), kind := tensor_type(value), axis=_wrap_axis(axis, len(kind.shape)))


def take_constant_slices(value: Value, indices: Array, axis: int) -> Value:
    """Return the slices of a tensor at constant, non-negative indices along an axis."""
    if indices.ndim == 1 and indices.size > 1 and np.all(np.diff(indices) == -1):
        return flip(slice_axes(value, [axis], [indices[-1]], [indices[0] + 1]), axis)
    return take_slices(value, constant(indices, "int64"), axis)


def take_slices(value: Value, indices: Value, axis: int) -> Value:
    """Return the slices of a tensor at indices along an axis; the indices are in range and not negative.

    A known index, or known indices at equal distances, become a slice, which passes can analyse.
    """
    kind, index_type = tensor_type(value), tensor_type(indices)
    axis, mode = _wrap_axis(axis, len(kind.shape)), "fast" if isinstance(indices, Constant) else "clip"
    if isinstance(indices, Constant) and indices.array.size:
        ends = int(indices.array.min()), int(indices.array.max())
        if ends[0] < 0 or ends[1] >= kind.shape[axis]:
            raise ValueError(f"indices {ends[0]} to {ends[1]} exceed axis {axis} of {kind.shape[axis]} elements")
        first, *more = indices.array.reshape(-1)[:2].tolist()
        step = more[0] - first if more else 1
        if step > 0 and np.array_equal(indices.array.reshape(-1), np.arange(first, ends[1] + 1, step)):
            part = slice_axes(value, [axis], [first], [ends[1] + 1], [step])
            return reshape(part, (*kind.shape[:axis], *index_type.shape, *kind.shape[axis + 1 :]))
    result = TensorType((*kind.shape[:axis], *index_type.shape, *kind.shape[axis + 1 :]), kind.dtype)
    return make_node("take", (value, indices), result, axis=axis, mode=mode)


def reduce_axes(name: str, value: Value, axes: Sequence[int] | None, *, keepdims: bool) -> Value:
    """Return the reduction "sum", "mean", "max", "min" or "prod" along axes, or along all of them if `axes` is None."""
    kind = tensor_type(value)
    rank = len(kind.shape)
    reduced_axes = tuple(range(rank)) if axes is None else tuple(sorted({_wrap_axis(axis, rank) for axis in axes}))
    if not reduced_axes:
        return value
    sizes = [1 if axis in reduced_axes else size for axis, size in enumerate(kind.shape)]
    shape = tuple(sizes if keepdims else (size for axis, size in enumerate(sizes) if axis not in reduced_axes))
    if math.prod(kind.shape) == 0:
        return broadcast(constant(_reduction_identity(name, kind.dtype), kind.dtype), shape)
    return make_node(name, (value,), TensorType(shape, kind.dtype), axis=reduced_axes, keepdims=keepdims)


def _reduction_identity(name: str, dtype: str) -> float:
    """Return the result of a reduction over no elements; for "max" and "min" it is the identity of the reduction."""
    if name not in ("max", "min"):
        return {"sum": 0.0, "prod": 1.0, "mean": np.nan}[name]
    is_max = name == "max"
    if not dtype.startswith(("int", "uint")):
        return -np.inf if is_max else np.inf
    return int(np.iinfo(dtype).min if is_max else np.iinfo(dtype).max)


def arg_extreme(name: str, value: Value, axis: int, *, keepdims: bool) -> Value:
    """Return the first index of the "argmax" or "argmin" along an axis, int64."""
    shape = list(tensor_type(value).shape)
    axis = _wrap_axis(axis, len(shape))
    if not shape[axis]:
        raise RefusedError(f"finds no element along axis {axis} of {tensor_type(value)}, expected at least one")
    shape[axis : axis + 1] = [1] if keepdims else []
    return make_node(name, (value,), TensorType(tuple(shape), "int64"), axis=axis, keepdims=keepdims)


def cumulative(name: str, value: Value, axis: int, *, exclusive: bool = False) -> Value:
    """Return the "cumsum" or "cumprod" along an axis."""
    kind = tensor_type(value)
    return make_node(
        name, (value,), kind, axis=_wrap_axis(axis, len(kind.shape)), dtype=kind.dtype, exclusive=exclusive
    )


def argsort(value: Value, axis: int, *, descending: bool) -> Value:
    """Return the indices that sort the elements along an axis, int64; equal elements stay in order."""
    kind = tensor_type(value)
    attrs = {"axis": _wrap_axis(axis, len(kind.shape)), "descending": descending, "dtype": "int64"}
    return make_node("argsort", (value,), TensorType(kind.shape, "int64"), **attrs)


def top_indices(value: Value, count: int, axis: int, *, largest: bool) -> Value:
    """Return the indices of the `count` largest or smallest elements along an axis, sorted, int64."""
    kind = tensor_type(value)
    axis = _wrap_axis(axis, len(kind.shape))
    if not 0 < count <= _MOST_TOP:
        return slice_axes(argsort(value, axis, descending=largest), [axis], [0], [count])
    shape = (*kind.shape[:axis], count, *kind.shape[axis + 1 :])
    attrs = {"k": count, "axis": axis, "ret_type": "indices", "largest": largest, "dtype": "int64"}
    return make_node("topk", (value,), TensorType(shape, "int64"), **attrs)


def histogram(value: Value, bins: int, first: Value, last: Value) -> Value:
    """Return how many elements lie in each of `bins` equal intervals between two numbers, in the elements' dtype."""
    dtype, x = tensor_type(value).dtype, reshape(value, (-1, 1))
    scaled = elementwise("multiply", elementwise("subtract", x, first), bins)
    bin_index = elementwise("floor", elementwise("divide", scaled, elementwise("subtract", last, first)))
    bin_index = where(elementwise("equal", x, last), constant(bins - 1, dtype), bin_index)
    hits = elementwise("equal", bin_index, constant(np.arange(bins), dtype))
    return reduce_axes("sum", cast(hits, dtype), [0], keepdims=False)


def scatter(data: Value, indices: Value, updates: Value, axis: int, reduction: str) -> Value:
    """Return data with updates at indices along an axis; `reduction`: "update", "add", "mul", "min" or "max"."""
    kind = tensor_type(data)
    return make_node(
        "scatter_elements", (data, indices, updates), kind, axis=axis % len(kind.shape), reduction=reduction
    )


def softmax(value: Value, axis: int, *, is_log: bool = False) -> Value:
    """Return the softmax along an axis, or its logarithm if `is_log`."""
    return make_node("nn.log_softmax" if is_log else "nn.softmax", (value,), tensor_type(value), axis=axis)


def layer_norm(data: Value, factor: Value, term: Value, axes: Sequence[int], epsilon: float) -> Value:
    """Return the layer norm over the last dimensions: mean 0 and variance 1, times a factor, plus a term."""
    sizes = tensor_type(data).shape[-len(axes) :]
    for operand in (factor, term):
        if tensor_type(operand).shape != sizes:
            raise ValueError(f"a layer norm of {tensor_type(data)} over {sizes} does not fit {tensor_type(operand)}")
    dtype = tensor_type(data).dtype
    if dtype not in ("float16", "float32"):  # TVM has layer norms of these dtypes only
        data_float32 = widen_to_float32(data)
        first = len(tensor_type(data).shape) - len(axes)
        normed = standardise(data_float32, range(first, first + len(axes)), epsilon)[0]
        for word, operand in (("multiply", factor), ("add", term)):
            normed = elementwise(word, normed, cast(operand, tensor_type(data_float32).dtype))
        return cast(normed, dtype)
    attrs = {"axes": tuple(axes), "epsilon": float(epsilon), "center": True, "scale": True}
    return make_node("nn.layer_norm", (data, factor, term), tensor_type(data), **attrs)


def standardise(value: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value]:
    """Return a value standardised along axes (mean 0, variance 1), and the reciprocal of its standard deviation."""
    centred = elementwise("subtract", value, reduce_axes("mean", value, axes, keepdims=True))
    variance = reduce_axes("mean", elementwise("multiply", centred, centred), axes, keepdims=True)
    deviation = elementwise("sqrt", elementwise("add", variance, epsilon))
    numerator = constant(1, tensor_type(value).dtype)
    return elementwise("divide", centred, deviation), elementwise("divide", numerator, deviation)


def standardise_last(value: Value, count: int, epsilon: float) -> Value:
    """Return a value with mean 0 and variance 1 over its last `count` dimensions."""
    kind = tensor_type(value)
    sizes = kind.shape[len(kind.shape) - count :]
    factor, term = (Constant(np.full(sizes, number, kind.dtype)) for number in (1, 0))
    return layer_norm(value, factor, term, range(-count, 0), epsilon)


def matmul(first: Value, second: Value) -> Value:
    """Return the product of matrices as NumPy's ``matmul``; both operands have the same dtype."""
    first_type, second_type = tensor_type(first), tensor_type(second)
    if (
        not first_type.shape
        or not second_type.shape
        or first_type.shape[-1] != second_type.shape[-2 if len(second_type.shape) > 1 else 0]
    ):
        raise ValueError(f"matrices {first_type} and {second_type} cannot be multiplied")
    left = first_type.shape if len(first_type.shape) > 1 else (1, *first_type.shape)
    right = second_type.shape if len(second_type.shape) > 1 else (*second_type.shape, 1)
    batch = np.broadcast_shapes(left[:-2], right[:-2])
    ends = (left[-2:-1] if len(first_type.shape) > 1 else ()) + (right[-1:] if len(second_type.shape) > 1 else ())
    return make_node("matmul", (first, second), TensorType((*batch, *ends), first_type.dtype), out_dtype=None)


def pad_tensor(value: Value, before: Sequence[int], after: Sequence[int], number: float = 0.0) -> Value:
    """Return a tensor padded with `number`: `before` and `after` elements in each dimension."""
    kind = tensor_type(value)
    if not any((*before, *after)):
        return value
    width = tuple(int(size) for pair in zip(before, after, strict=True) for size in pair)
    shape = tuple(int(b) + size + int(a) for b, size, a in zip(before, kind.shape, after, strict=True))
    return make_node(
        "nn.pad", (value,), TensorType(shape, kind.dtype), pad_width=width, pad_value=number, pad_mode="constant"
    )


def convolution(
    data: Value, weight: Value, *, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int
) -> Value:
    """Return a convolution of 1 to 3 dimensions, channels first; `padding` lists all starts, then all ends."""
    kind, taps = tensor_type(data), tensor_type(weight)
    rank = len(kind.shape) - 2
    sizes = pool_sizes(kind.shape[2:], taps.shape[2:], strides, padding, dilation)
    attrs = {
        "strides": tuple(map(int, strides)), "padding": tuple(map(int, padding)), "dilation": tuple(map(int, dilation)),
        "groups": int(groups), "data_layout": _ORDERS[rank], "kernel_layout": _KERNELS[rank],
        "out_layout": _ORDERS[rank], "out_dtype": None,
    }  # fmt: skip
    return make_node(
        f"nn.conv{rank}d", (data, weight), TensorType((kind.shape[0], taps.shape[0], *sizes), kind.dtype), **attrs
    )


def pool(
    reduction: str,
    value: Value,
    *,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Value:
    """Return a "max" or "avg" pool of 1 to 3 dimensions, channels first; `padding` is as in `convolution`."""
    data_type = tensor_type(value)
    rank = len(data_type.shape) - 2
    sizes = pool_sizes(data_type.shape[2:], window, strides, padding, dilation, ceil_mode=ceil_mode)
    return make_node(
        f"nn.{reduction}_pool{rank}d", (value,), TensorType((*data_type.shape[:2], *sizes), data_type.dtype),
        pool_size=tuple(map(int, window)), strides=tuple(map(int, strides)), dilation=tuple(map(int, dilation)),
        padding=tuple(map(int, padding)), ceil_mode=ceil_mode, count_include_pad=count_include_pad,
        layout=_ORDERS[rank], out_layout=_ORDERS[rank],
    )  # fmt: skip


def axis_indices(axis: int, rank: int, size: int) -> Value:
    """Return the indices 0, 1, ... along one dimension of a tensor of `rank` dimensions, int64."""
    return constant(
        np.arange(size).reshape([-1 if dimension == axis % rank else 1 for dimension in range(rank)]), "int64"
    )


def gather_rows(data: Value, indices: Sequence[Value]) -> Value:
    """Return the slices of a tensor at indices into its first dimensions.

    The indices into each dimension are int64 and in range. They are broadcast to the first dimensions of the result.
    """
    kind, count = tensor_type(data), len(indices)
    flat = reshape(data, (math.prod(kind.shape[:count]), *kind.shape[count:]))
    return take_slices(flat, flatten_indices(indices, kind.shape[:count]), 0)


def flatten_indices(indices: Sequence[Value], sizes: Sequence[int]) -> Value:
    """Return indices into several dimensions as indices into a flat tensor."""
    steps = [math.prod(sizes[number + 1 :]) for number in range(len(indices))]
    terms = [elementwise("multiply", i, step) if step != 1 else i for i, step in zip(indices, steps, strict=True)]
    return functools.reduce(lambda one, other: elementwise("add", one, other), terms)


def wrap_negative_indices(indices: Value, size: int) -> Value:
    """Return indices as int64, with those that count from the end turned into non-negative ones."""
    int64_indices = cast(indices, "int64")
    if tensor_type(indices).dtype.startswith("uint"):
        return int64_indices
    return where(elementwise("less", int64_indices, 0), elementwise("add", int64_indices, size), int64_indices)


def clamp_indices(indices: Value, size: int) -> Value:
    """Return non-negative indices clamped to the range of `size` elements, because kernels do not check indices.

    Raises
    ------
    RefusedError
        Indices are known and out of range.
    """
    indices = wrap_negative_indices(indices, size)
    if not isinstance(indices, Constant):
        return elementwise("minimum", elementwise("maximum", indices, 0), max(0, size - 1))
    if indices.array.size and not 0 <= indices.array.min() <= indices.array.max() < size:
        raise RefusedError(f"has indices from {indices.array.min()} to {indices.array.max()} of {size} elements")
    return indices


def gather(value: Value, indices: Value, axis: int) -> Value:
    """Return the elements at indices along an axis; the indices are in range and not negative, int64."""
    kind = TensorType(tensor_type(indices).shape, tensor_type(value).dtype)
    return make_node("gather_elements", (value, indices), kind, axis=_wrap_axis(axis, len(kind.shape)))
