"""Float64 results of the bodies that are more than a statement (`core.workload.kernels`), and their random operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from anatune.core.workload.nest import Workload

__all__ = ["KERNEL_OPERANDS", "KERNEL_REFERENCES"]

Values = NDArray[np.float64]
Drawn = NDArray[np.generic]


def _softmax(workload: Workload, operands: Mapping[str, Values]) -> Values:
    """Over the last dimension of the first operand."""
    values = operands[workload.reads[0].tensor]
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


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
    "attention": _attention,
}
"""Body -> its result of float64 operands by tensor, in the result's shape."""

KERNEL_OPERANDS: dict[tuple[str, str], Callable[[Workload, np.random.Generator], Drawn]] = {
    ("attention", "block_table"): _pages,
}
"""(body, tensor) -> random elements of an operand that is no matter of chance alone: indices, positive factors."""
