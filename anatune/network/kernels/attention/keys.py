"""Functions in LLVM IR for as many keys as a vector has lanes: transpose them, or multiply them with a query.

The functions take the number of keys, and the stride of keys if it is known only at run time. In place of missing keys
they read the last key again. The results for those keys are stored, but nobody reads them.
"""

from __future__ import annotations

from anatune.core.sizes import symbols_of
from anatune.emit.kernels import Function, element_addresses, finish_function, start_function
from anatune.emit.llvm import LlvmCode
from anatune.emit.llvm_types import write_size

__all__ = ["write_dots", "write_transpose"]

_FLOAT = "float32"


def write_transpose(lanes: int, dim: int, row: int, turned_row: int, name: str) -> Function:
    """Return the function that transposes (keys, dim) to (dim, lanes), with `turned_row` elements between its rows.

    Parameters
    ----------
    row : int
        The stride of keys, in elements.
    """
    code, (_, target), keys = _begin_function(lanes, row, ["key", "turned"], name)
    for first in range(0, dim, lanes):
        used = min(lanes, dim - first)
        rows = [code.load_vector(code.address(key, _FLOAT, first), _FLOAT, 1, used) for key in keys]
        for column_index, column in enumerate(code.transpose(rows)[:used], first):
            code.store_vector(column, code.address(target, _FLOAT, column_index * turned_row), _FLOAT, lanes)
    return finish_function(code)


def write_dots(lanes: int, dim: int, row: int, name: str) -> Function:
    """Return the function that stores the products of keys and one query, (dim,) each, as a vector."""
    code, (_, target, query), keys = _begin_function(lanes, row, ["key", "scores", "query"], name)
    sums = [code.constant(0.0)] * lanes
    for first in range(0, dim, lanes):
        used = min(lanes, dim - first)
        query_part = code.load_vector(code.address(query, _FLOAT, first), _FLOAT, 1, used)
        for lane, key in enumerate(keys):
            value = code.load_vector(code.address(key, _FLOAT, first), _FLOAT, 1, used)
            sums[lane] = code.multiply_add(query_part, value, sums[lane])
    parts = code.transpose(sums)
    while len(parts) > 1:
        parts = [code.binary("add", *parts[index : index + 2]) for index in range(0, len(parts), 2)]
    code.store_vector(parts[0], target, _FLOAT, lanes)
    return finish_function(code)


def _begin_function(lanes: int, row: int, tensors: list[str], name: str) -> tuple[LlvmCode, list[str], list[str]]:
    """Begin a function; return its code, the addresses of its tensors, keys first, and the address of each key."""
    code = LlvmCode(lanes, _FLOAT, "multiply_add")
    start_function(code, name, len(tensors), "keys", *sorted(symbols_of(row)), spills=False)
    starts = element_addresses(code, ["float"] * len(tensors))
    last, stride, keys = code.emit("sub i64 %keys, 1"), write_size(row, code.emit), [starts[0]]
    for lane in range(1, lanes):
        is_there = code.emit(f"icmp slt i64 {lane}, {last}")
        key_index = code.emit(f"select i1 {is_there}, i64 {lane}, i64 {last}")
        keys.append(
            code.emit(f"getelementptr float, ptr {starts[0]}, i64 {code.emit(f'mul nsw i64 {key_index}, {stride}')}")
        )
    return code, starts, keys
