"""Operators that reduce dimensions, or norm by what they reduce: sums, softmax, norms, running sums, sorts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    broadcast,
    cast,
    constant,
    cumulative,
    elementwise,
    gather,
    histogram,
    layer_norm,
    made,
    padded,
    reduced,
    reshape,
    sliced,
    softmax,
    sorted_places,
    standardise_last,
    taken,
    top_places,
    where,
)
from anatune.network.graph.nodes import TensorType, Value, tensor_type
from anatune.network.graph.operators import HISTOGRAM
from anatune.network.graph.torch.call import Call, Convert, RefusedError, converted, is_float
from anatune.network.graph.torch.operators.elements import power_of

__all__ = ["READERS"]


def _axes(call: Call) -> list[int] | None:
    """Return the dimensions that are reduced; None: all."""
    return call.axes() if call.get("dim") is not None and call["dim"] != [] else None


def _reduction(word: str) -> Convert:
    """Return what reads sums, means, products and extremes."""

    def read(call: Call) -> Value:
        dtype, axes, keepdims = call.kind.dtype, _axes(call), bool(call.get("keepdim"))
        if dtype == "bool":  # extremes of truth values
            return cast(reduced(word, cast(call["self"], "int8"), axes, keepdims=keepdims), "bool")
        return reduced(word, call.operand("self"), axes, keepdims=keepdims)

    return read


def _any(call: Call) -> Value:
    truths = cast(call.operand("self", "bool"), "uint8")
    return cast(reduced("max", truths, _axes(call), keepdims=bool(call.get("keepdim"))), "bool")


def _all(call: Call) -> Value:
    truths = cast(call.operand("self", "bool"), "uint8")
    return cast(reduced("min", truths, _axes(call), keepdims=bool(call.get("keepdim"))), "bool")


def _arg(word: str) -> Convert:
    def read(call: Call) -> Value:
        value = _ordered(call["self"])
        if call["dim"] is None:
            value = reshape(value, (-1,))
        if not tensor_type(value).shape:
            return constant(0, "int64")
        found = arg_extreme(word, value, call["dim"] or 0, keepdims=bool(call["keepdim"]))
        return reshape(found, call.kind.shape)

    return read


def _ordered(value: Value) -> Value:
    """Return a value that can be compared."""
    return cast(value, "int8") if tensor_type(value).dtype == "bool" else value


def _extreme(word: str) -> Convert:
    """Return what reads the largest or smallest elements along a dimension, and their places."""

    def read(call: Call) -> Value | Sequence[Value]:
        if call.get("dim") is None:
            return _reduction(word)(call)  # type: ignore[return-value]
        if not call.shape():
            return [call["self"], constant(0, "int64")]
        value, axes, keepdims = _ordered(call["self"]), call.axes(), bool(call["keepdim"])
        found = converted(reduced(word, value, axes, keepdims=keepdims), call.kind.dtype)
        return [found, arg_extreme(f"arg{word}", value, axes[0], keepdims=keepdims)]

    return read


def _variance(value: Value, axes: Sequence[int], correction: float, *, keepdims: bool) -> tuple[Value, Value]:
    """Return variances and means, both with the dimensions that are reduced where `keepdims`."""
    shape, dtype = tensor_type(value).shape, tensor_type(value).dtype
    mean = reduced("mean", value, axes, keepdims=True)
    away = elementwise("subtract", value, mean)
    found = reduced("mean", elementwise("multiply", away, away), axes, keepdims=keepdims)
    count = math.prod(shape[axis] for axis in axes)
    if correction:
        with np.errstate(divide="ignore"):
            factor = np.float64(count) / max(count - correction, 0)
        found = elementwise("multiply", found, constant(factor, dtype))
    return found, mean if keepdims else reshape(mean, tensor_type(found).shape)


def _var(call: Call) -> Value | Sequence[Value]:
    """Return variances: divided by the number of elements less a correction."""
    correction = call.get("correction", 1)
    correction = 1 if correction is None else correction
    if "unbiased" in call.arguments:
        correction = int(call["unbiased"])
    is_root, dtype = call.name.startswith("std"), call.kind.dtype
    # As in PyTorch, squares are float64 where their root is taken: in float32 those of 1e20 and 1e-25 leave the range.
    value = cast(call["self"], "float64") if is_root else call["self"]
    found, mean = _variance(value, call.axes(), correction, keepdims=bool(call.get("keepdim")))
    found = cast(elementwise("sqrt", found), dtype) if is_root else found
    return [found, cast(mean, dtype)] if "mean" in call.name else found


def _softmax(call: Call) -> Value:
    value = call.operand("self")
    if not call.shape():
        return constant(0.0 if "log" in call.name else 1.0, call.kind.dtype)
    return softmax(value, call["dim"] % len(call.shape()), is_log="log" in call.name)


def _logsumexp(call: Call) -> Value:
    """Return logarithms of sums of powers; the largest element is taken out first."""
    value, axes = call.operand("self"), call.axes()
    largest = reduced("max", value, axes, keepdims=True)
    finite = where(elementwise("isinf", largest), constant(0, call.kind.dtype), largest)
    total = reduced("sum", elementwise("exp", elementwise("subtract", value, finite)), axes, keepdims=True)
    return reshape(elementwise("add", elementwise("log", total), finite), call.kind.shape)


def _cumulative(word: str) -> Convert:
    def read(call: Call) -> Value:
        value = call.operand("self")
        return cumulative(word, value, call["dim"]) if call.shape() else value

    return read


def _logcumsumexp(call: Call) -> Value:
    """Return logarithms of running sums of powers: of two elements each, then of twice as many until it is all.

    No element is taken out of all sums: those before a large one would be zero.
    """
    sums = call.operand("self")
    if not call.shape():
        return sums
    axis, shape = call["dim"] % len(call.shape()), call.shape()
    for step in itertools.takewhile(lambda size: size < shape[axis], (1 << power for power in itertools.count())):
        sizes = [step if dimension == axis else 0 for dimension in range(len(shape))]
        before = sliced(sums, [axis], [0], [shape[axis] - step])
        sums = _log_of_sum(sums, padded(before, sizes, [0] * len(shape), -math.inf))
    return sums


def _log_of_sum(first: Value, second: Value) -> Value:
    """Return ``log(exp(first) + exp(second))`` without these powers; infinite ones have no difference."""
    is_same, zero = elementwise("equal", first, second), constant(0, tensor_type(first).dtype)
    away = where(is_same, zero, elementwise("subtract", first, second))
    rest = elementwise("log1p", elementwise("exp", elementwise("negative", elementwise("abs", away))))
    return elementwise("add", elementwise("maximum", first, second), rest)


# ---- sorts ----


def _sorted(call: Call) -> Sequence[Value]:
    if not call.shape():
        return [call["self"], constant(0, "int64")]
    axis = call["dim"] % len(call.shape())
    places = sorted_places(_ordered(call["self"]), axis, descending=call["descending"])
    return [gather(call["self"], places, axis), places]


def _top_k(call: Call) -> Sequence[Value]:
    if not call.shape():
        return [call["self"], constant(0, "int64")]
    axis = call["dim"] % len(call.shape())
    places = top_places(call["self"], call["k"], axis, largest=call["largest"])
    return [gather(call["self"], places, axis), places]


def _kth(call: Call) -> Value | Sequence[Value]:
    """Return the k-th smallest element along a dimension, or the one in the middle, and its place."""
    value, dim = call["self"], call.get("dim")
    if dim is None:
        value, dim = reshape(value, (-1,)), 0
    if not tensor_type(value).shape:
        return [value, constant(0, "int64")]
    shape = tensor_type(value).shape
    axis, size = dim % len(shape), shape[dim]
    place = call.get("k", (size + 1) // 2) - 1
    places = sliced(sorted_places(_ordered(value), axis, descending=False), [axis], [place], [place + 1])
    if "k" not in call.arguments and is_float(tensor_type(value).dtype):  # the first NaN is the median of its row
        first = arg_extreme("argmax", value, axis, keepdims=True)
        places = where(elementwise("isnan", gather(value, first, axis)), first, places)
    results = [reshape(one, call.kind.shape) for one in (gather(value, places, axis), places)]
    return results if len(call.kinds) > 1 else results[0]


def _bucketize(call: Call) -> Value:
    """Return how many boundaries lie below each element: of one row of boundaries, or of a row for each row."""
    edges, values = call["boundaries" if "boundaries" in call.arguments else "sorted_sequence"], call["self"]
    if call.get("sorter") is not None:
        raise RefusedError("takes the order of its boundaries, expected sorted ones")
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
    if is_float(tensor_type(values).dtype):  # all boundaries lie below a NaN
        below = elementwise("logical_or", below, elementwise("isnan", values))
    return reduced("sum", cast(below, call.kind.dtype), [-1], keepdims=False)


def _histogram(call: Call) -> Value:
    """Return how many elements lie in each of equal parts between two numbers, or the smallest and the largest."""
    x, bins, low, high = (call[name] for name in ("self", "bins", "min", "max"))
    kind = tensor_type(x)
    if low != high or low != 0:
        own = {"bins": bins, "low": low - (low == high), "high": high + (low == high)}
        return made(HISTOGRAM, (reshape(x, (-1,)),), TensorType((bins,), kind.dtype), **own)
    first, last = (reduced(word, x, None, keepdims=False) for word in ("min", "max"))
    is_one = elementwise("equal", first, last)
    ends = (where(is_one, elementwise(word, one, 1), one) for word, one in (("subtract", first), ("add", last)))
    return histogram(x, bins, *ends)


# ---- norms ----


def _along_channels(value: Value, rank: int) -> Value:
    """Return a vector of channels as a tensor that is broadcast along the second dimension."""
    return reshape(value, (-1, *(1,) * (rank - 2)))


def _with_factors(found: Value, call: Call) -> Value:
    """Return a norm times its factors, plus its terms, of the channels."""
    rank = len(tensor_type(found).shape)
    for name, word in (("weight", "multiply"), ("bias", "add")):
        if call[name] is not None:
            found = elementwise(word, found, _along_channels(cast(call[name], tensor_type(found).dtype), rank))
    return found


def _statistics(value: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """Return what is normed along axes, its means and what it is multiplied by; `axes` are kept as ones."""
    variance, mean = _variance(value, axes, 0, keepdims=True)
    factor = elementwise("rsqrt", elementwise("add", variance, epsilon))
    return elementwise("multiply", elementwise("subtract", value, mean), factor), mean, factor


def _layer_norm(call: Call) -> Sequence[Value | None]:
    """Return a norm along the last dimensions; its means and factors where they are read."""
    data, sizes, dtype = call["input"], tuple(call["normalized_shape"]), call.kind.dtype
    factor, term = (
        broadcast(constant(number, dtype), sizes) if call[name] is None else cast(call[name], dtype)
        for name, number in (("weight", 1), ("bias", 0))
    )
    axes = range(-len(sizes), 0)
    found: list[Value | None] = [layer_norm(data, factor, term, axes, call["eps"]), None, None]
    if call.users > 1:
        wide = cast(data, call.kinds[1].dtype)
        found[1:] = _statistics(wide, [axis % len(call.kind.shape) for axis in axes], call["eps"])[1:]
    return found


def _rms_norm(call: Call) -> Sequence[Value | None]:
    data, sizes, dtype = call["input"], call["normalized_shape"], call.kind.dtype
    axes = range(len(call.kind.shape) - len(sizes), len(call.kind.shape))
    epsilon = np.finfo(np.dtype(dtype)).eps if call["eps"] is None else call["eps"]
    square = reduced("mean", elementwise("multiply", data, data), axes, keepdims=True)
    factor = elementwise("rsqrt", elementwise("add", square, float(epsilon)))
    found = elementwise("multiply", data, factor)
    return [found if call["weight"] is None else elementwise("multiply", found, call["weight"]), factor]


def _group_norm(call: Call) -> Sequence[Value | None]:
    kind, groups = call.kind, call["group"]
    batch, channels = call["N"], call["C"]
    narrow = kind.dtype in ("float16", "bfloat16")
    value = cast(call["input"], "float32") if narrow else call["input"]
    rows = reshape(value, (batch, groups, -1))
    found = standardise_last(rows, 1, call["eps"])
    found = _with_factors(reshape(found, (batch, channels, *kind.shape[2:])), call)
    statistics: list[Value | None] = [None, None]
    if call.users > 1:
        _, *numbers = _statistics(rows, [2], call["eps"])
        statistics = [cast(reshape(one, (batch, groups)), kind.dtype) for one in numbers]
    return [cast(found, kind.dtype), *statistics]


def _batch_norm(call: Call) -> Sequence[Value | None]:
    """Return a batch norm of known statistics: a product and a sum along the channels."""
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


def _batch_norm_of_data(call: Call) -> Sequence[Value | None]:
    """Return a norm by the batch's own statistics, as instance norms are; those of training change buffers."""
    rank = len(call.kind.shape)
    found, mean, factor = _statistics(call["input"], [axis for axis in range(rank) if axis != 1], call["eps"])
    if call.kind.shape[0] == 1:
        found = standardise_last(call["input"], rank - 2, call["eps"])
    return [_with_factors(found, call), *(reshape(one, (-1,)) for one in (mean, factor))]


# ---- distances ----


def _lengths(away: Value, p: float, axes: Sequence[int]) -> Value:
    """Return the lengths of differences along axes."""
    size = elementwise("abs", away)
    if p == 0:
        return reduced("sum", cast(elementwise("not_equal", away, 0), tensor_type(away).dtype), axes, keepdims=False)
    sizes = tensor_type(away).shape
    if abs(p) == math.inf or all(sizes[axis] == 1 for axis in axes):  # the square of one number may leave the dtype
        return reduced("max" if p > 0 else "min", size, axes, keepdims=False)
    return power_of(reduced("sum", power_of(size, p), axes, keepdims=False), 1 / p)


def _distances(call: Call) -> Value:
    """Return the lengths of the differences of all pairs of rows."""
    one, other = call["x1"], call["x2"]
    rows, columns = tensor_type(one).shape, tensor_type(other).shape
    away = elementwise(
        "subtract",
        reshape(one, (*rows[:-1], 1, rows[-1])),
        reshape(other, (*columns[:-2], 1, *columns[-2:])),
    )
    return _lengths(away, call["p"], [-1])


def _pair_distances(call: Call) -> Value:
    parts = [taken(call["self"], constant(one, "int64"), 0) for one in np.triu_indices(call.shape()[0], 1)]
    return _lengths(elementwise("subtract", *parts), call["p"], [-1])


def _vector_norm(call: Call) -> Value:
    found = _lengths(call.operand("self"), call["ord"], call.axes())
    return reshape(found, call.kind.shape)


READERS: dict[str, Convert] = {
    "_batch_norm_no_update": _batch_norm,
    "_cdist_forward": _distances,
    "_fused_rms_norm": _rms_norm,
    "_log_softmax": _softmax,
    "_native_batch_norm_legit": _batch_norm_of_data,
    "_native_batch_norm_legit_no_training": _batch_norm,
    "_pdist_forward": _pair_distances,
    "_softmax": _softmax,
    "all": _all,
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "any": _any,
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "bucketize": _bucketize,
    "cumprod": _cumulative("cumprod"),
    "cumsum": _cumulative("cumsum"),
    "histc": _histogram,
    "kthvalue": _kth,
    "linalg_vector_norm": _vector_norm,
    "logcumsumexp": _logcumsumexp,
    "logsumexp": _logsumexp,
    "max": _extreme("max"),
    "mean": _reduction("mean"),
    "median": _kth,
    "min": _extreme("min"),
    "native_group_norm": _group_norm,
    "native_layer_norm": _layer_norm,
    "prod": _reduction("prod"),
    "searchsorted": _bucketize,
    "sort": _sorted,
    "std": _var,
    "std_mean": _var,
    "sum": _reduction("sum"),
    "topk": _top_k,
    "var": _var,
    "var_mean": _var,
}
"""Operator without its overload -> what reads it."""
