"""Prefetches of a microkernel, most of them spread over its reduction loops.

A core has 10 to 24 buffers for lines that are on their way to its L1 cache. Whoever asks for more at once waits, as
long as the farthest of them takes, and every load behind waits too. So tiles with many lines ask for a few in each
iteration, by a table of their places: for those of the result that the call itself will store, and for those of the
operands that the next call reads in many places at once, which the hardware does not follow.
Source: Zen 4, lost cycles of 650 measured kernels over lines of their results: 20 to 250 cycles a call for each line
past 24; a 3x3 convolution of 272x272x32 with tiles of 7 x 4 pixels, 28 lines: 7 % faster than with all asked for
at the start, a 1x1 convolution of 136x136x128 6 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.sizes import at_run_time
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.templates.cpu.program.register_tile import Bases, Microkernel, Result

__all__ = [
    "LINES_AT_ONCE",
    "LINES_FURTHER",
    "LINE_BYTES",
    "MOST_LINES",
    "Spread",
    "new_lines",
    "prefetch_ahead",
    "prefetch_some",
    "prefetch_stream",
    "result_lines",
    "spreads_of",
]

LINE_BYTES = 64
LINES_AT_ONCE = 12
"""Lines that may be asked for at once: the fill buffers of a Skylake (Zen 4: 24)."""
_LEAST_RUNS = 4
"""Runs of neighbouring lines from which on the hardware does not see by itself what comes next."""
LINES_FURTHER = 2
"""Lines that long rows are asked for ahead of where they are read: 32 steps of float32, more cycles than L3 takes.
Source: Zen 4, plans of matmuls whose rows fill 36 to 48 KB, against prefetches for the next call: M3 3.5 %, M4 4.8 %,
M5 3.4 % faster; no prefetch at all 5.6, 2.9 and 2.5 %."""
MOST_LINES = 256
"""Lines of the next tile up to which they stay in the L1 cache until it comes: half of 32 KiB."""
_MOST_OFFSETS = 1 << 20
"""Elements of a tile up to which its lines are counted."""
_LEAST_ACCUMULATORS = 8
"""Tiles of fewer products have no room for a prefetch in each step."""
_PRODUCTS_A_PREFETCH = 16
"""Multiply-adds beside which a prefetch (and the load of its place) costs nothing that could be measured."""
_PRODUCTS_A_LINE = 6
"""Multiply-adds beside which a line is asked for that lies at a computed distance: no table, no load."""
_MOST_PREFETCHES = 64
"""Lines of the result that a call asks for: more do not fit the buffers for misses anyway."""


@dataclass(frozen=True)
class Spread:
    """Lines to ask for, some in each iteration of the reduction loops.

    Attributes
    ----------
    base : str
        LLVM's name of the address that they are counted from.
    table : str
        Name of the table.
    dtype : str
        Of the elements.
    lines : tuple of int
        Elements from the base to each line.
    each : int
        Lines an iteration.
    to_write : bool
    """

    base: str
    table: str
    dtype: str
    lines: tuple[int, ...]
    each: int
    to_write: bool


def prefetch_some(code: LlvmCode, spread: Spread, place: str, step: int, num_steps: int) -> None:
    """Emit the prefetches of one unrolled step; `place` is the iteration's number, past the last line is the last."""
    count = len(spread.lines)
    mine = [k for k in range(spread.each) if k * num_steps // spread.each == step]
    for k in mine:
        number = code.emit(f"add i64 {code.emit(f'mul i64 {place}, {spread.each}')}, {k}")
        is_inside = code.emit(f"icmp ult i64 {number}, {count}")
        number = code.emit(f"select i1 {is_inside}, i64 {number}, i64 {count - 1}")
        offset = code.emit(f"load i64, ptr {code.emit(f'getelementptr i64, ptr @{spread.table}, i64 {number}')}")
        address = code.emit(f"getelementptr {LLVM_TYPE[spread.dtype]}, ptr {spread.base}, i64 {offset}")
        code.prefetch(address, to_write=spread.to_write)
    values = ", ".join(f"i64 {line}" for line in spread.lines)
    code.declared.add(f"@{spread.table} = private unnamed_addr constant [{count} x i64] [{values}]")


def prefetch_stream(code: LlvmCode, kernel: Microkernel, operand: int, base: str, place: str, step: int) -> None:
    """Ask the L2 cache for some lines of a later block; `base` is the first of this call's, `place` the iteration."""
    stream = kernel.operands[operand].stream
    iterations = math.prod(kernel.trips)
    products = len(kernel.result.rows) * kernel.num_vectors * kernel.num_steps
    assert stream is not None
    each = -(-stream.num_lines // iterations)
    if each * _PRODUCTS_A_LINE > products:
        return
    for k in (k for k in range(each) if k * kernel.num_steps // each == step):
        apart = -(-stream.num_lines * LINE_BYTES // iterations) if each == 1 else each * LINE_BYTES
        distance = code.emit(f"add i64 {code.emit(f'mul i64 {place}, {apart}')}, {k * LINE_BYTES}")
        code.prefetch(code.emit(f"getelementptr i8, ptr {base}, i64 {distance}"), to_write=False, level=2)


def prefetch_ahead(code: LlvmCode, kernel: Microkernel, pointers: list[str], iteration: str, step: int) -> None:
    """Ask for one line of the next call's rows in each step: row ``step % 16`` of the lines that begin at this step.

    Source: 1x1 convolution of 136x136x128 on a Zen 4 machine: tiles of 14 rows, 512 bytes apart and read side by side,
    reached 63 % of the peak while the data came from the L3 cache, tiles of 2 + 2 rows 91 %.
    """
    if len(kernel.trips) != 1 or kernel.moving or kernel.num_vectors * len(kernel.result.rows) < _LEAST_ACCUMULATORS:
        return
    for operand, pointer in zip(kernel.operands, pointers, strict=True):
        ahead = operand.ahead
        if ahead is None:
            continue
        per_line = LINE_BYTES // (DTYPE_BYTES[operand.dtype] * operand.group)
        if ahead.num_rows == 0:
            address = code.address(pointer, operand.dtype, operand.steps[step] + ahead.distance)
            code.prefetch(address, to_write=False)
            continue
        slots = 1 << (ahead.num_rows - 1).bit_length()
        first = code.emit(f"mul i64 {iteration}, {kernel.num_steps}")
        place = code.emit(f"add i64 {first}, {step}")
        row = code.emit(f"and i64 {place}, {slots - 1}")
        offset = code.emit(f"mul i64 {row}, {ahead.pitch}")
        if slots < per_line and ahead.group_pitch:
            rest = code.emit(f"and i64 {place}, {per_line - slots}")
            group = code.emit(f"lshr i64 {rest}, {slots.bit_length() - 1}")
            offset = code.emit(f"add i64 {offset}, {code.emit(f'mul i64 {group}, {ahead.group_pitch}')}")
        line = code.emit(f"and i64 {place}, {-per_line}")
        moved = code.emit(f"sub i64 {line}, {first}")
        if operand.group > 1:
            moved = code.emit(f"mul i64 {moved}, {operand.group}")
        total = code.emit(f"add i64 {code.emit(f'add i64 {offset}, {moved}')}, {ahead.distance}")
        code.prefetch(
            code.emit(f"getelementptr {LLVM_TYPE[operand.dtype]}, ptr {pointer}, i64 {total}"), to_write=False
        )


def result_lines(kernel: Microkernel, result: Result) -> tuple[int, ...]:
    """Return the result's lines: asked for before its stores, these find them in the cache.

    Rows that are known at run time are those of a buffer, which is in one.
    """
    if at_run_time(result.rows):
        return ()
    per_line = LINE_BYTES // DTYPE_BYTES[result.dtype]
    lines: set[int] = set()
    if result.lane_stride == 1:
        for offset in result.rows:
            lines.update(range(offset, offset + kernel.size, per_line))
    elif result.groups:
        for group in result.groups:
            lines.update(result.rows[group[0]] + lane * result.lane_stride for lane in range(kernel.size))
    return tuple(sorted(lines)[:_MOST_PREFETCHES])


def spreads_of(kernel: Microkernel, bases: Bases) -> list[Spread]:
    """Return what to ask for in the course of the reduction, rather than at its start or not at all."""
    iterations = math.prod(kernel.trips)
    if not kernel.reduces or kernel.simd_reduction or iterations < 2:
        return []
    products = len(kernel.result.rows) * kernel.num_vectors * kernel.num_steps
    spreads = []
    for i, operand in enumerate(kernel.operands):
        each = -(-len(operand.fresh) // iterations)
        if 0 < each * _PRODUCTS_A_PREFETCH <= products:
            table = f"{kernel.name}_fresh{i}"
            spreads.append(Spread(bases.operands[i], table, operand.dtype, operand.fresh, each, to_write=False))
    base, result = kernel.sums(bases)
    lines = result_lines(kernel, result)
    if len(lines) > LINES_AT_ONCE:
        each = -(-len(lines) // iterations)  # no more: what is past the last line asks for that one again
        spreads.append(Spread(base, f"{kernel.name}_result", result.dtype, lines, each, to_write=True))
    return spreads


def new_lines(
    rows: Sequence[int], loops: Sequence[tuple[int, int]], distance: int, element_bytes: int
) -> tuple[int, ...]:
    """Return the lines of the next call's tile that this one does not read, in elements from this call's address.

    Parameters
    ----------
    rows : sequence of int
        Address of each row of the tile, elements.
    loops : sequence of (int, int)
        Iterations and stride of each loop of the reduction, elements.
    distance : int
        From this call's tile to the next one's.
    element_bytes : int

    Returns
    -------
    tuple of int
        Empty where they lie in few runs, or are too many.
    """
    size = len(set(rows))
    for extent, _ in loops:
        size *= extent
    if size > _MOST_OFFSETS or not distance:
        return ()
    offsets: NDArray[np.int64] = np.unique(np.asarray(rows, dtype=np.int64))
    for extent, stride in loops:
        offsets = np.unique((offsets[:, None] + stride * np.arange(extent, dtype=np.int64)).ravel())
    per_line = LINE_BYTES // element_bytes
    here, there = np.unique(offsets // per_line), np.unique((offsets + distance) // per_line)
    fresh = np.setdiff1d(there, here, assume_unique=True)
    if not 0 < len(fresh) <= MOST_LINES or 1 + np.count_nonzero(np.diff(fresh) > 1) < _LEAST_RUNS:
        return ()
    return tuple((fresh * per_line).tolist())
