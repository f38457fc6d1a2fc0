"""Visibility in attention: which keys a query sees, and the iterations and bytes that follow from it.

Notation
--------
Queries and keys are aligned at their ends: with a causal mask query i sees the keys up to i + seq_kv - seq_q, with a
window only the last `window` of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.core.workload.access import DTYPE_BYTES, Access

__all__ = ["attention_iterations", "attention_read_bytes", "first_key", "visible_pairs"]


def visible_pairs(seq_q: int, seq_kv: int, *, causal: bool, window: int) -> int:
    """Return the number of pairs of a query and a key that it sees; window 0 means no window."""
    if not causal:
        return seq_q * seq_kv
    first = seq_kv - seq_q + 1  # keys that the first query sees without a window
    if not window or window >= seq_kv:
        return seq_q * (first + seq_kv) // 2
    growing = max(0, min(seq_q, window - first))  # queries that see fewer keys than the window holds
    return growing * (2 * first + growing - 1) // 2 + (seq_q - growing) * window


def first_key(seq_q: int, seq_kv: int, window: int) -> int:
    """Return the number of the first key that any query sees."""
    return max(0, seq_kv - seq_q - window + 1) if window else 0


def _number(attributes: Mapping[str, object], name: str) -> int:
    value = attributes[name]
    assert isinstance(value, int)
    return value


def attention_iterations(extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the iterations of an attention's nest whose query sees the key."""
    seq_q, seq_kv, window = (_number(attributes, name) for name in ("seq_q", "seq_kv", "window"))
    pairs = visible_pairs(seq_q, seq_kv, causal=bool(attributes["causal"]), window=window)
    return extents["b"] * extents["g"] * extents["h"] * extents["d"] * pairs


def attention_read_bytes(reads: Sequence[Access], extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the bytes of the queries, of all keys and values that a query sees, and of the block table."""
    seq_q, seq_kv, window = (_number(attributes, name) for name in ("seq_q", "seq_kv", "window"))
    num_keys = seq_kv - first_key(seq_q, seq_kv, window)
    query, *keys = reads[:3]
    row = extents["b"] * extents["g"] * extents["d"]
    total = query.num_elements * DTYPE_BYTES[query.dtype]
    total += sum(row * num_keys * DTYPE_BYTES[access.dtype] for access in keys)
    return total + sum(access.num_bytes for access in reads[3:])
