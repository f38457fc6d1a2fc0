"""Layouts of the results of a tile, and the shared memory to change from one layout to another.

Matrix units leave sums in their own layout, but stores need neighbouring threads at neighbouring columns. Triton
exchanges the results through shared memory. It does so in rounds, so that not all of them need be there at once.

Notation
--------
bit : a bit of the index of a result in its tile. All sizes are powers of two; the bits of the column come first, then
    those of the row.
layout : the bits that are the number of a register of a thread, of a lane of a warp, and of a warp, least bit first.
round : part of the exchange. A bit that is a register bit in both layouts and in no access halves the memory.

Source: optimalSwizzling of Triton 3.9's lib/Tools/GenericSwizzling.cpp; this module computes the size only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "BitLayout",
    "exchange_bytes",
    "mma_layout",
    "store_layout",
    "tcgen05_layout",
    "warps_of_mma",
    "warps_of_wgmma",
]

Bits = tuple[int, ...]

_BANKS = 32
_WORD_BITS = 32
_ACCESS_BITS = 128
_LANES = 32


class BitLayout(NamedTuple):
    """The bits of a result's index that are registers, lanes and warps."""

    registers: Bits
    lanes: Bits
    warps: Bits


class _Access(NamedTuple):
    """An instruction that accesses shared memory: the numbers of lane bits within 16 bytes, and of the next ones."""

    inside: Bits
    after: Bits


_PLAIN = _Access((), (0, 1, 2))
_MATRIX = _Access((0, 1), (2, 3, 4))
_TURNED = _Access((2, 3, 4), (0, 1))


def warps_of_mma(rows: int, columns: int, warps: int) -> tuple[int, int]:
    """Return the warps along m and n of ``mma.sync``. Source: warpsPerTile of Triton's AcceleratedMatmul."""
    warps_m = warps_n = 1
    while warps_m * warps_n < warps:
        taller = rows // 16 // warps_m >= columns // 8 / warps_n and warps_m < rows // 16
        if taller or warps_n >= columns // 8:
            warps_m *= 2
        else:
            warps_n *= 2
    return warps_m, warps_n


def warps_of_wgmma(rows: int, warps: int) -> tuple[int, int]:
    """Return the warps along m and n of ``wgmma``: four for every 64 rows, then more rows, then columns."""
    warps_m = min(warps, max(4, rows // 16))
    return warps_m, warps // warps_m


def mma_layout(rows: int, columns: int, warps_m: int, warps_n: int, width: int = 8) -> BitLayout:
    """Return the layout of the sums of ``mma.sync`` (`width` 8) and of ``wgmma`` (`width`: its columns)."""
    m, n = _bits(columns, rows * columns), _bits(1, columns)
    inner = _log2(width)
    cut_n, cut_m = inner + _log2(warps_n), 4 + _log2(warps_m)
    registers = (n[0], m[3], *n[3:inner], *n[cut_n:], *m[cut_m:])
    return BitLayout(registers, (*n[1:3], *m[:3]), (*m[4:cut_m], *n[inner:cut_n]))


def tcgen05_layout(rows: int, columns: int, warps: int) -> BitLayout:
    """Return the layout of sums read from tensor memory: each of 4 or 8 warps reads 32 rows (16 if there are 64)."""
    m, n = list(_bits(columns, rows * columns)), list(_bits(1, columns))
    lanes, by_warp = (m[:4], m[4:6]) if rows == 64 else (m[:5], m[5:7])
    other_rows = m[len(lanes) + 2 :]
    if warps == 8:
        by_warp = [*by_warp, other_rows.pop(0) if other_rows else n.pop()]
    if rows == 64:
        lanes = [*lanes, n.pop()]
    return BitLayout((*n, *other_rows), tuple(lanes), tuple(by_warp))


def store_layout(rows: int, columns: int, warps: int, result_bits: int) -> BitLayout:
    """Return the layout in which a tile is stored: 16 bytes per thread if possible, warps along rows first."""
    m, n = _bits(columns, rows * columns), _bits(1, columns)
    wide = min(_ACCESS_BITS // result_bits, max(1, rows * columns // (warps * _LANES)), columns)
    by_n = min(_LANES, columns // wide)
    warps_n = min(warps, max(1, columns // (wide * by_n)))
    first, lane = _log2(wide), _log2(wide * by_n)
    cut, down = lane + _log2(warps_n), _log2(_LANES // by_n)
    along = down + _log2(warps // warps_n)
    return BitLayout((*n[:first], *n[cut:], *m[along:]), (*n[first:lane], *m[:down]), (*n[lane:cut], *m[down:along]))


@lru_cache(maxsize=4096)
def exchange_bytes(before: BitLayout, after: BitLayout, bits: int, *, matrix_loads: bool, matrix_stores: bool) -> int:
    """Return the bytes of shared memory for a change of layout, 0 if lanes and warps are the same in both.

    Parameters
    ----------
    bits
        Bits of a result.
    matrix_loads, matrix_stores
        Whether the device has ``ldmatrix``, ``stmatrix``.
    """
    if (set(before.warps), set(before.lanes)) == (set(after.warps), set(after.lanes)):
        return 0
    size = len({*before.registers, *before.lanes, *before.warps})
    rounds = min(_rounds(before, after, bits, size, matrix_loads, matrix_stores), default=(0, 0))[1]
    return int(2**size * bits // 8 >> -rounds)


def _rounds(
    before: BitLayout, after: BitLayout, bits: int, size: int, matrix_loads: bool, matrix_stores: bool
) -> Iterator[tuple[int, int]]:
    """Yield (bank conflicts, minus the number of rounds) for every pair of a store and a load that fit together."""
    wide = _log2(_ACCESS_BITS // bits)
    kinds = [_PLAIN, _MATRIX, *([_TURNED] if bits == 16 else [])]
    fits_any = False
    for store in kinds if matrix_stores else [_PLAIN]:
        for load in kinds if matrix_loads else [_PLAIN]:
            vector = _vector(before, after, wide - len(store.inside), wide - len(load.inside), store, load)
            if vector is None:
                continue
            lines = [_accessed_bits(store, before, vector), _accessed_bits(load, after, vector)]
            if lines[0] is None or lines[1] is None:
                continue
            fits_any = True
            kept = min(len(a.inside) + len(a.after) - 3 for a in (store, load))
            yield _count_conflicts(before, after, bits, size, vector, lines[0], lines[1], kept)
    if not fits_any:
        yield _narrow_rounds(before, after, bits, size)


def _narrow_rounds(before: BitLayout, after: BitLayout, bits: int, size: int) -> tuple[int, int]:
    """Return the same for ordinary accesses of less than 16 bytes."""
    vector = [bit for bit in before.registers if bit in after.registers][: _log2(_ACCESS_BITS // bits)]
    word = _log2(_WORD_BITS // bits)
    if len(vector) < word:
        left = [bit for bit in before.registers if bit not in vector and bit in after.warps]
        right = [bit for bit in after.registers if bit not in vector and bit in before.warps]
        alike = len(left) == len(right) > 0
        vector += left if (alike and min(left) < min(right)) or len(left) > len(right) else right
        if len(vector) < word:
            vector += [bit for bit in before.warps if bit in after.warps]
        for pair in zip(before.warps, after.warps, strict=False):
            vector += [bit for bit in dict.fromkeys(pair) if bit not in vector and len(vector) < word]
        vector = vector[:word]
    words = max(0, len(vector) - word)
    lines = [tuple(bit for bit in side.lanes[: len(side.lanes) - words]) for side in (before, after)]
    return _count_conflicts(before, after, bits, size, tuple(vector), lines[0], lines[1], 0)


def _vector(
    before: BitLayout, after: BitLayout, registers_before: int, registers_after: int, store: _Access, load: _Access
) -> Bits | None:
    """Return the bits within 16 bytes that both instructions access, or None if they do not fit together."""
    if registers_before < registers_after:
        return _vector(after, before, registers_after, registers_before, load, store)
    common = [bit for bit in before.registers if bit in after.registers]
    if len(common) < registers_after:
        return None
    wide, narrow = [before.lanes, after.lanes], [store.inside, load.inside]
    if any(number >= len(lanes) for lanes, numbers in zip(wide, narrow, strict=True) for number in numbers):
        return None
    more = registers_before - registers_after
    inside = tuple(after.lanes[number] for number in load.inside)
    if any(bit not in before.registers for bit in inside[:more]):
        return None
    if inside[len(inside) - len(store.inside) :] != tuple(before.lanes[number] for number in store.inside):
        return None
    return (*common[:registers_after], *inside)


def _accessed_bits(access: _Access, side: BitLayout, vector: Bits) -> Bits | None:
    """Return the bits of the eight threads or rows that one cycle accesses in addition to the vector."""
    missing = 3 - len(access.after)
    free = [bit for bit in side.registers if bit not in vector][:missing]
    if len(free) < missing or any(number >= len(side.lanes) for number in access.after):
        return None
    return (*free, *(side.lanes[number] for number in access.after))


def _count_conflicts(
    before: BitLayout, after: BitLayout, bits: int, size: int, vector: Bits, store: Bits, load: Bits, kept: int
) -> tuple[int, int]:
    """Return (bank conflicts, minus the number of rounds), from the bits that distinguish lines of all banks."""
    in_line = min(_log2(_BANKS * _WORD_BITS // (2 ** len(vector) * bits)), size - len(vector))
    lines = size - in_line - len(vector)
    stores, loads = {*vector, *store}, {*vector, *load}
    segment = [1 << bit for bit in range(size) if bit not in stores and bit not in loads][:lines]
    if len(segment) < lines:
        few, many = sorted((sorted(stores - loads), sorted(loads - stores)), key=len)
        clashing = min(max(0, lines - len(few) - len(segment)), len(few))
        segment += [1 << few[i] ^ 1 << many[i] for i in range(clashing, len(few))]
        segment += [1 << bit for bit in (*few[:clashing], *many[:clashing])]
        segment = segment[:lines]
    both = {1 << bit for bit in before.registers if bit in after.registers}
    rounds = sum(line in both for line in segment)
    clashes = sum(2 ** _shared_dimension(segment, touched) - 1 for touched in (store, load))
    return clashes, -max(0, rounds - kept)


def _shared_dimension(segment: Iterable[int], touched: Bits) -> int:
    """Return the dimension of the intersection of the spans of two sets of vectors over GF(2)."""
    lines = list(segment)
    return _rank(lines) + len(touched) - _rank([*lines, *(1 << bit for bit in touched)])


def _rank(vectors: Iterable[int]) -> int:
    basis: list[int] = []
    for vector in vectors:
        for other in basis:
            vector = min(vector, vector ^ other)
        if vector:
            basis.append(vector)
    return len(basis)


def _bits(first: int, end: int) -> Bits:
    return tuple(range(_log2(first), _log2(end)))


def _log2(number: int) -> int:
    return number.bit_length() - 1
