"""Kernels that only move elements: dimensions in another order, tensors behind each other.

Where the last dimension stays the last, rows are copied. Where another one becomes the last, squares of as many rows as
a vector has lanes are transposed in registers, so that both sides are read and written in whole vectors; few of them
(the colours of an image) are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from anatune.core.sizes import at_run_time, fewest
from anatune.emit.kernels import (
    Function,
    Loops,
    call,
    finished,
    lanes_below,
    open_kernel,
    spread_over,
    start_function,
)
from anatune.emit.llvm import LlvmCode, lane_mask
from anatune.emit.script import Script, affine
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["ConcatKernel", "PermuteKernel", "concat_program", "permute_program"]

_BITS = {"bfloat16": "float16", "uint8": "int8"}
"""Dtype -> another one of as many bits, in whose registers its elements move."""
_UNROLL = 4
"""Vectors of a step of a copy."""
_FEW = 4
"""Rows up to which they are interleaved: as many shuffles a vector."""
_ROWS = 16
"""Rows of a part before the next part's, in a concatenation: lines that two parts share are still in the cache."""
_PARALLEL_FROM = 1 << 15
"""Elements from which on a move is spread over threads: a parallel loop costs some microseconds."""
_CHUNKS = 4
"""Parts of the longest loop for each thread."""


@dataclass(frozen=True)
class PermuteKernel:
    """A tensor whose dimension ``axes[k]`` becomes the k-th one."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "permute"

    @property
    def loops(self) -> list[_Loop]:
        """Return the result's dimensions in order; those that lie next to each other on both sides are one."""
        size = len(self.shape)
        strides = [math.prod(self.shape[axis + 1 :]) for axis in range(size)]
        loops: list[_Loop] = []
        for axis in self.axes:
            if self.shape[axis] == 1:
                continue
            if loops and loops[-1].read == strides[axis] * self.shape[axis]:
                loops[-1] = _Loop(loops[-1].extent * self.shape[axis], strides[axis], 0)
            else:
                loops.append(_Loop(self.shape[axis], strides[axis], 0))
        below = 1
        for place in range(len(loops) - 1, -1, -1):
            loops[place] = loops[place]._replace(write=below)
            below *= loops[place].extent
        return loops or [_Loop(1, 1, 1)]


@dataclass(frozen=True)
class ConcatKernel:
    """Matrices of `outer` rows next to each other: rows of all `lengths` together."""

    outer: int
    lengths: tuple[int, ...]
    dtype: str = "float32"
    kind: str = "concat"


class _Loop(NamedTuple):
    """A dimension: elements, and how far neighbours lie apart where they are read and where they are written."""

    extent: int
    read: int
    write: int


def permute_program(kernel: PermuteKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls); its parameters are the data and the result.

    Parameters
    ----------
    lanes : int
        float32 elements of a vector.
    """
    shapes = {"data": kernel.shape, "result": tuple(kernel.shape[axis] for axis in kernel.axes)}
    *outer, last = kernel.loops
    work = math.prod(kernel.shape)
    chunks = _CHUNKS * threads if threads > 1 and (at_run_time(work) or work >= _PARALLEL_FROM) else 1
    functions: dict[object, tuple[str, Function]] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes, dtypes=dict.fromkeys(shapes, kernel.dtype))

    def moved(function: str, loops: Sequence[_Loop], band: _Loop, start: tuple[int, int], *sizes: int) -> None:
        """Write the calls of a function whose own loop is `band`, inside other loops."""
        bands = _bands(band.extent, _product(loops), chunks) if band.extent != 1 else 1
        terms = _digits("chunk", [*loops, _Loop(bands, 0, 0)])
        first, end = _band(f"(chunk % {bands})", bands, band.extent)
        places = _places([*terms, (first, band)], *start)
        one = partial(call, text, function, places, f"{end} - {first}", *_late(*sizes))
        spread_over(text, "chunk", _product(loops) * bands, one, threads=threads, work=work, least=_PARALLEL_FROM)

    if last.read == 1:  # rows are copied, those of the dimension before together
        row = outer.pop() if outer else _Loop(1, last.extent, last.extent)
        moved(f"{name}_0", outer, row, (0, 0), last.extent, row.read, row.write)
        return str(text), module_ir([_copy(f"{name}_0", lanes, kernel.dtype, last.extent, row.read, row.write)])
    along = next(loop for loop in outer if loop.read == 1)
    outer.remove(along)
    few = not at_run_time(last.extent) and last.extent <= _FEW and along.write == last.extent
    for start, count, rows in _parts(last.extent, last.extent if few else lanes):
        for first, tiles, columns in _parts(along.extent, lanes):
            tile = _Tile(columns, rows, last.read, along.write, few)
            own = f"{name}_{len(functions)}"
            function, _ = functions.setdefault(tile, (own, _turned(own, lanes, kernel.dtype, tile)))
            inside = [*outer, _Loop(count, rows * last.read, rows)]
            band = _Loop(tiles, lanes, lanes * along.write)
            corner = (start * last.read + first, start + first * along.write)
            with text.scope(*(f"if {size} > 0:" for size in _late(rows, columns))):
                moved(function, inside, band, corner, *tile[:4])
    return str(text), module_ir([function for _, function in functions.values()])


def concat_program(kernel: ConcatKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls); its parameters are the parts and the result."""
    total = sum(kernel.lengths)
    shapes: dict[str, tuple[int, ...]] = {
        f"part{number}": (kernel.outer, length) for number, length in enumerate(kernel.lengths)
    }
    shapes["result"] = (kernel.outer, total)
    functions: dict[int, tuple[str, Function]] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes, dtypes=dict.fromkeys(shapes, kernel.dtype))
    chunks = -(-kernel.outer // _ROWS)
    first, end = _band("chunk", chunks, kernel.outer)

    def one() -> None:
        start = 0
        for part, length in zip(shapes, kernel.lengths, strict=False):
            if at_run_time(length) or length:
                own = f"{name}_{len(functions)}"
                own, _ = functions.setdefault(length, (own, _copy(own, lanes, kernel.dtype, length, length, total)))
                places = [(part, affine([(first, length)])), ("result", affine([(first, total)], start))]
                call(text, own, places, f"{end} - {first}", *_late(length, length, total))
                start += length

    spread_over(text, "chunk", chunks, one, threads=threads, work=kernel.outer * total, least=_PARALLEL_FROM)
    return str(text), module_ir([function for _, function in functions.values()])


def _late(*sizes: int) -> list[str]:
    """Return those of some sizes that are known at run time."""
    return [str(size) for size in sizes if at_run_time(size)]


def _parts(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Return (start, count, size) of whole parts and of the rest."""
    whole = extent // size
    found = [(0, whole, size), (whole * size, 1, extent % size)]
    return [part for part in found if at_run_time(part) or (part[1] and part[2])]


def _places(terms: Sequence[tuple[str, _Loop]], read: int, write: int) -> list[tuple[str, str]]:
    """Return where a call reads and writes: the sum of terms, each a number times a dimension's steps."""
    return [
        ("data", affine([(number, loop.read) for number, loop in terms], read)),
        ("result", affine([(number, loop.write) for number, loop in terms], write)),
    ]


def _product(loops: Sequence[_Loop]) -> int:
    return math.prod(loop.extent for loop in loops)


def _bands(extent: int, others: int, chunks: int) -> int:
    """Return into how many parts a loop is cut so that there are so many chunks, whatever is known at run time."""
    bands = max(1, -(-chunks // fewest(others)))
    return bands if at_run_time(extent) else max(1, min(extent, bands))


def _band(variable: str, parts: int, extent: int) -> tuple[str, str]:
    """Return where a part begins and ends."""
    if parts == 1:
        return "0", str(extent)
    return f"({variable} * {extent} // {parts})", f"(({variable} + 1) * {extent} // {parts})"


def _digits(variable: str, loops: Sequence[_Loop]) -> list[tuple[str, _Loop]]:
    """Return the digits of one fused variable, outer loop first."""
    digits, below = [], 1
    for loop in reversed(loops):
        digits.append((f"({variable} // {below} % {loop.extent})", loop))
        below *= loop.extent
    return digits[::-1]


def _start(code: LlvmCode, name: str, **sizes: int) -> dict[str, str]:
    """Write the head of a function that repeats what it does; return the sizes, arguments where they are known late.

    Its parameters: data, offset, result, offset, how often, those sizes.
    """
    start_function(code, name, 2, "count", *(size for size in sizes if at_run_time(sizes[size])))
    code.line(f"  %from = getelementptr {code.scalar}, ptr %p0, i64 %o0")
    code.line(f"  %to = getelementptr {code.scalar}, ptr %p1, i64 %o1")
    code.line("  %none = icmp sle i64 %count, 0")
    code.line("  br i1 %none, label %done, label %outer")
    code.line("outer:")
    code.line("  %n = phi i64 [0, %entry], [%n_next, %outer_end]")
    code.line("  %a = phi ptr [%from, %entry], [%a_next, %outer_end]")
    code.line("  %b = phi ptr [%to, %entry], [%b_next, %outer_end]")
    return {name: f"%{name}" if at_run_time(size) else str(size) for name, size in sizes.items()}


def _end(code: LlvmCode, read: str, write: str) -> Function:
    """Close the loop over what lies so far apart, and the function."""
    code.line("  br label %outer_end")
    code.line("outer_end:")
    code.line(f"  %a_next = getelementptr {code.scalar}, ptr %a, i64 {read}")
    code.line(f"  %b_next = getelementptr {code.scalar}, ptr %b, i64 {write}")
    code.line("  %n_next = add nuw nsw i64 %n, 1")
    code.line("  %is_last = icmp eq i64 %n_next, %count")
    code.line("  br i1 %is_last, label %done, label %outer, !llvm.loop !0")
    code.line("done:")
    return finished(code)


def _copy(name: str, lanes: int, dtype: str, length: int, read: int, write: int) -> Function:
    """Return the function that copies rows of `length` elements, which lie so far apart."""
    code = LlvmCode(lanes, dtype := _BITS.get(dtype, dtype), "add")
    sizes = _start(code, name, length=length, read=read, write=write)
    loops = Loops(code, "outer")
    end = sizes["length"]

    def copied(place: str, used: Sequence[int | str]) -> list[str]:
        kind = code.scalar
        source, target = (code.emit(f"getelementptr {kind}, ptr {pointer}, i64 {place}") for pointer in ("%a", "%b"))
        for vector, count in enumerate(used):
            value = code.load_vector(code.address(source, dtype, vector * lanes), dtype, 1, count)
            code.store_vector(value, code.address(target, dtype, vector * lanes), dtype, count)
        return []

    whole, single = (code.emit(f"and i64 {end}, {-size}") for size in (lanes * _UNROLL, lanes))
    loops.over("0", whole, str(lanes * _UNROLL), [], lambda place, _: copied(place, [lanes] * _UNROLL))
    if at_run_time(length):
        loops.over(whole, single, str(lanes), [], lambda place, _: copied(place, [lanes]))
        mask = lanes_below(code, code.emit(f"sub i64 {end}, {single}"))
        loops.over(single, end, str(lanes), [], lambda place, _: copied(place, [mask]))
    else:
        rest = length % (lanes * _UNROLL)
        copied(whole, [min(lanes, rest - start) for start in range(0, rest, lanes)])
    return _end(code, sizes["read"], sizes["write"])


class _Tile(NamedTuple):
    """What is turned at once: columns of some rows, which become rows.

    Attributes
    ----------
    columns, rows : int
    read, write : int
        Elements from one row to the next where they are read, and from one column to the next where they are written.
    few : bool
        Columns lie behind each other where they are written.
    """

    columns: int
    rows: int
    read: int
    write: int
    few: bool


def _turned(name: str, lanes: int, dtype: str, tile: _Tile) -> Function:
    """Return the function that turns tiles next to each other."""
    code = LlvmCode(lanes, dtype := _BITS.get(dtype, dtype), "add")
    sizes = _start(code, name, columns=tile.columns, rows=tile.rows, read=tile.read, write=tile.write)
    columns, rows = (lanes if at_run_time(size) else size for size in (tile.columns, tile.rows))
    of_row, of_column = (
        lanes_below(code, sizes[name]) if at_run_time(size) else size
        for name, size in (("columns", tile.columns), ("rows", tile.rows))
    )

    def place(pointer: str, number: int, step: str) -> str:
        return code.emit(f"getelementptr {code.scalar}, ptr {pointer}, i64 {code.emit(f'mul i64 {step}, {number}')}")

    def where(used: int | str, number: int, count: str) -> int | str:
        """Return which lanes of a vector exist, which does if its number is less than the count."""
        if not count.startswith("%"):
            return used
        is_there, kind = code.emit(f"icmp ult i64 {number}, {count}"), f"<{lanes} x i1>"
        return code.emit(f"select i1 {is_there}, {kind} {lane_mask(used, lanes)}, {kind} zeroinitializer")

    vectors = [
        code.load_vector(place("%a", row, sizes["read"]), dtype, 1, where(of_row, row, sizes["rows"]))
        for row in range(rows)
    ]
    if tile.few:
        total = code.emit(f"mul i64 {sizes['columns']}, {rows}")
        for number, value in enumerate(_interleaved(code, vectors)):
            used: int | str = min(lanes, tile.columns * rows - number * lanes)
            if at_run_time(tile.columns):
                used = lanes_below(code, code.emit(f"sub i64 {total}, {number * lanes}"))
            if isinstance(used, str) or used > 0:
                code.store_vector(value, code.address("%b", dtype, number * lanes), dtype, used)
    else:
        for column, value in enumerate(code.transpose(vectors)[:columns]):
            existing = where(of_column, column, sizes["columns"])
            code.store_vector(value, place("%b", column, sizes["write"]), dtype, existing)
    return _end(code, str(lanes), code.emit(f"mul i64 {sizes['write']}, {lanes}"))


def _interleaved(code: LlvmCode, vectors: Sequence[str]) -> list[str]:
    """Return the elements of a few vectors in turn."""
    lanes, count = code.lanes, len(vectors)
    mixed = []
    for number in range(count):
        places = [divmod(number * lanes + lane, count) for lane in range(lanes)]
        value = vectors[0]
        for row in range(1, count):  # lanes of this row come from it, the others from what there is
            order = [
                lanes + column if own == row else column if own == 0 and row == 1 else lane
                for lane, (column, own) in enumerate(places)
            ]
            value = code.shuffle(value, vectors[row], order)
        mixed.append(value)
    return mixed
