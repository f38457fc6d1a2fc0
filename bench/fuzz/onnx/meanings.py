"""ONNX operators that the reference evaluator lacks or computes wrongly, as functions of float64 arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.fuzz.program import Array

__all__ = ["MEANINGS"]

_EPSILON = float(np.float32(1e-5))
"""The default of norms; the standard's numbers are float32."""


def _erf(x: Array) -> Array:
    from scipy import special

    return special.erf(x)


def _gelu(x: Array) -> Array:
    from scipy import special

    return 0.5 * x * special.erfc(-x / np.sqrt(2.0))


def _tanh_gelu(x: Array) -> Array:
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * inner))


def _layer_norm(own: Mapping[str, Any], x: Array, factor: Array, term: Array | None = None) -> Array:
    away = x - x.mean(-1, keepdims=True)
    scaled = away / np.sqrt((away**2).mean(-1, keepdims=True) + own.get("epsilon", _EPSILON))
    return scaled * factor + (0 if term is None else term)


def _group_norm(own: Mapping[str, Any], x: Array, factor: Array, term: Array) -> Array:
    """Return a norm by groups of channels; old factors and terms are of groups."""
    rows = x.reshape(x.shape[0], own["num_groups"], -1)
    found = _layer_norm(own, rows, np.ones(1)).reshape(x.shape)
    factor, term = (np.repeat(one, x.shape[1] // len(one)).reshape(-1, *[1] * (x.ndim - 2)) for one in (factor, term))
    return found * factor + term


def _batch_norm(own: Mapping[str, Any], x: Array, *rest: Array) -> Array:
    factor, term, mean, variance = (one.reshape(-1, *[1] * (x.ndim - 2)) for one in rest)
    return (x - mean) / np.sqrt(variance + own.get("epsilon", _EPSILON)) * factor + term


def _rms_norm(own: Mapping[str, Any], x: Array, factor: Array) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + own.get("epsilon", _EPSILON)) * factor


def _skip_norm(own: Mapping[str, Any], x: Array, skip: Array, factor: Array, term: Array | None = None,
               bias: Array | None = None) -> tuple[Array, ...]:  # fmt: skip
    total = x + skip + (0 if bias is None else bias)
    return _layer_norm({"epsilon": own.get("epsilon", 1e-12)}, total, factor, term), None, None, total


def _skip_rms_norm(own: Mapping[str, Any], x: Array, skip: Array, factor: Array, bias: Array | None = None) -> Any:
    total = x + skip + (0 if bias is None else bias)
    return _rms_norm({"epsilon": own.get("epsilon", 1e-12)}, total, factor), None, None, total


def _fused_matmul(own: Mapping[str, Any], a: Array, b: Array) -> Array:
    a = np.swapaxes(a, -1, -2) if own.get("transA") else a
    b = np.swapaxes(b, -1, -2) if own.get("transB") else b
    return own.get("alpha", 1.0) * (a @ b)


def _saturated(x: Array, scale: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    return np.clip(np.round(x / scale) + zero.astype(np.float64), limits.min, limits.max).astype(zero.dtype)


def _quantised(own: Mapping[str, Any], x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Return integers of the tensor's one scale, cut off at the ends of their dtype."""
    return _saturated(x, scale, np.uint8(0) if zero is None else zero)


def _numbers(x: Array, scale: Array, zero: Array) -> Array:
    return (x.astype(np.float64) - zero.astype(np.float64)) * scale


def _quantised_pair(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    def run(own: Mapping[str, Any], a: Array, sa: Array, za: Array, b: Array, sb: Array, zb: Array, sc: Array,
            zc: Array) -> Array:  # fmt: skip
        return _saturated(function(_numbers(a, sa, za), _numbers(b, sb, zb)), sc, zc)

    return run


def _quantised_one(function: Callable[[Mapping[str, Any], Array], Array]) -> Callable[..., Array]:
    def run(own: Mapping[str, Any], a: Array, sa: Array, za: Array, sc: Array, zc: Array) -> Array:
        return _saturated(function(own, _numbers(a, sa, za)), sc, zc)

    return run


def _multi_head(own: Mapping[str, Any], q: Array, k: Array, v: Array) -> Array:
    heads = own["num_heads"]
    q, k, v = (one.reshape(*one.shape[:2], heads, -1).transpose(0, 2, 1, 3) for one in (q, k, v))
    scores = own.get("scale", 1 / np.sqrt(q.shape[-1])) * (q @ k.transpose(0, 1, 3, 2))
    if own.get("unidirectional"):
        rows, keys = scores.shape[-2:]
        scores = np.where(np.tri(rows, keys, 0, dtype=bool), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    found = (powers / powers.sum(-1, keepdims=True)) @ v
    return found.transpose(0, 2, 1, 3).reshape(found.shape[0], found.shape[2], -1)


def _log_softmax(own: Mapping[str, Any], x: Array) -> Array:
    away = x - x.max(own.get("axis", -1), keepdims=True)
    return away - np.log(np.exp(away).sum(own.get("axis", -1), keepdims=True))


def _lp_norm(own: Mapping[str, Any], x: Array) -> Array:
    axis = own.get("axis", -1)
    length = np.abs(x).sum(axis, keepdims=True) if own.get("p", 2) == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
    return np.where(length == 0, 0.0, x / length)


def _square_sum(own: Mapping[str, Any], x: Array, axes: Array | None = None) -> Array:
    named = own.get("axes", axes)
    if (named is None or not len(named)) and own.get("noop_with_empty_axes"):
        return x * x
    along = None if named is None or not len(named) else tuple(int(axis) for axis in named)
    return (x * x).sum(along, keepdims=bool(own.get("keepdims", 1)), dtype=x.dtype)


def _lrn(own: Mapping[str, Any], x: Array) -> Array:
    before = (own["size"] - 1) // 2
    squares = [
        (x[:, max(0, row - before) : row - before + own["size"]] ** 2).sum(1, keepdims=True)
        for row in range(x.shape[1])
    ]
    base = own.get("bias", 1.0) + own.get("alpha", float(np.float32(1e-4))) / own["size"] * np.concatenate(squares, 1)
    return x / base ** own.get("beta", 0.75)


def _global_lp_pool(own: Mapping[str, Any], x: Array) -> Array:
    power = own.get("p", 2)
    return (np.abs(x) ** power).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / power)


def _pool_sizes(own: Mapping[str, Any], sizes: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
    """Return (taps, step, dilation, padding before, outputs) of a pool along each dimension."""
    rank, found = len(sizes), []
    kernel, steps = own["kernel_shape"], own.get("strides", [1] * rank)
    dilation, pads = own.get("dilations", [1] * rank), own.get("pads", [0] * 2 * rank)
    auto = own.get("auto_pad", "NOTSET")
    for axis, size in enumerate(sizes):
        reach = (kernel[axis] - 1) * dilation[axis] + 1
        before, after = pads[axis], pads[rank + axis]
        if auto.startswith("SAME"):
            outputs = -(-size // steps[axis])
            whole = max(0, (outputs - 1) * steps[axis] + reach - size)
            before = whole // 2 if auto == "SAME_UPPER" else whole - whole // 2
        else:
            room = size + before + after - reach
            outputs = (-(-room // steps[axis]) if own.get("ceil_mode") else room // steps[axis]) + 1
            if own.get("ceil_mode") and (outputs - 1) * steps[axis] >= size + before:
                outputs -= 1
        found.append((kernel[axis], steps[axis], dilation[axis], before, outputs))
    return found


def _max_pool(own: Mapping[str, Any], x: Array) -> tuple[Array, Array]:
    """Return the first largest element of each window, and its place in the whole tensor."""
    dimensions = _pool_sizes(own, x.shape[2:])
    shape = (*x.shape[:2], *(one[4] for one in dimensions))
    best, place, is_set = np.zeros(shape, x.dtype), np.zeros(shape, "int64"), np.zeros(shape, bool)
    planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(dimensions)) * int(
        np.prod(x.shape[2:])
    )
    for taps in np.ndindex(*(one[0] for one in dimensions)):
        rows = [
            np.arange(count) * step + tap * dilation - before
            for tap, (_, step, dilation, before, count) in zip(taps, dimensions, strict=True)
        ]
        grid = np.meshgrid(*rows, indexing="ij")
        pairs = list(zip(grid, x.shape[2:], strict=True))
        is_inside = np.broadcast_to(np.logical_and.reduce([(row >= 0) & (row < size) for row, size in pairs]), shape)
        clipped = tuple(np.clip(row, 0, size - 1) for row, size in pairs)
        value = x[(slice(None), slice(None), *clipped)]
        flat = np.ravel_multi_index(clipped, x.shape[2:]) + planes
        wins = is_inside & (
            ~is_set | (value > best) | (np.isnan(value) & ~np.isnan(best) if x.dtype.kind == "f" else False)
        )
        best, place, is_set = np.where(wins, value, best), np.where(wins, flat, place), is_set | wins
    return best, place


def _max_unpool(own: Mapping[str, Any], x: Array, places: Array) -> Array:
    """Return zeros with elements at their places in the whole tensor."""
    sizes = [
        (size - 1) * step + taps
        for size, step, taps in zip(x.shape[2:], own["strides"], own["kernel_shape"], strict=True)
    ]
    found = np.zeros((*x.shape[:2], *sizes))
    found.reshape(-1)[places.reshape(-1)] = x.reshape(-1)
    return found


MEANINGS: dict[str, Callable[..., Any]] = {
    "GlobalMaxPool": lambda own, x: x.max(tuple(range(2, x.ndim)), keepdims=True),  # the reference: images of 2 sizes
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "Erf": lambda own, x: _erf(x),
    "BatchNormalization": _batch_norm,  # the reference takes opsets 9 to 13 for training
    "LRN": _lrn,  # the reference takes the number of batches for that of channels
    "QuantizeLinear": _quantised,  # the reference wraps around where quotients exceed int32
    "ReduceSumSquare": _square_sum,  # the reference sums int32 in int64
    "LogSoftmax": _log_softmax,  # the reference has the logarithm of a softmax of 0
    "LpNormalization": _lp_norm,  # the reference takes no magnitudes where p is 1
    "GlobalLpPool": _global_lp_pool,
    "Gelu": lambda own, x: (
        _tanh_gelu(x) if own.get("approximate") == "tanh" else _gelu(x)
    ),  # with a float32 root of 2 in the reference
    "GroupNormalization": _group_norm,  # the reference norms in float32
    "BiasGelu": lambda own, x, b: _gelu(x + b),
    "FastGelu": lambda own, x, b=None: _tanh_gelu(x if b is None else x + b),
    "QuickGelu": lambda own, x: x / (1 + np.exp(-own.get("alpha", 1.702) * x)),
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "SimplifiedLayerNormalization": _rms_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "QLinearAdd": _quantised_pair(lambda a, b: a + b),
    "QLinearMul": _quantised_pair(lambda a, b: a * b),
    "QLinearSigmoid": _quantised_one(lambda own, x: 1 / (1 + np.exp(-x))),
    "QLinearLeakyRelu": _quantised_one(lambda own, x: np.where(x < 0, own.get("alpha", 0.01) * x, x)),
    "MultiHeadAttention": _multi_head,
}
"""Operator that the reference evaluator lacks, or computes wrongly -> function of its attributes and operands."""
