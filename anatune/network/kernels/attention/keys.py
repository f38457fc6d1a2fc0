"""Functions in LLVM IR for keys: transpose as many as a vector has lanes, or multiply all of them with some queries.

The functions take the number of keys, and the strides that are known only at run time. In place of missing keys
they read the last key again. The results for those keys are stored, but nobody reads them.
"""

from __future__ import annotations

from anatune.core.sizes import symbols_of
from anatune.emit.kernels import Function, Loops, element_addresses, finish_function, start_function
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
    code = LlvmCode(lanes, _FLOAT, "multiply_add")
    start_function(code, name, 2, "keys", *sorted(symbols_of(row)), spills=False)
    key, target = element_addresses(code, ["float"] * 2)
    keys = _address_keys(code, key, "0", lanes, code.emit("sub i64 %keys, 1"), write_size(row, code.emit))
    for first in range(0, dim, lanes):
        used = min(lanes, dim - first)
        rows = [code.load_vector(code.address(key, _FLOAT, first), _FLOAT, 1, used) for key in keys]
        for column_index, column in enumerate(code.transpose(rows)[:used], first):
            code.store_vector(column, code.address(target, _FLOAT, column_index * turned_row), _FLOAT, lanes)
    return finish_function(code)


def write_dots(lanes: int, dim: int, distances: tuple[int, int, int], rows: int, name: str) -> Function:
    """Return the function that stores the products of all keys, (dim,) each, with `rows` queries.

    Several keys are multiplied with all queries at a time, so that each key is read once, in the order of the memory.

    Parameters
    ----------
    distances : tuple of int
        The strides of keys, of rows of scores and of queries, in elements.
    rows : int
        At most the lanes of a vector.
    """
    code = LlvmCode(lanes, _FLOAT, "multiply_add")
    start_function(code, name, 3, "keys", *sorted(symbols_of(distances)))
    key, target, query = element_addresses(code, ["float"] * 3)
    at_once = 1 << (lanes // rows).bit_length() - 1
    last = code.emit("sub i64 %keys, 1")
    strides = [write_size(distance, code.emit) for distance in distances]

    def multiply(first: str, _: list[str]) -> list[str]:
        (moved,), _ = code.fence([query], [], "")  # LLVM would keep all queries on the stack
        queries = [_address(code, moved, str(row), strides[2]) for row in range(rows)]
        keys = _address_keys(code, key, first, at_once, last, strides[0])
        sums = [code.constant(0.0)] * lanes
        for start in range(0, dim, lanes):
            used = min(lanes, dim - start)
            parts, values = (
                [code.load_vector(code.address(one, _FLOAT, start), _FLOAT, 1, used) for one in pointers]
                for pointers in (queries, keys)
            )
            for row, part in enumerate(parts):
                for number, value in enumerate(values, row * at_once):
                    sums[number] = code.multiply_add(part, value, sums[number])
        total = _add_lanes(code, sums)
        scores = code.emit(f"getelementptr float, ptr {target}, i64 {first}")
        for row in range(rows):
            part = code.shuffle(total, "poison", range(row * at_once, (row + 1) * at_once))
            row_scores = _address(code, scores, str(row), strides[1])
            code.line(f"  store <{at_once} x float> {part}, ptr {row_scores}, align 4")
        return []

    Loops(code).over("0", "%keys", str(at_once), [], multiply)
    return finish_function(code)


def _add_lanes(code: LlvmCode, vectors: list[str]) -> str:
    """Return the sums of the lanes of as many vectors as a vector has lanes.

    Each step adds neighbours, first within groups of four lanes, which are the cheapest to shuffle, then whole groups.
    """
    lanes = code.lanes
    while len(vectors) > 1:
        if 4 * len(vectors) > lanes:
            apart, order = 1, [block + lane for block in range(0, lanes, 4) for lane in (0, 2, lanes, lanes + 2)]
        else:
            apart, order = 4, [8 * pair + lane for pair in range(lanes // 4) for lane in range(4)]
        vectors = [
            code.binary("add", *(code.shuffle(left, right, [lane + odd for lane in order]) for odd in (0, apart)))
            for left, right in zip(vectors[::2], vectors[1::2], strict=True)
        ]
    return vectors[0]


def _address_keys(code: LlvmCode, start: str, first: str, count: int, last: str, stride: str) -> list[str]:
    """Return the addresses of some keys from `first` on, and that of the last one in place of missing ones."""
    addresses = []
    for number in range(count):
        index = code.emit(f"add i64 {first}, {number}")
        is_there = code.emit(f"icmp slt i64 {index}, {last}")
        addresses.append(_address(code, start, code.emit(f"select i1 {is_there}, i64 {index}, i64 {last}"), stride))
    return addresses


def _address(code: LlvmCode, base: str, index: str, stride: str) -> str:
    return code.emit(f"getelementptr float, ptr {base}, i64 {code.emit(f'mul nsw i64 {index}, {stride}')}")
