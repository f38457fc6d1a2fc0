"""Kernels that only move elements: permuted dimensions, concatenated tensors.

If the last dimension stays the last, rows are copied. If another one becomes the last, square tiles of as many rows as
a vector has lanes are transposed in registers, so that whole vectors are read and written on both sides. A few rows
(the colours of an image) are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from anatune.core.sizes import is_run_time, least_size
from anatune.emit.kernels import (
    Function,
    Loops,
    emit_call,
    finish_function,
    mask_lanes_below,
    open_kernel,
    start_function,
    write_spread_loop,
)
from anatune.emit.llvm import LlvmCode, lane_mask
from anatune.emit.script import Script, write_affine
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["ConcatKernel", "PermuteKernel", "concat_program", "permute_program"]

_BITS = {"bfloat16": "float16", "uint8": "int8"}
"""Dtype -> another dtype of the same size, in whose registers its elements are moved."""
_UNROLL = 4
"""The number of vectors in one step of a copy."""
_FEW = 4
"""The most rows that are interleaved, which takes as many shuffles for each vector."""
_ROWS = 16
"""The rows of a part that a concatenation copies before the next part; shared cache lines stay in the cache."""
_PARALLEL_FROM = 1 << 15
"""The least elements of a move that runs in several threads: a parallel loop costs some microseconds."""
_CHUNKS = 4
"""The number of parts of the longest loop for each thread."""


@dataclass(frozen=True)
class PermuteKernel:
    """A tensor whose dimension ``axes[k]`` becomes dimension k."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "permute"

    @property
    def loops(self) -> list[_MoveLoop]:
        """The dimensions of the result in order; dimensions that are adjacent on both sides are merged."""
        size = len(self.shape)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(size)]
        loops: list[_MoveLoop] = []
        for axis in self.axes:
            if self.shape[axis] == 1:
                continue
            if loops and loops[-1].read == strides[axis] * self.shape[axis]:
                loops[-1] = _MoveLoop(loops[-1].extent * self.shape[axis], strides[axis], 0)
            else:
                loops.append(_MoveLoop(self.shape[axis], strides[axis], 0))
        below = 1
        for index in range(len(loops) - 1, -1, -1):
            loops[index] = loops[index]._replace(write=below)
            below *= loops[index].extent
        return loops or [_MoveLoop(1, 1, 1)]


@dataclass(frozen=True)
class ConcatKernel:
    """The concatenation of matrices with `outer` rows along their rows, which have the `lengths`."""

    outer: int
    lengths: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "concat"


class _MoveLoop(NamedTuple):
    """A dimension: its extent, and the stride where it is read and where it is written."""

    extent: int
    read: int
    write: int


def permute_program(kernel: PermuteKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls); parameters are the data and the result.

    Parameters
    ----------
    lanes : int
        The number of float32 elements in a vector.
    """
    shapes = {"data": kernel.shape, "result": tuple(kernel.shape[axis] for axis in kernel.axes)}
    *outer, last = kernel.loops
    work = math.prod(kernel.shape)
    chunks = _CHUNKS * threads if threads > 1 and (is_run_time(work) or work >= _PARALLEL_FROM) else 1
    functions: dict[object, tuple[str, Function]] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes, dtypes=dict.fromkeys(shapes, kernel.dtype))

    def write_calls(
        function: str, loops: Sequence[_MoveLoop], band: _MoveLoop, start: tuple[int, int], *sizes: int
    ) -> None:
        """Write the calls of a function whose own loop is `band`, within other loops."""
        bands = _band_count(band.extent, _product(loops), chunks) if band.extent != 1 else 1
        terms = _digits("chunk", [*loops, _MoveLoop(bands, 0, 0)])
        first, end = _band_bounds(f"(chunk % {bands})", bands, band.extent)
        offsets = _call_offsets([*terms, (first, band)], *start)
        write_call = partial(emit_call, text, function, offsets, f"{end} - {first}", *_unknown_sizes(*sizes))
        write_spread_loop(
            text, "chunk", _product(loops) * bands, write_call, threads=threads, work=work, least=_PARALLEL_FROM
        )

    if last.read == 1:  # copy rows; those of the dimension before are copied by one call
        row = outer.pop() if outer else _MoveLoop(1, last.extent, last.extent)
        write_calls(f"{name}_0", outer, row, (0, 0), last.extent, row.read, row.write)
        return str(text), module_ir([_copy(f"{name}_0", lanes, kernel.dtype, last.extent, row.read, row.write)])
    along = next(loop for loop in outer if loop.read == 1)
    outer.remove(along)
    is_few = not is_run_time(last.extent) and last.extent <= _FEW and along.write == last.extent
    for start, count, rows in _split_extent(last.extent, last.extent if is_few else lanes):
        for first, tiles, columns in _split_extent(along.extent, lanes):
            tile = _TransposedTile(columns, rows, last.read, along.write, is_few)
            own_name = f"{name}_{len(functions)}"
            function, _ = functions.setdefault(tile, (own_name, _transpose_tiles(own_name, lanes, kernel.dtype, tile)))
            outer_loops = [*outer, _MoveLoop(count, rows * last.read, rows)]
            band = _MoveLoop(tiles, lanes, lanes * along.write)
            corner = (start * last.read + first, start + first * along.write)
            with text.scope(*(f"if {size} > 0:" for size in _unknown_sizes(rows, columns))):
                write_calls(function, outer_loops, band, corner, *tile[:4])
    return str(text), module_ir([function for _, function in functions.values()])


def concat_program(kernel: ConcatKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR that it calls); parameters are the parts and the result."""
    total = sum(kernel.lengths)
    shapes: dict[str, tuple[int, ...]] = {
        f"part{number}": (kernel.outer, length) for number, length in enumerate(kernel.lengths)
    }
    shapes["result"] = (kernel.outer, total)
    functions: dict[int, tuple[str, Function]] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes, dtypes=dict.fromkeys(shapes, kernel.dtype))
    chunks = -(-kernel.outer // _ROWS)
    first, end = _band_bounds("chunk", chunks, kernel.outer)

    def write_band() -> None:
        start = 0
        for part, length in zip(shapes, kernel.lengths, strict=False):
            if is_run_time(length) or length:
                label = f"{name}_{len(functions)}"
                label, _ = functions.setdefault(
                    length, (label, _copy(label, lanes, kernel.dtype, length, length, total))
                )
                offsets = [(part, write_affine([(first, length)])), ("result", write_affine([(first, total)], start))]
                emit_call(text, label, offsets, f"{end} - {first}", *_unknown_sizes(length, length, total))
                start += length

    write_spread_loop(
        text, "chunk", chunks, write_band, threads=threads, work=kernel.outer * total, least=_PARALLEL_FROM
    )
    return str(text), module_ir([function for _, function in functions.values()])


def _unknown_sizes(*sizes: int) -> list[str]:
    """Return the sizes that are known only at run time."""
    return [str(size) for size in sizes if is_run_time(size)]


def _split_extent(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Return (start, count, size) of the whole parts and of the remaining one."""
    whole = extent // size
    parts = [(0, whole, size), (whole * size, 1, extent % size)]
    return [part for part in parts if is_run_time(part) or (part[1] and part[2])]


def _call_offsets(terms: Sequence[tuple[str, _MoveLoop]], read: int, write: int) -> list[tuple[str, str]]:
    """Return where a call reads and writes: sums of terms, each a number times the strides of a dimension."""
    return [
        ("data", write_affine([(number, loop.read) for number, loop in terms], read)),
        ("result", write_affine([(number, loop.write) for number, loop in terms], write)),
    ]


def _product(loops: Sequence[_MoveLoop]) -> int:
    return math.prod(loop.extent for loop in loops)


def _band_count(extent: int, others: int, chunks: int) -> int:
    """Return the number of parts of a loop that makes at least so many chunks, whatever the sizes at run time are."""
    bands = max(1, -(-chunks // least_size(others)))
    return bands if is_run_time(extent) else max(1, min(extent, bands))


def _band_bounds(variable: str, parts: int, extent: int) -> tuple[str, str]:
    """Return where a part begins and ends."""
    if parts == 1:
        return "0", str(extent)
    return f"({variable} * {extent} // {parts})", f"(({variable} + 1) * {extent} // {parts})"


def _digits(variable: str, loops: Sequence[_MoveLoop]) -> list[tuple[str, _MoveLoop]]:
    """Return the digits of a fused variable, outermost loop first."""
    digits, below = [], 1
    for loop in reversed(loops):
        digits.append((f"({variable} // {below} % {loop.extent})", loop))
        below *= loop.extent
    return digits[::-1]


def _begin_function(code: LlvmCode, name: str, **sizes: int) -> dict[str, str]:
    """Write the head of a function that repeats an operation; return the sizes, as arguments if unknown.

    Parameters of the function: data, offset, result, offset, number of repetitions, unknown sizes.
    """
    start_function(code, name, 2, "count", *(size for size in sizes if is_run_time(sizes[size])))
    code.line(f"  %from = getelementptr {code.scalar}, ptr %p0, i64 %o0")
    code.line(f"  %to = getelementptr {code.scalar}, ptr %p1, i64 %o1")
    code.line("  %none = icmp sle i64 %count, 0")
    code.line("  br i1 %none, label %done, label %outer")
    code.line("outer:")
    code.line("  %n = phi i64 [0, %entry], [%n_next, %outer_end]")
    code.line("  %a = phi ptr [%from, %entry], [%a_next, %outer_end]")
    code.line("  %b = phi ptr [%to, %entry], [%b_next, %outer_end]")
    return {name: f"%{name}" if is_run_time(size) else str(size) for name, size in sizes.items()}


def _end_function(code: LlvmCode, read: str, write: str) -> Function:
    """Close the loop over repetitions, with these strides, and the function."""
    code.line("  br label %outer_end")
    code.line("outer_end:")
    code.line(f"  %a_next = getelementptr {code.scalar}, ptr %a, i64 {read}")
    code.line(f"  %b_next = getelementptr {code.scalar}, ptr %b, i64 {write}")
    code.line("  %n_next = add nuw nsw i64 %n, 1")
    code.line("  %is_last = icmp eq i64 %n_next, %count")
    code.line("  br i1 %is_last, label %done, label %outer, !llvm.loop !0")
    code.line("done:")
    return finish_function(code)


def _copy(name: str, lanes: int, dtype: str, length: int, read: int, write: int) -> Function:
    """Return the function that copies rows of `length` elements, with the strides `read` and `write`."""
    code = LlvmCode(lanes, dtype := _BITS.get(dtype, dtype), "add")
    sizes = _begin_function(code, name, length=length, read=read, write=write)
    loops = Loops(code, "outer")
    end = sizes["length"]

    def write_step(index: str, lane_counts: Sequence[int | str]) -> list[str]:
        kind = code.scalar
        source, target = (code.emit(f"getelementptr {kind}, ptr {pointer}, i64 {index}") for pointer in ("%a", "%b"))
        for vector, count in enumerate(lane_counts):
            value = code.load_vector(code.address(source, dtype, vector * lanes), dtype, 1, count)
            code.store_vector(value, code.address(target, dtype, vector * lanes), dtype, count)
        return []

    whole, single = (code.emit(f"and i64 {end}, {-size}") for size in (lanes * _UNROLL, lanes))
    loops.over("0", whole, str(lanes * _UNROLL), [], lambda index, _: write_step(index, [lanes] * _UNROLL))
    if is_run_time(length):
        loops.over(whole, single, str(lanes), [], lambda index, _: write_step(index, [lanes]))
        mask = mask_lanes_below(code, code.emit(f"sub i64 {end}, {single}"))
        loops.over(single, end, str(lanes), [], lambda index, _: write_step(index, [mask]))
    else:
        remainder = length % (lanes * _UNROLL)
        write_step(whole, [min(lanes, remainder - start) for start in range(0, remainder, lanes)])
    return _end_function(code, sizes["read"], sizes["write"])


class _TransposedTile(NamedTuple):
    """A tile that is transposed at once: columns of some rows, which become rows.

    Attributes
    ----------
    columns, rows : int
    read, write : int
        The stride between rows where they are read, and between columns where they are written.
    few : bool
        Whether columns are adjacent where they are written.
    """

    columns: int
    rows: int
    read: int
    write: int
    few: bool


def _transpose_tiles(name: str, lanes: int, dtype: str, tile: _TransposedTile) -> Function:
    """Return the function that transposes adjacent tiles."""
    code = LlvmCode(lanes, dtype := _BITS.get(dtype, dtype), "add")
    sizes = _begin_function(code, name, columns=tile.columns, rows=tile.rows, read=tile.read, write=tile.write)
    columns, rows = (lanes if is_run_time(size) else size for size in (tile.columns, tile.rows))
    lanes_of_row, lanes_of_column = (
        mask_lanes_below(code, sizes[name]) if is_run_time(size) else size
        for name, size in (("columns", tile.columns), ("rows", tile.rows))
    )

    def address(pointer: str, number: int, step: str) -> str:
        return code.emit(f"getelementptr {code.scalar}, ptr {pointer}, i64 {code.emit(f'mul i64 {step}, {number}')}")

    def valid_lanes(used: int | str, number: int, count: str) -> int | str:
        """Return the lanes of a vector that exist; all others if its number is not less than the count."""
        if not count.startswith("%"):
            return used
        is_there, kind = code.emit(f"icmp ult i64 {number}, {count}"), f"<{lanes} x i1>"
        return code.emit(f"select i1 {is_there}, {kind} {lane_mask(used, lanes)}, {kind} zeroinitializer")

    vectors = [
        code.load_vector(address("%a", row, sizes["read"]), dtype, 1, valid_lanes(lanes_of_row, row, sizes["rows"]))
        for row in range(rows)
    ]
    if tile.few:
        total = code.emit(f"mul i64 {sizes['columns']}, {rows}")
        for number, value in enumerate(_interleave(code, vectors)):
            used: int | str = min(lanes, tile.columns * rows - number * lanes)
            if is_run_time(tile.columns):
                used = mask_lanes_below(code, code.emit(f"sub i64 {total}, {number * lanes}"))
            if isinstance(used, str) or used > 0:
                code.store_vector(value, code.address("%b", dtype, number * lanes), dtype, used)
    else:
        for column, value in enumerate(code.transpose(vectors)[:columns]):
            existing = valid_lanes(lanes_of_column, column, sizes["columns"])
            code.store_vector(value, address("%b", column, sizes["write"]), dtype, existing)
    return _end_function(code, str(lanes), code.emit(f"mul i64 {sizes['write']}, {lanes}"))


def _interleave(code: LlvmCode, vectors: Sequence[str]) -> list[str]:
    """Return the elements of a few vectors in turn."""
    lanes, count = code.lanes, len(vectors)
    mixed = []
    for number in range(count):
        positions = [divmod(number * lanes + lane, count) for lane in range(lanes)]
        value = vectors[0]
        for row in range(1, count):  # take lanes of this row from its vector, the others from the value so far
            order = [
                lanes + column if source_row == row else column if source_row == 0 and row == 1 else lane
                for lane, (column, source_row) in enumerate(positions)
            ]
            value = code.shuffle(value, vectors[row], order)
        mixed.append(value)
    return mixed
