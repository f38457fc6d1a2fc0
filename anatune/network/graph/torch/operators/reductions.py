"""Readers of reductions and operators based on them: sums, softmax, norms, cumulative sums, sorting, distances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    argsort,
    broadcast,
    cast,
    constant,
    cumulative,
    elementwise,
    gather,
    histogram,
    layer_norm,
    make_node,
    pad_tensor,
    reduce_axes,
    reshape,
    slice_axes,
    softmax,
    standardise_last,
    take_slices,
    top_indices,
    where,
    widen_to_float32,
)
from anatune.network.graph.nodes import TensorType, Value, tensor_type
from anatune.network.graph.operators import HISTOGRAM
from anatune.network.graph.torch.call import Convert, RefusedError, TorchCall, is_float, to_dtype
from anatune.network.graph.torch.operators.elements import raise_to

__all__ = ["READERS"]


def _reduced_axes(call: TorchCall) -> list[int] | None:
    """Return the dimensions to reduce; None: all."""
    return call.axes() if call.get("dim") is not None and call["dim"] != [] else None


def _read_reduction(word: str) -> Convert:
    """Return a reader of sums, means, products and extremes."""

    def read(call: TorchCall) -> Value:
        dtype, axes, keepdims = call.kind.dtype, _reduced_axes(call), bool(call.get("keepdim"))
        if dtype == "bool":  # extremes of booleans
            return cast(reduce_axes(word, cast(call["self"], "int8"), axes, keepdims=keepdims), "bool")
        return reduce_axes(word, call.operand("self"), axes, keepdims=keepdims)

    return read


def _any(call: TorchCall) -> Value:
    truths = cast(call.operand("self", "bool"), "uint8")
    return cast(reduce_axes("max", truths, _reduced_axes(call), keepdims=bool(call.get("keepdim"))), "bool")


def _all(call: TorchCall) -> Value:
    truths = cast(call.operand("self", "bool"), "uint8")
    return cast(reduce_axes("min", truths, _reduced_axes(call), keepdims=bool(call.get("keepdim"))), "bool")


def _read_arg(word: str) -> Convert:
    def read(call: TorchCall) -> Value:
        value = _make_comparable(call["self"])
        if call["dim"] is None:
            value = reshape(value, (-1,))
        if not tensor_type(value).shape:
            return constant(0, "int64")
        index = arg_extreme(word, value, call["dim"] or 0, keepdims=bool(call["keepdim"]))
        return reshape(index, call.kind.shape)

    return read


def _make_comparable(value: Value) -> Value:
    """Return a value with booleans as int8, which can be compared."""
    return cast(value, "int8") if tensor_type(value).dtype == "bool" else value


def _read_extreme(word: str) -> Convert:
    """Return a reader of the largest or smallest elements along a dimension, and their indices."""

    def read(call: TorchCall) -> Value | Sequence[Value]:
        if call.get("dim") is None:
            return _read_reduction(word)(call)  # type: ignore[return-value]
        if not call.shape():
            return [call["self"], constant(0, "int64")]
        value, axes, keepdims = _make_comparable(call["self"]), call.axes(), bool(call["keepdim"])
        result = to_dtype(reduce_axes(word, value, axes, keepdims=keepdims), call.kind.dtype)
        return [result, arg_extreme(f"arg{word}", value, axes[0], keepdims=keepdims)]

    return read


def _variance(value: Value, axes: Sequence[int], correction: float, *, keepdims: bool) -> tuple[Value, Value]:
    """Return variances and means; both keep the reduced dimensions if `keepdims`."""
    shape, dtype = tensor_type(value).shape, tensor_type(value).dtype
    mean = reduce_axes("mean", value, axes, keepdims=True)
    centred = elementwise("subtract", value, mean)
    variance = reduce_axes("mean", elementwise("multiply", centred, centred), axes, keepdims=keepdims)
    count = math.prod(shape[axis] for axis in axes)
    if correction:
        with np.errstate(divide="ignore"):
            factor = np.float64(count) / max(count - correction, 0)
        variance = elementwise("multiply", variance, constant(factor, dtype))
    return variance, mean if keepdims else reshape(mean, tensor_type(variance).shape)


def _var(call: TorchCall) -> Value | Sequence[Value]:
    """Return variances, or standard deviations: sums divided by the number of elements minus a correction."""
    correction = call.get("correction", 1)
    correction = 1 if correction is None else correction
    if "unbiased" in call.arguments:
        correction = int(call["unbiased"])
    is_root, dtype = call.name.startswith("std"), call.kind.dtype
    # As in PyTorch, squares are float64 if their root is taken: those of 1e20 and 1e-25 exceed the range of float32.
    value = cast(call["self"], "float64") if is_root else call["self"]
    result, mean = _variance(value, call.axes(), correction, keepdims=bool(call.get("keepdim")))
    result = cast(elementwise("sqrt", result), dtype) if is_root else result
    return [result, cast(mean, dtype)] if "mean" in call.name else result


def _softmax(call: TorchCall) -> Value:
    value = call.operand("self")
    if not call.shape():
        return constant(0.0 if "log" in call.name else 1.0, call.kind.dtype)
    return softmax(value, call["dim"] % len(call.shape()), is_log="log" in call.name)


def _logsumexp(call: TorchCall) -> Value:
    """Return the logarithm of the sum of exponentials, computed relative to the largest element."""
    value, axes = call.operand("self"), call.axes()
    largest = reduce_axes("max", value, axes, keepdims=True)
    finite = where(elementwise("isinf", largest), constant(0, call.kind.dtype), largest)
    total = reduce_axes("sum", elementwise("exp", elementwise("subtract", value, finite)), axes, keepdims=True)
    return reshape(elementwise("add", elementwise("log", total), finite), call.kind.shape)


def _read_cumulative(word: str) -> Convert:
    def read(call: TorchCall) -> Value:
        value = call.operand("self")
        return cumulative(word, value, call["dim"]) if call.shape() else value

    return read


def _logcumsumexp(call: TorchCall) -> Value:
    """Return cumulative logarithms of sums of exponentials: first of 2 elements each, then of 4, and so on.

    Unlike in `_logsumexp`, the largest element is not subtracted, because sums before it would become zero.
    """
    sums = call.operand("self")
    if not call.shape():
        return sums
    axis, shape = call["dim"] % len(call.shape()), call.shape()
    for step in itertools.takewhile(lambda size: size < shape[axis], (1 << power for power in itertools.count())):
        sizes = [step if dimension == axis else 0 for dimension in range(len(shape))]
        before = slice_axes(sums, [axis], [0], [shape[axis] - step])
        sums = _log_of_sum(sums, pad_tensor(before, sizes, [0] * len(shape), -math.inf))
    return sums


def _log_of_sum(first: Value, second: Value) -> Value:
    """Return ``log(exp(first) + exp(second))`` without overflow; equal infinities are handled separately."""
    is_same, zero = elementwise("equal", first, second), constant(0, tensor_type(first).dtype)
    difference = where(is_same, zero, elementwise("subtract", first, second))
    logarithm = elementwise("log1p", elementwise("exp", elementwise("negative", elementwise("abs", difference))))
    return elementwise("add", elementwise("maximum", first, second), logarithm)


# ---- sorts ----


def _sort(call: TorchCall) -> Sequence[Value]:
    if not call.shape():
        return [call["self"], constant(0, "int64")]
    axis = call["dim"] % len(call.shape())
    indices = argsort(_make_comparable(call["self"]), axis, descending=call["descending"])
    return [gather(call["self"], indices, axis), indices]


def _top_k(call: TorchCall) -> Sequence[Value]:
    if not call.shape():
        return [call["self"], constant(0, "int64")]
    axis = call["dim"] % len(call.shape())
    indices = top_indices(call["self"], call["k"], axis, largest=call["largest"])
    return [gather(call["self"], indices, axis), indices]


def _kth(call: TorchCall) -> Value | Sequence[Value]:
    """Return the k-th smallest element along a dimension, or the median, and its index."""
    value, dim = call["self"], call.get("dim")
    if dim is None:
        value, dim = reshape(value, (-1,)), 0
    if not tensor_type(value).shape:
        return [value, constant(0, "int64")]
    shape = tensor_type(value).shape
    axis, size = dim % len(shape), shape[dim]
    rank = call.get("k", (size + 1) // 2) - 1
    indices = slice_axes(argsort(_make_comparable(value), axis, descending=False), [axis], [rank], [rank + 1])
    if "k" not in call.arguments and is_float(tensor_type(value).dtype):  # with NaN the median is its first NaN
        first = arg_extreme("argmax", value, axis, keepdims=True)
        indices = where(elementwise("isnan", gather(value, first, axis)), first, indices)
    results = [reshape(result, call.kind.shape) for result in (gather(value, indices, axis), indices)]
    return results if len(call.kinds) > 1 else results[0]


def _bucketize(call: TorchCall) -> Value:
    """Return how many boundaries are below each element; there is one row of boundaries, or one for each row."""
    edges, values = call["boundaries" if "boundaries" in call.arguments else "sorted_sequence"], call["self"]
    if call.get("sorter") is not None:
        raise RefusedError("has a sorter for its boundaries, expected sorted boundaries")
    values = values if isinstance(values, Value) else constant(values, tensor_type(edges).dtype)
    right = bool(call["right"]) or call.get("side") == "right"
    *rows, count = tensor_type(edges).shape
    dtype = "float64" if is_float(tensor_type(edges).dtype) != is_float(tensor_type(values).dtype) else ""
    rank = len(tensor_type(values).shape)
    edges = reshape(edges, (*rows, 1, count)) if rows else reshape(edges, (*(1,) * rank, count))
    values = reshape(values, (*tensor_type(values).shape, 1))
    if dtype:
        edges, values = cast(edges, dtype), cast(values, dtype)
    below = elementwise("less_equal" if right else "less", edges, values)
    if is_float(tensor_type(values).dtype):  # all boundaries are below NaN
        below = elementwise("logical_or", below, elementwise("isnan", values))
    return reduce_axes("sum", cast(below, call.kind.dtype), [-1], keepdims=False)


def _histogram(call: TorchCall) -> Value:
    """Return how many elements lie in each of `bins` equal intervals between two numbers, or between the extremes."""
    x, bins, low, high = (call[name] for name in ("self", "bins", "min", "max"))
    kind = tensor_type(x)
    if low != high or low != 0:
        attributes = {"bins": bins, "low": low - (low == high), "high": high + (low == high)}
        return make_node(HISTOGRAM, (reshape(x, (-1,)),), TensorType((bins,), kind.dtype), **attributes)
    first, last = (reduce_axes(word, x, None, keepdims=False) for word in ("min", "max"))
    is_one = elementwise("equal", first, last)
    ends = (where(is_one, elementwise(word, end, 1), end) for word, end in (("subtract", first), ("add", last)))
    return histogram(x, bins, *ends)


# ---- norms ----


def _along_channels(value: Value, rank: int) -> Value:
    """Return a vector of channels in the shape in which it is broadcast along the second dimension."""
    return reshape(value, (-1, *(1,) * (rank - 2)))


def _apply_factors(normed: Value, call: TorchCall) -> Value:
    """Return a norm times the factors of its channels, plus their terms."""
    rank = len(tensor_type(normed).shape)
    for name, word in (("weight", "multiply"), ("bias", "add")):
        if call[name] is not None:
            normed = elementwise(word, normed, _along_channels(cast(call[name], tensor_type(normed).dtype), rank))
    return normed


def _standardise(value: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """Return data standardised along axes, its mean and its reciprocal standard deviation; reduced axes are kept."""
    variance, mean = _variance(value, axes, 0, keepdims=True)
    factor = elementwise("rsqrt", elementwise("add", variance, epsilon))
    return elementwise("multiply", elementwise("subtract", value, mean), factor), mean, factor


def _layer_norm(call: TorchCall) -> Sequence[Value | None]:
    """Return a layer norm along the last dimensions, and its means and factors if they are read."""
    data, sizes, dtype = call["input"], tuple(call["normalized_shape"]), call.kind.dtype
    factor, term = (
        broadcast(constant(number, dtype), sizes) if call[name] is None else cast(call[name], dtype)
        for name, number in (("weight", 1), ("bias", 0))
    )
    axes = range(-len(sizes), 0)
    results: list[Value | None] = [layer_norm(data, factor, term, axes, call["eps"]), None, None]
    if call.users > 1:
        wide = cast(data, call.kinds[1].dtype)
        results[1:] = _standardise(wide, [axis % len(call.kind.shape) for axis in axes], call["eps"])[1:]
    return results


def _rms_norm(call: TorchCall) -> Sequence[Value | None]:
    data, sizes, dtype = call["input"], call["normalized_shape"], call.kind.dtype
    axes = range(len(call.kind.shape) - len(sizes), len(call.kind.shape))
    epsilon = np.finfo(np.dtype(dtype)).eps if call["eps"] is None else call["eps"]
    square = reduce_axes("mean", elementwise("multiply", data, data), axes, keepdims=True)
    factor = elementwise("rsqrt", elementwise("add", square, float(epsilon)))
    normed = elementwise("multiply", data, factor)
    return [normed if call["weight"] is None else elementwise("multiply", normed, call["weight"]), factor]


def _group_norm(call: TorchCall) -> Sequence[Value | None]:
    kind, groups = call.kind, call["group"]
    batch, channels = call["N"], call["C"]
    rows = reshape(widen_to_float32(call["input"]), (batch, groups, -1))
    normed = standardise_last(rows, 1, call["eps"])
    normed = _apply_factors(reshape(normed, (batch, channels, *kind.shape[2:])), call)
    statistics: list[Value | None] = [None, None]
    if call.users > 1:
        _, *numbers = _standardise(rows, [2], call["eps"])
        statistics = [
            cast(reshape(number, (batch, groups)), own.dtype)
            for number, own in zip(numbers, call.kinds[1:], strict=True)
        ]
    return [cast(normed, kind.dtype), *statistics]


def _batch_norm(call: TorchCall) -> Sequence[Value | None]:
    """Return a batch norm with known statistics: a product and a sum along channels."""
    data, dtype, rank = call["input"], call.kind.dtype, max(len(call.kind.shape), 2)
    mean, variance = (cast(call[name], "float64") for name in ("running_mean", "running_var"))
    factor = elementwise("rsqrt", elementwise("add", variance, call["eps"]))
    if call["weight"] is not None:
        factor = elementwise("multiply", factor, cast(call["weight"], "float64"))
    shift = elementwise("negative", elementwise("multiply", mean, factor))
    if call["bias"] is not None:
        shift = elementwise("add", shift, cast(call["bias"], "float64"))
    scaled = elementwise("multiply", data, _along_channels(cast(factor, dtype), rank))
    return [elementwise("add", scaled, _along_channels(cast(shift, dtype), rank)), None, None]


def _instance_norm(call: TorchCall) -> Sequence[Value | None]:
    """Return a norm with the statistics of the batch, for instance norms; training changes buffers.

    PyTorch declares the statistics of 16-bit data as float32 or 16 bits, by device.
    """
    rank, value = len(call.kind.shape), widen_to_float32(call["input"])
    normed, *statistics = _standardise(value, [axis for axis in range(rank) if axis != 1], call["eps"])
    if call.kind.shape[0] == 1:
        normed = standardise_last(value, rank - 2, call["eps"])
    results = (_apply_factors(normed, call), *(reshape(number, (-1,)) for number in statistics))
    return [cast(result, kind.dtype) for result, kind in zip(results, call.kinds, strict=True)]


# ---- distances ----


def _norms(delta: Value, p: float, axes: Sequence[int]) -> Value:
    """Return the p-norms of differences along axes."""
    size = elementwise("abs", delta)
    if p == 0:
        return reduce_axes(
            "sum", cast(elementwise("not_equal", delta, 0), tensor_type(delta).dtype), axes, keepdims=False
        )
    sizes = tensor_type(delta).shape
    if abs(p) == math.inf or all(sizes[axis] == 1 for axis in axes):  # avoids squares that overflow
        return reduce_axes("max" if p > 0 else "min", size, axes, keepdims=False)
    return raise_to(reduce_axes("sum", raise_to(size, p), axes, keepdims=False), 1 / p)


def _distances(call: TorchCall) -> Value:
    """Return the p-norms of the differences of all pairs of rows."""
    first, second = call["x1"], call["x2"]
    rows, columns = tensor_type(first).shape, tensor_type(second).shape
    difference = elementwise(
        "subtract", reshape(first, (*rows[:-1], 1, rows[-1])), reshape(second, (*columns[:-2], 1, *columns[-2:]))
    )
    return _norms(difference, call["p"], [-1])


def _pair_distances(call: TorchCall) -> Value:
    parts = [
        take_slices(call["self"], constant(indices, "int64"), 0) for indices in np.triu_indices(call.shape()[0], 1)
    ]
    return _norms(elementwise("subtract", *parts), call["p"], [-1])


def _vector_norm(call: TorchCall) -> Value:
    norm = _norms(call.operand("self"), call["ord"], call.axes())
    return reshape(norm, call.kind.shape)


READERS: dict[str, Convert] = {
    "_batch_norm_no_update": _batch_norm,
    "_cdist_forward": _distances,
    "_fused_rms_norm": _rms_norm,
    "_log_softmax": _softmax,
    "_native_batch_norm_legit": _instance_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_pdist_forward": _pair_distances,
    "_softmax": _softmax,
    "all": _all,
    "amax": _read_reduction("max"),
    "amin": _read_reduction("min"),
    "any": _any,
    "argmax": _read_arg("argmax"),
    "argmin": _read_arg("argmin"),
    "bucketize": _bucketize,
    "cumprod": _read_cumulative("cumprod"),
    "cumsum": _read_cumulative("cumsum"),
    "histc": _histogram,
    "kthvalue": _kth,
    "linalg_vector_norm": _vector_norm,
    "logcumsumexp": _logcumsumexp,
    "logsumexp": _logsumexp,
    "max": _read_extreme("max"),
    "mean": _read_reduction("mean"),
    "median": _kth,
    "min": _read_extreme("min"),
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "prod": _read_reduction("prod"),
    "searchsorted": _bucketize,
    "sort": _sort,
    "std": _var,
    "std_mean": _var,
    "sum": _read_reduction("sum"),
    "topk": _top_k,
    "var": _var,
    "var_mean": _var,
}
"""Operator without its overload -> reader."""
