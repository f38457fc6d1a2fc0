"""Prefetches of a microkernel, most of them spread over its reduction loops.

A core has 10 to 24 buffers for lines that are on their way to its L1 cache. A core that requests more at once waits for
the slowest of them, and all following loads wait too. So tiles with many lines prefetch a few in each iteration, from a
table of offsets. They prefetch the lines of the result that this call will store, and the lines of operands that the
next call reads in many places at once, which the hardware does not predict. Source: Zen 4, lost cycles of 650 measured
kernels over lines of their results: 20 to 250 cycles a call for each line past 24; a 3x3 convolution of 272x272x32 with
tiles of 7 x 4 pixels, 28 lines: 7 % faster than with all prefetches at the start, a 1x1 convolution of 136x136x128 6 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.sizes import is_run_time
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm import LLVM_TYPE, LlvmCode
from anatune.templates.cpu.program.register_tile import Bases, Microkernel, Result

__all__ = [
    "FAR_BYTES",
    "FEWEST_REPEATS",
    "LINES_AT_ONCE",
    "LINE_BYTES",
    "MOST_LINES",
    "PRODUCTS_A_FAR_LINE",
    "Spread",
    "new_lines",
    "prefetch_ahead",
    "prefetch_some",
    "prefetch_stream",
    "result_lines",
    "spreads_of",
]

LINE_BYTES = 64
FEWEST_REPEATS = 2
"""Fewest calls that read one block of packed elements for which the next block is prefetched."""
FAR_BYTES = 8192
"""Distance of prefetches in elements that the hardware fetches in order, too: two pages, further than it fetches.

Source: Zen 4, 6 rows of AVX2 and 2048x2048, over the time without prefetches: 0.59; at 2 and 4 KB 1.06 and 0.72; 4 rows
0.87; at 2 KB 1.37.
"""
PRODUCTS_A_FAR_LINE = 8
"""Least multiply-adds on a line of such elements for which prefetches gain: the loads of a core are too far apart then.

About 128 instructions wait for operands (Zen 4; Golden Cove: 97), those of 16 lines (12), but a core can fetch 24 (16)
at once. Source: Zen 4, over the time without prefetches: 8 to 14 products 0.5 to 0.98 (4 rows of 3 vectors:
1.16), 7 products 1.01 to 1.08, 6 products 1.15 to 1.33.
"""
LINES_AT_ONCE = 12
"""Most lines that are prefetched at once: the fill buffers of a Skylake (Zen 4: 24)."""
_LEAST_RUNS = 4
"""Least number of separate runs of neighbouring lines that the hardware prefetcher cannot follow."""
MOST_LINES = 256
"""Most lines of the next tile that stay in the L1 cache until it is used: half of 32 KiB."""
_MOST_OFFSETS = 1 << 20
"""Most elements of a tile whose lines are counted."""
_LEAST_ACCUMULATORS = 8
"""Fewest products of a tile that hide a prefetch in each step."""
_PRODUCTS_A_PREFETCH = 16
"""Multiply-adds that hide a prefetch (and the load of its offset) so that it costs nothing measurable."""
_PRODUCTS_A_LINE = 6
"""Multiply-adds that hide the prefetch of a line at a computed distance, without a table and a load."""
_MOST_PREFETCHES = 64
"""Most lines of the result that a call prefetches: more do not fit the miss buffers."""


@dataclass(frozen=True)
class Spread:
    """Lines to prefetch, some in each iteration of the reduction loops.

    Attributes
    ----------
    base : str
        LLVM name of the address from which they are counted.
    table : str
        Name of the table.
    dtype : str
        Dtype of the elements.
    lines : tuple of int
        Elements from the base to each line.
    each : int
        Lines prefetched in an iteration.
    to_write : bool
    """

    base: str
    table: str
    dtype: str
    lines: tuple[int, ...]
    each: int
    to_write: bool


def prefetch_some(code: LlvmCode, spread: Spread, iteration: str, step: int, num_steps: int) -> None:
    """Emit the prefetches of one unrolled step; `iteration` is its number.

    Numbers past the end of the table prefetch its last line again.
    """
    count = len(spread.lines)
    numbers = [k for k in range(spread.each) if k * num_steps // spread.each == step]
    for k in numbers:
        number = code.emit(f"add i64 {code.emit(f'mul i64 {iteration}, {spread.each}')}, {k}")
        is_inside = code.emit(f"icmp ult i64 {number}, {count}")
        number = code.emit(f"select i1 {is_inside}, i64 {number}, i64 {count - 1}")
        offset = _offset_of(code, spread.table, spread.lines, number)
        address = code.emit(f"getelementptr {LLVM_TYPE[spread.dtype]}, ptr {spread.base}, i64 {offset}")
        code.prefetch(address, to_write=spread.to_write)


def prefetch_stream(code: LlvmCode, kernel: Microkernel, operand: int, base: str, iteration: str, step: int) -> None:
    """Prefetch some lines of a later block into L2; `base` is the first line of this call."""
    stream = kernel.operands[operand].stream
    iterations = math.prod(kernel.trips)
    products = len(kernel.result.rows) * kernel.num_vectors * kernel.num_steps
    assert stream is not None
    is_far = 0 < stream.far_rows <= len(kernel.result.rows)
    lines = stream.num_lines * (FEWEST_REPEATS if is_far else 1)
    each = -(-lines // iterations)
    if each * _PRODUCTS_A_LINE > products:
        return
    for k in (k for k in range(each) if k * kernel.num_steps // each == step):
        apart = -(-lines * LINE_BYTES // iterations) if each == 1 else each * LINE_BYTES
        distance = code.emit(f"add i64 {code.emit(f'mul i64 {iteration}, {apart}')}, {k * LINE_BYTES}")
        if is_far:  # a call that shares the block with others gets half of the lines, each twice
            distance = code.emit(f"lshr i64 {code.emit(f'mul i64 {distance}, %pace{operand}')}, 1")
        code.prefetch(code.emit(f"getelementptr i8, ptr {base}, i64 {distance}"), to_write=False, level=2)


def prefetch_ahead(code: LlvmCode, kernel: Microkernel, pointers: list[str], iteration: str, step: int) -> None:
    """Prefetch the lines of the rows of the next call, each once, spread over the steps that read one line.

    They go to L2. L1 would have to hold the rows of two calls beside the packed elements that stream through it, and
    rows that are a multiple of a page apart share few of its sets. Out of order, a core hides the latency of L2.
    Source: 1x1 convolutions on a Zen 4 machine. 136x136x128 from L3, no prefetch: 0.74 to 0.81 of the speed. AVX2, six
    rows, against prefetches into L1: 14x14x1024 1.16 times as fast, 34x34x512 1.08.
    """
    if len(kernel.trips) != 1 or kernel.moving or kernel.num_vectors * len(kernel.result.rows) < _LEAST_ACCUMULATORS:
        return
    for i, (operand, pointer) in enumerate(zip(kernel.operands, pointers, strict=True)):
        ahead = operand.ahead
        if ahead is None:
            continue
        per_line = LINE_BYTES // (DTYPE_BYTES[operand.dtype] * operand.group)
        if not ahead.rows:
            address = code.address(pointer, operand.dtype, operand.steps[step] + ahead.distance)
            code.prefetch(address, to_write=False)
            continue
        # iterations that read one line take turns, each with its share of the rows
        turns = 1 << max(0, (per_line // kernel.num_steps).bit_length() - 1)
        each = -(-len(ahead.rows) // turns)
        rows = ahead.rows + ahead.rows[-1:] * (turns * each - len(ahead.rows))
        count = each * -(-kernel.num_steps // per_line)
        for k in (k for k in range(count) if k * kernel.num_steps // count == step):
            offset = str(rows[k % each])
            if turns > 1:
                turn = code.emit(f"and i64 {iteration}, {turns - 1}")
                number = code.emit(f"add i64 {code.emit(f'mul i64 {turn}, {each}')}, {k % each}")
                offset = _offset_of(code, f"{kernel.name}_ahead{i}", rows, number)
            moved = code.emit(f"add i64 {offset}, {ahead.distance + k // each * per_line * operand.group}")
            address = code.emit(f"getelementptr {LLVM_TYPE[operand.dtype]}, ptr {pointer}, i64 {moved}")
            code.prefetch(address, to_write=False, level=ahead.level)


def _offset_of(code: LlvmCode, table: str, offsets: Sequence[int], number: str) -> str:
    """Return entry `number` of a table of offsets, which is declared here."""
    values = ", ".join(f"i64 {offset}" for offset in offsets)
    code.declared.add(f"@{table} = private unnamed_addr constant [{len(offsets)} x i64] [{values}]")
    return code.emit(f"load i64, ptr {code.emit(f'getelementptr i64, ptr @{table}, i64 {number}')}")


def result_lines(kernel: Microkernel, result: Result) -> tuple[int, ...]:
    """Return the lines of the result, which are prefetched before its stores.

    If the addresses of rows are only known at run time, the result is a buffer that is in a cache already.
    """
    if is_run_time(result.rows):
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
    """Return the lines to prefetch during the reduction, rather than at its start."""
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
        each = -(-len(lines) // iterations)  # past the last line, the last one is repeated
        spreads.append(Spread(base, f"{kernel.name}_result", result.dtype, lines, each, to_write=True))
    return spreads


def new_lines(
    rows: Sequence[int], loops: Sequence[tuple[int, int]], distance: int, element_bytes: int
) -> tuple[int, ...]:
    """Return the lines of the tile of the next call that this call does not read, in elements from its address.

    Parameters
    ----------
    rows : sequence of int
        Address of each row of the tile, elements.
    loops : sequence of (int, int)
        Iterations and stride of each loop of the reduction, elements.
    distance : int
        Elements from the tile of this call to that of the next one.
    element_bytes : int

    Returns
    -------
    tuple of int
        Empty if they are in few runs, or too many.
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
    present_lines, next_lines = np.unique(offsets // per_line), np.unique((offsets + distance) // per_line)
    fresh = np.setdiff1d(next_lines, present_lines, assume_unique=True)
    if not 0 < len(fresh) <= MOST_LINES or 1 + np.count_nonzero(np.diff(fresh) > 1) < _LEAST_RUNS:
        return ()
    return tuple((fresh * per_line).tolist())
