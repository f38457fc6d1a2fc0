"""Readers of reductions and operators based on them: sums, extremes, softmax, norms, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from anatune.network.graph.building import (
    arg_extreme,
    broadcast,
    cast,
    constant,
    cumulative,
    elementwise,
    gather,
    layer_norm,
    pad_tensor,
    reduce_axes,
    reshape,
    slice_axes,
    softmax,
    standardise,
    standardise_last,
    top_indices,
    where,
    widen_to_float32,
)
from anatune.network.graph.nodes import HALVES, Value, tensor_type
from anatune.network.graph.onnx.call import Convert, OnnxCall, RefusedError

__all__ = ["MICROSOFT", "READERS"]

_OF_FRACTIONS = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")

Reduce = Callable[[Value, Sequence[int] | None, bool], Value]


def _reduce_by(word: str) -> Reduce:
    return lambda value, axes, keepdims: reduce_axes(word, value, axes, keepdims=keepdims)


def _reduce_sum_of(word: str) -> Reduce:
    """Return a reduction that sums a function of the elements."""
    return lambda value, axes, keepdims: reduce_axes("sum", elementwise(word, value), axes, keepdims=keepdims)


def _compose(word: str, inner: Reduce) -> Reduce:
    return lambda value, axes, keepdims: elementwise(word, inner(value, axes, keepdims))


def _log_sum_exp(value: Value, axes: Sequence[int] | None, keepdims: bool) -> Value:
    """Return the logarithm of the sum of exponentials, computed relative to the largest element."""
    largest = reduce_axes("max", value, axes, keepdims=True)
    zero = broadcast(constant(0, tensor_type(value).dtype), tensor_type(largest).shape)
    finite = where(elementwise("isinf", largest), zero, largest)
    total = reduce_axes("sum", elementwise("exp", elementwise("subtract", value, finite)), axes, keepdims=True)
    result = elementwise("add", elementwise("log", total), finite)
    return result if keepdims else reshape(result, tensor_type(reduce_axes("max", value, axes, keepdims=False)).shape)


def _mean(value: Value, axes: Sequence[int] | None, keepdims: bool) -> Value:
    shape, rank = tensor_type(value).shape, len(tensor_type(value).shape)
    count = math.prod(shape if axes is None else (shape[axis] for axis in {axis % rank for axis in axes}))
    if count and not tensor_type(value).dtype.startswith(("int", "uint")):
        return reduce_axes("mean", value, axes, keepdims=keepdims)
    total = reduce_axes("sum", value, axes, keepdims=keepdims)
    return elementwise("divide", total, count) if count else total  # the mean of nothing is 0, as in onnxruntime


def _accumulation_dtype(op: str, dtype: str) -> str:
    """Return the dtype in which a reduction is computed: sums of 16-bit floats lose digits, roots need fractions."""
    if dtype in HALVES:
        return "float32"
    if dtype == "bool":
        return "uint8"
    return "float64" if op in _OF_FRACTIONS and dtype.startswith(("int", "uint")) else dtype


def _reduction(reduce: Reduce) -> Convert:
    def read(call: OnnxCall) -> Value:
        kind, keepdims = call.kind(), bool(call.attributes["keepdims"])
        keeps_all = call.attributes.get("noop_with_empty_axes")
        value, axes = cast(call[0], _accumulation_dtype(call.op, kind.dtype)), call.numbers("axes", 1)
        if not axes:
            if keeps_all:  # reduce each element by itself
                return cast(reduce(reshape(value, (1, *kind.shape)), [0], False), kind.dtype)
            axes = None
        if call.rank == 0:
            return cast(reduce(reshape(value, (1,)), [0], False), kind.dtype)
        return cast(reduce(value, axes, keepdims), kind.dtype)

    return read


def _arg(word: str) -> Convert:
    def read(call: OnnxCall) -> Value:
        axis, keepdims = call.attributes["axis"], bool(call.attributes["keepdims"])
        value = widen_to_float32(call[0])  # TVM cannot compare bfloat16
        if not call.attributes.get("select_last_index"):
            return arg_extreme(word, value, axis, keepdims=keepdims)
        last = call.kind().shape[axis] - 1
        mirrored = slice_axes(value, [axis], [last], [-last - 2], [-1])
        return elementwise("subtract", constant(last, "int64"), arg_extreme(word, mirrored, axis, keepdims=keepdims))

    return read


def _softmax_rows(call: OnnxCall) -> tuple[Value, tuple[int, ...], int]:
    """Return data, its shape, and the axis of a softmax; before version 13 later dimensions are flattened."""
    shape, axis = call.kind().shape, call.attributes["axis"] % max(call.rank, 1)
    if call.opset >= 13 or axis == call.rank - 1:
        return call[0], shape, axis
    return reshape(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:]))), shape, 1


def _softmax(call: OnnxCall) -> Value:
    value, shape, axis = _softmax_rows(call)
    if not shape:
        return constant(0.0 if call.op == "LogSoftmax" else 1.0, call.kind().dtype)
    dtype = call.kind().dtype
    if dtype in HALVES:  # round each step, as the body in the standard does
        shifted = elementwise("subtract", value, reduce_axes("max", value, [axis], keepdims=True))
        powers = cast(elementwise("exp", cast(shifted, "float32")), dtype)
        total = cast(reduce_axes("sum", cast(powers, "float32"), [axis], keepdims=True), dtype)
        if call.op == "LogSoftmax":
            return reshape(elementwise("subtract", shifted, elementwise("log", total)), shape)
        return reshape(elementwise("divide", powers, total), shape)
    return reshape(softmax(value, axis, is_log=call.op == "LogSoftmax"), shape)


def _hardmax(call: OnnxCall) -> Value:
    value, shape, axis = _softmax_rows(call)
    kind = tensor_type(value)
    largest = arg_extreme("argmax", value, axis, keepdims=True)
    numbers = np.arange(kind.shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(kind.shape))])
    return reshape(cast(elementwise("equal", largest, constant(numbers, "int64")), kind.dtype), shape)


def _cumsum(call: OnnxCall) -> Value:
    axis = int(call.constant_values(1, "the axis").reshape(()))
    size = call.kind().shape[axis]
    ordered = slice_axes(call[0], [axis], [size - 1], [-size - 1], [-1]) if call.attributes["reverse"] else call[0]
    word = "cumprod" if call.op == "CumProd" else "cumsum"
    sums = cumulative(word, ordered, axis, exclusive=bool(call.attributes["exclusive"]))
    return slice_axes(sums, [axis], [size - 1], [-size - 1], [-1]) if call.attributes["reverse"] else sums


def _top_k(call: OnnxCall) -> Sequence[Value]:
    kind, axis = call.kind(), call.attributes["axis"] % call.rank
    count = call.attributes.get("k")
    count = int(call.constant_values(1, "how many").reshape(())) if count is None else int(count)
    if not 0 <= count <= kind.shape[axis]:
        raise RefusedError(f"selects {count} of {kind.shape[axis]} elements, expected at most {kind.shape[axis]}")
    keys = call[0]
    if kind.dtype == "uint64":  # TVM cannot sort uint64: map it to signed integers in the same order
        keys = cast(elementwise("bitwise_xor", keys, constant(1 << 63, "uint64")), "int64")
    indices = top_indices(keys, count, axis, largest=bool(call.attributes.get("largest", 1)))
    return [gather(call[0], indices, axis), indices]


# ---- norms ----


def _along_channels(value: Value, rank: int) -> Value:
    """Return a vector of channels in the shape in which it is broadcast along the second dimension."""
    return reshape(value, (-1, *(1,) * (rank - 2)))


def _batch_norm(call: OnnxCall) -> Sequence[Value]:
    """Return a batch norm as a product and a sum; in training mode with statistics of the batch."""
    dtype, rank = call.kind().dtype, max(call.rank, 2)
    sizes = call.kind().shape[1:] or (1,)
    for index in range(1, 5):  # one number per channel or, without the old attribute `spatial`, per element
        if call.kind(index).shape not in (sizes[:1], sizes):
            raise RefusedError(f"has {call.kind(index)} as input {index}, expected one for each of {sizes[0]} channels")
    gamma, beta, mean, variance = (cast(call[place], "float64") for place in range(1, 5))
    running: list[Value] = []
    if call.attributes.get("training_mode"):
        axes, data = [place for place in range(call.rank) if place != 1], cast(call[0], "float64")
        before = mean, variance
        mean = reduce_axes("mean", data, axes, keepdims=False)
        centred = elementwise("subtract", data, _along_channels(mean, rank))
        variance = reduce_axes("mean", elementwise("multiply", centred, centred), axes, keepdims=False)
        kept = call.attributes["momentum"]
        for old, new, index in zip(before, (mean, variance), (3, 4), strict=True):
            total = elementwise("add", elementwise("multiply", old, kept), elementwise("multiply", new, 1 - kept))
            running.append(cast(total, call.kind(index).dtype))
    deviation = elementwise("sqrt", elementwise("add", variance, call.attributes["epsilon"]))
    factor = elementwise("divide", gamma, deviation)
    shift = elementwise("subtract", beta, elementwise("multiply", mean, factor))
    factor, shift = (
        cast(v if tensor_type(v).shape == sizes else _along_channels(v, rank), dtype) for v in (factor, shift)
    )
    return [elementwise("add", elementwise("multiply", call[0], factor), shift), *running]


def _instance_norm(call: OnnxCall) -> Value:
    normed = standardise_last(widen_to_float32(call[0]), call.rank - 2, call.attributes["epsilon"])
    factor, term = (_along_channels(widen_to_float32(call[place]), call.rank) for place in (1, 2))
    return cast(elementwise("add", elementwise("multiply", normed, factor), term), call.kind().dtype)


def _group_norm(call: OnnxCall) -> Value:
    """Return a group norm; factors and terms belong to groups before version 21, then to channels."""
    kind, groups = call.kind(), call.attributes["num_groups"]
    batch, channels = kind.shape[:2]
    value = widen_to_float32(call[0])
    normed = standardise_last(reshape(value, (batch, groups, -1)), 1, call.attributes["epsilon"])
    steps = [cast(call[place], tensor_type(value).dtype) for place in (1, 2)]
    if tensor_type(steps[0]).shape[0] == groups != channels:
        steps = [reshape(broadcast(reshape(v, (groups, 1)), (groups, channels // groups)), (channels,)) for v in steps]
    normed = elementwise("multiply", reshape(normed, kind.shape), _along_channels(steps[0], call.rank))
    return cast(elementwise("add", normed, _along_channels(steps[1], call.rank)), kind.dtype)


def _layer_norm(call: OnnxCall) -> Sequence[Value]:
    kind, axis, epsilon = call.kind(), call.attributes["axis"] % call.rank, call.attributes["epsilon"]
    axes, sizes = range(axis, call.rank), call.kind().shape[axis:]
    value = widen_to_float32(call[0])
    dtype = tensor_type(value).dtype
    factor = broadcast(cast(call[1], dtype), sizes)
    term = broadcast(cast(call[2], dtype) if call.get(2) is not None else constant(0, dtype), sizes)
    if tensor_type(factor).shape == tensor_type(term).shape == sizes:
        normed = layer_norm(value, factor, term, [place - call.rank for place in axes], epsilon)
    else:  # factors or terms vary along other dimensions as well
        normed = standardise(value, axes, epsilon)[0]
        normed = elementwise("add", elementwise("multiply", normed, factor), term)
    if tensor_type(normed).shape != kind.shape:
        raise RefusedError(f"has factors {call.kind(1)} for data {kind}, expected them to be broadcast to it")
    results: list[Value] = [cast(normed, kind.dtype)]
    if len(call.outputs) > 1:
        results += [reduce_axes("mean", value, axes, keepdims=True), standardise(value, axes, epsilon)[1]]
    return results[: len(call.outputs)]


def _skip_layer_norm(call: OnnxCall) -> Sequence[Value]:
    """Return the layer norm of a sum, and the sum as fourth result; operands: input, skip, gamma, beta, bias."""
    total = elementwise("add", call[0], call[1])
    simplified = call.op.startswith("SkipSimplified")
    bias = call.get(3 if simplified else 4)
    total = total if bias is None else elementwise("add", total, bias)
    dtype, epsilon = call.kind().dtype, call.attributes["epsilon"]
    if simplified:
        normed = _rms_normalise(total, call[2], [call.rank - 1], epsilon)
    else:
        term = call.get(3)
        zero = broadcast(constant(0, dtype), tensor_type(call[2]).shape)
        normed = layer_norm(total, call[2], zero if term is None else term, [-1], epsilon)
    wide, nothing = widen_to_float32(total), constant(np.zeros(0), "float32")
    mean = nothing if simplified else reduce_axes("mean", wide, [call.rank - 1], keepdims=True)
    deviation = nothing if simplified else standardise(wide, [call.rank - 1], epsilon)[1]
    return [normed, mean, deviation, total][: max(1, len(call.outputs))]


def _rms_normalise(value: Value, factor: Value, axes: Sequence[int], epsilon: float) -> Value:
    wide = widen_to_float32(value)
    mean = reduce_axes("mean", elementwise("multiply", wide, wide), axes, keepdims=True)
    scaled = elementwise("divide", wide, elementwise("sqrt", elementwise("add", mean, epsilon)))
    return elementwise("multiply", cast(scaled, tensor_type(factor).dtype), factor)


def _rms_norm(call: OnnxCall) -> Value:
    axis = call.attributes.get("axis", -1) % call.rank
    return _rms_normalise(call[0], call[1], range(axis, call.rank), call.attributes.get("epsilon", 1e-5))


def _mean_variance_norm(call: OnnxCall) -> Value:
    value, axes = widen_to_float32(call[0]), call.attributes["axes"]
    centred = elementwise("subtract", value, reduce_axes("mean", value, axes, keepdims=True))
    variance = reduce_axes("mean", elementwise("multiply", centred, centred), axes, keepdims=True)
    normed = elementwise("divide", centred, elementwise("add", elementwise("sqrt", variance), 1e-9))
    return cast(normed, call.kind().dtype)


def _lp_norm(call: OnnxCall) -> Value:
    axes, x = [call.attributes["axis"]], widen_to_float32(call[0])
    if call.attributes["p"] == 1:
        length = reduce_axes("sum", elementwise("abs", x), axes, keepdims=True)
    else:
        length = elementwise("sqrt", reduce_axes("sum", elementwise("multiply", x, x), axes, keepdims=True))
    zero = constant(0, tensor_type(x).dtype)
    return cast(where(elementwise("equal", length, 0), zero, elementwise("divide", x, length)), call.kind().dtype)


def _lrn(call: OnnxCall) -> Value:
    """Return a norm by the squares of neighbouring channels, computed as sums of slices of a padded tensor."""
    x, size, attrs = widen_to_float32(call[0]), call.attributes["size"], call.attributes
    channels = call.kind().shape[1]
    before, after = (min(max(channels - 1, 0), count) for count in ((size - 1) // 2, size - 1 - (size - 1) // 2))
    padding = [[0, count, *[0] * (call.rank - 2)] for count in (before, after)]
    squares = pad_tensor(elementwise("multiply", x, x), padding[0], padding[1])
    total = slice_axes(squares, [1], [0], [channels])
    for offset in range(1, before + after + 1):
        total = elementwise("add", total, slice_axes(squares, [1], [offset], [offset + channels]))
    base = elementwise("add", elementwise("multiply", total, attrs["alpha"] / size), attrs["bias"])
    return cast(elementwise("divide", x, elementwise("power", base, attrs["beta"])), call.kind().dtype)


READERS: dict[str, Convert] = {
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "BatchNormalization": _batch_norm,
    "CumProd": _cumsum,
    "CumSum": _cumsum,
    "GroupNormalization": _group_norm,
    "Hardmax": _hardmax,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
    "ReduceL1": _reduction(_reduce_sum_of("abs")),
    "ReduceL2": _reduction(_compose("sqrt", _reduce_sum_of("square"))),
    "ReduceLogSum": _reduction(_compose("log", _reduce_by("sum"))),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ReduceMax": _reduction(_reduce_by("max")),
    "ReduceMean": _reduction(_mean),
    "ReduceMin": _reduction(_reduce_by("min")),
    "ReduceProd": _reduction(_reduce_by("prod")),
    "ReduceSum": _reduction(_reduce_by("sum")),
    "ReduceSumSquare": _reduction(_reduce_sum_of("square")),
    "SimplifiedLayerNormalization": _rms_norm,
    "Softmax": _softmax,
    "TopK": _top_k,
}
MICROSOFT: dict[str, Convert] = {
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm,
}
