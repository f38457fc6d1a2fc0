"""Which keys a query of attention sees, and what that makes of iterations and bytes.

Notation
--------
Queries and keys are aligned at their ends: with a causal mask query i sees the keys up to i + seq_kv - seq_q, with a
window the last `window` of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anatune.core.workload.access import DTYPE_BYTES, Access

__all__ = ["attention_iterations", "attention_read_bytes", "first_key", "visible_pairs"]


def visible_pairs(seq_q: int, seq_kv: int, *, causal: bool, window: int) -> int:
    """Return the pairs of a query and a key that it sees; window 0: no window."""
    if not causal:
        return seq_q * seq_kv
    first = seq_kv - seq_q + 1  # keys that the first query sees without a window
    if not window or window >= seq_kv:
        return seq_q * (first + seq_kv) // 2
    growing = max(0, min(seq_q, window - first))  # queries that see fewer keys than the window holds
    return growing * (2 * first + growing - 1) // 2 + (seq_q - growing) * window


def first_key(seq_q: int, seq_kv: int, window: int) -> int:
    """Return the first key that any query sees."""
    return max(0, seq_kv - seq_q - window + 1) if window else 0


def _number(attributes: Mapping[str, object], name: str) -> int:
    value = attributes[name]
    assert isinstance(value, int)
    return value


def attention_iterations(extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the iterations of an attention's nest whose key is seen."""
    seq_q, seq_kv, window = (_number(attributes, name) for name in ("seq_q", "seq_kv", "window"))
    pairs = visible_pairs(seq_q, seq_kv, causal=bool(attributes["causal"]), window=window)
    return extents["b"] * extents["g"] * extents["h"] * extents["d"] * pairs


def attention_read_bytes(reads: Sequence[Access], extents: Mapping[str, int], attributes: Mapping[str, object]) -> int:
    """Return the bytes of queries, of keys and values that any query sees, and of a block table."""
    seq_q, seq_kv, window = (_number(attributes, name) for name in ("seq_q", "seq_kv", "window"))
    seen = seq_kv - first_key(seq_q, seq_kv, window)
    query, *keys = reads[:3]
    row = extents["b"] * extents["g"] * extents["d"]
    own = query.num_elements * DTYPE_BYTES[query.dtype]
    own += sum(row * seen * DTYPE_BYTES[access.dtype] for access in keys)
    return own + sum(access.num_bytes for access in reads[3:])
