"""Float64 results and random operands of workloads that are more than one statement (`core.workload.kernels`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from anatune.core.workload.kernels import EPSILON, LARGEST
from anatune.core.workload.nest import Workload
from anatune.core.workload.routing import parse_routing
from anatune.core.workload.scaling import E2M1, SCALED_FORMATS, SIDE

_LOWEST, _LEAST = -1e300, 1e-300
"""The score of a masked key, and the smallest divisor of a softmax."""
Values = NDArray[np.float64]
Drawn = NDArray[np.generic]


def _softmax(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Return the softmax over the last dimension of the first operand."""
    values = operands[workload.reads[0].tensor]
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _layer_norm(workload: Workload, operands: Mapping[str, Values]) -> Values:
    centred = operands["data"] - operands["data"].mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + EPSILON)
    return np.asarray(centred / scale * operands["weight"] + operands["bias"])


def _add_residual(workload: Workload, operands: Mapping[str, Values]) -> Values:
    return operands["data"] + operands.get("residual", 0.0)


def _rms_norm(workload: Workload, operands: Mapping[str, Values]) -> Values:
    values = _add_residual(workload, operands)
    scale = np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + EPSILON)
    return np.asarray(values / scale * operands["weight"])


def _silu(values: Values) -> Values:
    with np.errstate(over="ignore"):  # exp(-x) overflows where the result is 0
        return np.asarray(values / (1.0 + np.exp(-values)))


def _silu_multiply(workload: Workload, operands: Mapping[str, Values]) -> Values:
    gate, up = operands["data"][:, 0], operands["data"][:, 1]
    return _silu(gate) * up


def _rotary(workload: Workload, operands: Mapping[str, Values]) -> Values:
    first, second = np.split(operands["data"], 2, axis=-1)
    cos, sin = (operands[name][:, None, :] for name in ("cos", "sin"))
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _round_result(workload: Workload, values: Values) -> Values:
    """Return values rounded to the result's dtype, saturated; 8-bit floats are rounded when they are compared."""
    dtype = workload.write.dtype
    values = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
    return np.rint(values) if dtype == "int8" else values


def _scales(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Return the factor of each run of columns."""
    (scales,) = workload.further
    largest = np.abs(operands["data"]).reshape(*scales.shape, -1).max(axis=-1)
    return np.asarray(np.maximum(largest, 1e-10) / LARGEST[workload.write.dtype])


def _quantise_rows(workload: Workload, operands: Mapping[str, Values]) -> Values:
    data, scales = operands["data"], _scales(workload, operands)
    return _round_result(workload, (data.reshape(*scales.shape, -1) / scales[..., None]).reshape(data.shape))


def _quantise_tensor(workload: Workload, operands: Mapping[str, Values]) -> Values:
    return _round_result(workload, operands["data"] / operands["scale"])


def _any_scale(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return a factor with which some results saturate."""
    return np.asarray([rng.uniform(0.3, 0.6) / LARGEST[workload.write.dtype]], np.float32)


def _attention(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Return attention: the softmax of scaled products of queries and keys, times values."""
    attributes = workload.attribute
    heads, kv_heads, seq_q, seq_kv, window = (
        int(str(attributes[name])) for name in ("heads", "kv_heads", "seq_q", "seq_kv", "window")
    )
    if strides := attributes.get("strides"):
        assert isinstance(strides, tuple)
        batch, dim, page, pool = (int(str(attributes[name])) for name in ("batch", "head_dim", "page_size", "pool"))
        cache = (pool, kv_heads, page) if page else (batch, kv_heads, seq_kv)
        tokens = {"queries": (batch, heads, seq_q), "keys": cache, "values": cache}
        operands = dict(operands) | {
            name: as_strided(operands[name], (*size, dim), [8 * step for step in (*place, 1)])  # type: ignore[misc]
            for (name, size), place in zip(tokens.items(), strides, strict=True)
        }
    queries, shared = operands["queries"], heads // kv_heads
    if "held" in operands:
        seq_kv = int(operands["held"][0]) + seq_q
    result, most = np.empty(queries.shape), seq_kv
    for batch in range(queries.shape[0]):
        count = int(operands["lengths"][batch]) if "lengths" in operands else most
        seq_kv = min(count, most)
        keys, last = np.arange(seq_kv), np.arange(seq_q)[:, None] + (count - seq_q)
        hidden = (keys > last) | ((keys <= last - window) if window else False) if attributes["causal"] else None
        for group in range(kv_heads):
            key, value = (_cached_operand(operands, name, batch, group, seq_kv) for name in ("keys", "values"))
            for head in range(group * shared, (group + 1) * shared):
                scores = queries[batch, head] @ key.T / np.sqrt(queries.shape[-1])
                if hidden is not None:
                    scores[hidden] = -np.inf
                powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=_LOWEST))
                result[batch, head] = powers @ value / np.maximum(powers.sum(axis=-1, keepdims=True), _LEAST)
    return result.transpose(0, 2, 1, 3).reshape(workload.write.shape) if strides else result


def _cached_operand(operands: Mapping[str, Values], name: str, batch: int, group: int, seq_kv: int) -> Values:
    """Return the keys or values of a head in order, (seq_kv, head_dim), also of a paged cache."""
    if "block_table" not in operands:
        return np.asarray(operands[name][batch, group, :seq_kv])
    pages = operands[name][operands["block_table"][batch].astype(np.int64), group]
    return np.asarray(pages.reshape(-1, pages.shape[-1])[:seq_kv])


def _pages(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return the pages of all sequences in any order."""
    table = workload.tensor("block_table")
    pool = int(str(workload.attribute.get("pool", table.num_elements)))
    return np.asarray(rng.permutation(pool)[: table.num_elements].reshape(table.shape))


def _draw_cached_keys(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return the random number of keys before those of the query tokens."""
    attributes = workload.attribute
    return rng.integers(0, int(str(attributes["seq_kv"])) - int(str(attributes["seq_q"])), 1, endpoint=True)


def _lengths(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return the random number of keys of each sequence, which may be 0."""
    return rng.integers(0, int(str(workload.attribute["seq_kv"])), workload.extents["b"], endpoint=True)


def _unpack(stored: Values, means: Values) -> Values:
    """Return the values of 4-bit numbers that are packed in bytes, the even ones in the low bits."""
    numbers = stored.astype(np.uint8)
    return np.asarray(means[np.stack([numbers & 15, numbers >> 4], axis=-1)].reshape(*stored.shape[:-1], -1))


def _along(scales: Values, shape: tuple[int, ...], sides: tuple[int, ...]) -> Values:
    """Return scales repeated to the shape of the operands; each belongs to a block along the last dimensions."""
    for axis, side in zip(range(-len(sides), 0), sides, strict=True):
        scales = np.repeat(scales, side, axis=axis)
    kept = tuple(slice(size) for size in shape)
    return np.asarray(scales[kept])


def _scaled_operands(workload: Workload, operands: Mapping[str, Values]) -> tuple[Values, Values]:
    """Return data (rows, k) and weights (columns, k) as the product uses them, of one expert if there are several."""
    attributes = workload.attribute
    number_format, k = SCALED_FORMATS[str(attributes["dtype"]).partition(":")[0]], int(str(attributes["k"]))
    data, weight = operands["data"], operands["weight"]
    if not number_format.scale:
        return data, weight
    scales = operands["weight_scales"]
    if number_format.run:
        signed = np.array([*E2M1, *(-value for value in E2M1)])
        data, weight = (
            _unpack(values, signed) if number_format.data_bits == 4 else values for values in (data, weight)
        )
        mean = [np.exp2(s - 127.0) if number_format.scale == "uint8" else s for s in (operands["data_scales"], scales)]
        runs = [_along(s, values.shape, (number_format.run,)) for s, values in zip(mean, (data, weight), strict=True)]
        return data * runs[0], weight * runs[1] * operands.get("factor", 1.0)
    if number_format.converts:
        run = int(str(attributes["group"])) or k
        if number_format.weight_bits == 4:
            weight = _unpack(weight, np.arange(16.0))
            zeros = operands.get("weight_zeros")
            weight = weight - (8.0 if zeros is None else _along(zeros, weight.shape, (run,)))
        elif "weight_zeros" in operands:
            weight = weight - _along(operands["weight_zeros"], weight.shape, (run,))
        return data, weight * _along(scales, weight.shape, (run,))
    if attributes["scales"] == "blocks":
        data = data * _along(operands["data_scales"], data.shape, (SIDE,))
        return data, weight * _along(scales, weight.shape, (SIDE, SIDE))
    if attributes["scales"] == "rows":
        return data * operands["data_scales"][:, None], weight * scales[:, None]
    return data * operands["data_scales"], weight * scales


def _scaled_matmul(workload: Workload, operands: Mapping[str, Values]) -> Values:
    data, weight = _scaled_operands(workload, operands)
    return np.asarray(data @ weight.T)


def _grouped_matmul(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Return each row times its expert's weights; with an activation, silu of the first half times the second."""
    attributes = workload.attribute
    order, result, first = operands["order"].astype(np.int64), np.empty(workload.write.shape), 0
    of_experts = [name for name in operands if name.startswith("weight") or name == "factor"]
    by_row = attributes["scales"] != "tensor" or operands.get("data_scales", np.ones(1)).ndim > 1
    of_rows = ["data", *["data_scales"] * by_row]
    for expert, end in enumerate(operands["ends"].astype(np.int64)):
        rows = order[first:end]
        if not len(rows):
            continue
        read = rows if attributes["expanded"] else rows // int(str(attributes["top_k"]))
        mine = {name: np.asarray(operands[name][expert], np.float64) for name in of_experts}
        mine |= {name: operands[name][read] for name in of_rows}
        data, weight = _scaled_operands(workload, {**operands, **mine})
        sums = data @ weight.T
        if attributes["activation"]:
            gate, up = np.split(sums, 2, axis=1)
            sums = _silu(gate) * up
        result[rows], first = sums, end
    return result


def _any_order(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return all rows in random order."""
    return np.asarray(rng.permutation(workload.extents["i"]))


def _ends(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return the ends of the experts' rows for the routing of the workload."""
    tokens, experts, top_k = (int(str(workload.attribute[name])) for name in ("tokens", "experts", "top_k"))
    spread = workload.attribute["routing"]
    if spread == "uniform":
        chosen = rng.random((tokens, experts)).argpartition(top_k - 1, axis=1)[:, :top_k]
        counts = np.bincount(chosen.reshape(-1), minlength=experts)
    elif isinstance(spread, str):
        routing = parse_routing(spread, tokens, experts, top_k)
        counts = np.repeat(routing.rows, routing.experts.astype(np.int64)).astype(np.int64)
        counts = rng.permutation(np.pad(counts, (0, experts - len(counts))))
    else:
        counts = np.array(spread)
    return np.asarray(np.cumsum(counts))


_TYPICAL = {"int8": 74.0, "uint8": 4.6}
"""Root mean square of random operands; floats are uniform in [-0.5, 0.5)."""


def _any_byte(workload: Workload, rng: np.random.Generator, tensor: str) -> Drawn:
    """Return random zero points, powers of two up to 1, or positive factors for results of about 1."""
    access = workload.tensor(tensor)
    if tensor == "weight_zeros":
        return rng.integers(*((0, 16) if access.dtype == "uint8" else (-20, 21)), access.shape)
    if access.dtype == "uint8":
        return rng.integers(123, 128, access.shape)
    factors = np.asarray(rng.uniform(0.5, 1.5, access.shape))
    if access.dtype == "float8_e4m3fn":
        return factors
    scaled = workload.tensor("data" if tensor == "data_scales" else "weight")
    typical = _TYPICAL.get(scaled.dtype, 0.29) * (1.0 if tensor == "data_scales" else workload.extents["k"] ** 0.5)
    return factors / typical


KERNEL_REFERENCES: dict[str, Callable[[Workload, Mapping[str, Values]], Values]] = {
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "add_rms_norm": _rms_norm,
    "silu_multiply": _silu_multiply,
    "rotary": _rotary,
    "quantise_tensor": _quantise_tensor,
    "quantise_rows": _quantise_rows,
    "attention": _attention,
    "scaled_matmul": _scaled_matmul,
    "grouped_matmul": _grouped_matmul,
}
"""Body of a workload -> function that computes its result from float64 operands by tensor."""

IN_PARTS = (("grouped_matmul", "weight"),)
"""(body, tensor) of operands that are converted to float64 in parts (by expert), because they are large."""

FURTHER_REFERENCES: dict[str, Callable[[Workload, Mapping[str, Values]], Values]] = {
    "sum": _add_residual,
    "scales": _scales,
}
"""Tensor of `Workload.further` -> function that computes it."""

KERNEL_OPERANDS: dict[tuple[str, str], Callable[[Workload, np.random.Generator], Drawn]] = {
    ("quantise_tensor", "scale"): _any_scale,
    ("attention", "block_table"): _pages,
    ("attention", "held"): _draw_cached_keys,
    ("attention", "lengths"): _lengths,
    ("grouped_matmul", "order"): _any_order,
    ("grouped_matmul", "ends"): _ends,
    **{
        (body, tensor): partial(_any_byte, tensor=tensor)
        for body in ("scaled_matmul", "grouped_matmul")
        for tensor in ("data_scales", "weight_scales", "weight_zeros", "factor")
    },
}
"""(body, tensor) -> function that draws operands with restricted values, such as indices or positive factors."""
