"""What is done to a vector's worth of keys before their product with queries, or instead of it, as LLVM IR.

Functions take how many keys exist, and the elements from one to the next where that is known at run time. They read the
last key again in place of those that do not exist, and compute with them: what comes of that has a place, which
nobody reads.
"""

from __future__ import annotations

from anatune.core.sizes import symbols_of
from anatune.emit.kernels import Function, finished, start_function, starts_of
from anatune.emit.llvm import LlvmCode
from anatune.emit.llvm_types import number_of

__all__ = ["dots", "turning"]

_FLOAT = "float32"


def turning(lanes: int, dim: int, row: int, turned_row: int, name: str) -> Function:
    """Return the function that turns (keys, dim) into (dim, lanes), its rows `turned_row` elements apart.

    Parameters
    ----------
    row : int
        Elements from one key to the next.
    """
    code, (_, target), keys = _started(lanes, row, ["key", "turned"], name)
    for first in range(0, dim, lanes):
        used = min(lanes, dim - first)
        rows = [code.load_vector(code.address(key, _FLOAT, first), _FLOAT, 1, used) for key in keys]
        for place, column in enumerate(code.transpose(rows)[:used], first):
            code.store_vector(column, code.address(target, _FLOAT, place * turned_row), _FLOAT, lanes)
    return finished(code)


def dots(lanes: int, dim: int, row: int, name: str) -> Function:
    """Return the function that stores the products of keys and one query, (dim,) each, as a vector."""
    code, (_, target, query), keys = _started(lanes, row, ["key", "scores", "query"], name)
    sums = [code.constant(0.0)] * lanes
    for first in range(0, dim, lanes):
        used = min(lanes, dim - first)
        own = code.load_vector(code.address(query, _FLOAT, first), _FLOAT, 1, used)
        for lane, key in enumerate(keys):
            value = code.load_vector(code.address(key, _FLOAT, first), _FLOAT, 1, used)
            sums[lane] = code.multiply_add(own, value, sums[lane])
    parts = code.transpose(sums)
    while len(parts) > 1:
        parts = [code.binary("add", *parts[place : place + 2]) for place in range(0, len(parts), 2)]
    code.store_vector(parts[0], target, _FLOAT, lanes)
    return finished(code)


def _started(lanes: int, row: int, tensors: list[str], name: str) -> tuple[LlvmCode, list[str], list[str]]:
    """Return a function that has been begun, the addresses of its tensors, the keys first, and those of the keys."""
    code = LlvmCode(lanes, _FLOAT, "multiply_add")
    start_function(code, name, len(tensors), "keys", *sorted(symbols_of(row)), spills=False)
    starts = starts_of(code, ["float"] * len(tensors))
    last, apart, keys = code.emit("sub i64 %keys, 1"), number_of(row, code.emit), [starts[0]]
    for lane in range(1, lanes):
        is_there = code.emit(f"icmp slt i64 {lane}, {last}")
        place = code.emit(f"select i1 {is_there}, i64 {lane}, i64 {last}")
        keys.append(
            code.emit(f"getelementptr float, ptr {starts[0]}, i64 {code.emit(f'mul nsw i64 {place}, {apart}')}")
        )
    return code, starts, keys
