"""Float64 results of the bodies that are more than a statement (`core.workload.kernels`), and their random operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.kernels import EPSILON, LARGEST
from anatune.core.workload.nest import Workload

__all__ = ["FURTHER_REFERENCES", "KERNEL_OPERANDS", "KERNEL_REFERENCES"]

Values = NDArray[np.float64]
Drawn = NDArray[np.generic]


def _softmax(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Over the last dimension of the first operand."""
    values = operands[workload.reads[0].tensor]
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _layer_norm(workload: Workload, operands: Mapping[str, Values]) -> Values:
    centred = operands["data"] - operands["data"].mean(axis=-1, keepdims=True)
    scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + EPSILON)
    return np.asarray(centred / scale * operands["weight"] + operands["bias"])


def _added(workload: Workload, operands: Mapping[str, Values]) -> Values:
    return operands["data"] + operands.get("residual", 0.0)


def _rms_norm(workload: Workload, operands: Mapping[str, Values]) -> Values:
    values = _added(workload, operands)
    scale = np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + EPSILON)
    return np.asarray(values / scale * operands["weight"])


def _silu_multiply(workload: Workload, operands: Mapping[str, Values]) -> Values:
    gate, up = operands["data"][:, 0], operands["data"][:, 1]
    return np.asarray(gate / (1.0 + np.exp(-gate)) * up)


def _rotary(workload: Workload, operands: Mapping[str, Values]) -> Values:
    first, second = np.split(operands["data"], 2, axis=-1)
    cos, sin = (operands[name][:, None, :] for name in ("cos", "sin"))
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _rounded(workload: Workload, values: Values) -> Values:
    """Return values as the result's dtype holds them, saturated; 8-bit floats are rounded when they are compared."""
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
    return _rounded(workload, (data.reshape(*scales.shape, -1) / scales[..., None]).reshape(data.shape))


def _quantise_tensor(workload: Workload, operands: Mapping[str, Values]) -> Values:
    return _rounded(workload, operands["data"] / operands["scale"])


def _any_scale(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return a factor with which some results are saturated."""
    return np.asarray([rng.uniform(0.3, 0.6) / LARGEST[workload.write.dtype]], np.float32)


def _attention(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Softmax of scaled products of queries and keys, times values; one head of keys at a time."""
    own = workload.attribute
    heads, kv_heads, seq_q, seq_kv, window = (
        int(str(own[name])) for name in ("heads", "kv_heads", "seq_q", "seq_kv", "window")
    )
    queries, shared = operands["queries"], heads // kv_heads
    result = np.empty(workload.write.shape)
    last = np.arange(seq_q)[:, None] + (seq_kv - seq_q)
    keys = np.arange(seq_kv)
    hidden = (keys > last) | ((keys <= last - window) if window else False) if own["causal"] else None
    for batch in range(queries.shape[0]):
        for group in range(kv_heads):
            key, value = (_cached(operands, name, batch, group, seq_kv) for name in ("keys", "values"))
            for head in range(group * shared, (group + 1) * shared):
                scores = queries[batch, head] @ key.T / np.sqrt(queries.shape[-1])
                if hidden is not None:
                    scores[hidden] = -np.inf
                powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
                result[batch, head] = powers @ value / powers.sum(axis=-1, keepdims=True)
    return result


def _cached(operands: Mapping[str, Values], name: str, batch: int, group: int, seq_kv: int) -> Values:
    """Return the keys or values of a head in order, (seq_kv, head_dim), also of a paged cache."""
    if "block_table" not in operands:
        return np.asarray(operands[name][batch, group])
    pages = operands[name][operands["block_table"][batch].astype(np.int64), group]
    return np.asarray(pages.reshape(-1, pages.shape[-1])[:seq_kv])


def _pages(workload: Workload, rng: np.random.Generator) -> Drawn:
    """Return the pages of all sequences in any order."""
    table = workload.tensor("block_table")
    return np.asarray(rng.permutation(table.num_elements).reshape(table.shape))


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
}
"""Body -> its result of float64 operands by tensor, in the result's shape."""

FURTHER_REFERENCES: dict[str, Callable[[Workload, Mapping[str, Values]], Values]] = {
    "sum": _added,
    "scales": _scales,
}
"""Tensor of `Workload.further` -> the same of it."""

KERNEL_OPERANDS: dict[tuple[str, str], Callable[[Workload, np.random.Generator], Drawn]] = {
    ("quantise_tensor", "scale"): _any_scale,
    ("attention", "block_table"): _pages,
}
"""(body, tensor) -> random elements of an operand that is no matter of chance alone: indices, positive factors."""
