"""Kernels that only move elements: dimensions in another order, tensors behind each other, rows put into a tensor.

Where the last dimension stays the last, rows are copied. Where another one becomes the last, squares of as many rows as
a vector has lanes are transposed in registers, so that both sides are read and written in whole vectors; few of them
(the colours of an image) are interleaved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.core.sizes import at_run_time, symbols_of
from anatune.emit.kernels import Function, call, finished, loop_over, open_kernel, start_function
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script, affine, open_function, shape_tuple, whole_region
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["ConcatKernel", "PermuteKernel", "PutKernel", "concat_program", "permute_program", "put_program"]

_FLOAT = "float32"
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
    kind: str = "concat"


@dataclass(frozen=True)
class PutKernel:
    """Elements of shape `rows` that go into a tensor at some places along an axis.

    Attributes
    ----------
    first : int
        Of the places, where these are neighbours; -1: a tensor has them, int64.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    axis: int
    dtype: str
    first: int = -1
    kind: str = "put"

    @property
    def is_told(self) -> bool:
        """Whether a tensor has the places."""
        return not at_run_time(self.first) and self.first < 0


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
    functions: dict[tuple[int, int], _Function] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes)
    spread = threads > 1 and math.prod(kernel.shape) >= _PARALLEL_FROM
    if last.read == 1:  # rows are copied, those of the dimension before together
        row = outer.pop() if outer else _Loop(1, last.extent, last.extent)
        bands = _bands(row.extent, math.prod(loop.extent for loop in outer), threads) if spread else 1
        function = _copy(f"{name}_0", lanes, last.extent, row.read, row.write)
        with text.scope(loop_over("chunk", _product(outer) * bands, parallel=spread)):
            terms = _digits("chunk", [*outer, _Loop(bands, 0, 0)])
            first, end = _band(f"(chunk % {bands})", bands, row.extent)
            call(text, f"{name}_0", _places([*terms, (first, row)]), f"{end} - {first}")
        return str(text), module_ir([function])
    along = next(loop for loop in outer if loop.read == 1)
    outer.remove(along)
    few = last.extent <= _FEW and along.write == last.extent
    width = last.extent if few else lanes
    bands = _bands(along.extent // lanes, _product(outer) * -(-last.extent // width), threads) if spread else 1
    blocks = [(0, last.extent // width, width), (last.extent // width * width, 1, last.extent % width)]
    for start, count, rows in blocks:
        if not (count and rows):
            continue
        total = _product(outer) * count
        tiles, tail = divmod(along.extent, lanes)
        for columns, first_tile in ((lanes, 0), (tail, tiles * lanes)):
            parts = bands if columns == lanes else 1
            if not columns or (columns == lanes and not tiles):
                continue
            own = functions.setdefault(
                (columns, rows), _Function(f"{name}_{len(functions)}", lanes, along, last, columns, rows, few)
            )
            with text.scope(loop_over("chunk", total * parts, parallel=spread)):
                terms = _digits("chunk", [*outer, _Loop(count, width * last.read, width), _Loop(parts, 0, 0)])
                first, end = _band(f"(chunk % {parts})", parts, tiles if columns == lanes else 1)
                tile = _Loop(tiles, lanes * along.read, lanes * along.write)
                read = start * last.read + first_tile * along.read
                write = start * last.write + first_tile * along.write
                call(text, own.name, _places([*terms, (first, tile)], read, write), f"{end} - {first}")
    return str(text), module_ir([function.function for function in functions.values()])


def concat_program(kernel: ConcatKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls); its parameters are the parts and the result."""
    total = sum(kernel.lengths)
    shapes: dict[str, tuple[int, ...]] = {
        f"part{number}": (kernel.outer, length) for number, length in enumerate(kernel.lengths)
    }
    shapes["result"] = (kernel.outer, total)
    functions: dict[int, tuple[str, Function]] = {}
    text = Script()
    open_kernel(text, name, "moves", shapes)
    spread = threads > 1 and kernel.outer * total >= _PARALLEL_FROM
    chunks = -(-kernel.outer // _ROWS)
    start = 0
    with text.scope(loop_over("chunk", chunks, parallel=spread)):
        first, end = _band("chunk", chunks, kernel.outer)
        for part, length in zip(shapes, kernel.lengths, strict=False):
            if not length:
                continue
            function = f"{name}_{len(functions)}"
            function, _ = functions.setdefault(length, (function, _copy(function, lanes, length, length, total)))
            places = [(part, affine([(first, length)])), ("result", affine([(first, total)], start))]
            call(text, function, places, f"{end} - {first}")
            start += length
    return str(text), module_ir([function for _, function in functions.values()])


def put_program(kernel: PutKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, nothing); its parameters are the tensor, which is written, rows, places."""
    axis, count = kernel.axis, len(kernel.rows)
    shapes = {"held": kernel.shape, "rows": kernel.rows, **({"places": (kernel.rows[axis],)} if kernel.is_told else {})}
    dtypes = {"held": kernel.dtype, "rows": kernel.dtype, "places": "int64"}
    symbols = sorted(symbols_of((*shapes.values(), kernel.first)))
    text = Script()
    open_function(text, name, [*((f"{one}_", "T.handle") for one in shapes), *((one, "T.int64") for one in symbols)])
    for one, shape in shapes.items():
        text.line(f'{one} = T.match_buffer({one}_, {shape_tuple(shape)}, "{dtypes[one]}")')
    text.open('with T.sblock("moves"):')
    text.line(f"T.reads({', '.join(f'{one}[{whole_region(shapes[one])}]' for one in [*shapes][1:])})")
    text.line(f"T.writes(held[{whole_region(kernel.shape)}])")
    for place, size in enumerate(kernel.rows):
        is_vector = place == count - 1 != axis and not at_run_time(size) and size % lanes == 0
        if is_vector:
            text.open(f"for i{place}_ in T.serial({size // lanes}):")
            text.open(f"for lane in T.vectorized({lanes}):")
        else:
            text.open(f"for i{place} in T.serial({size}):")
    words = [f"i{place}" for place in range(count)]
    if is_vector:
        words[-1] = f"i{count - 1}_ * {lanes} + lane"
    to = [*words]
    to[axis] = f"places[{words[axis]}]" if kernel.is_told else f"{kernel.first} + {words[axis]}"
    text.line(f"held[{', '.join(to)}] = rows[{', '.join(words)}]")
    return str(text), ""


def _places(terms: Sequence[tuple[str, _Loop]], read: int = 0, write: int = 0) -> list[tuple[str, str]]:
    """Return where a call reads and writes: the sum of terms, each a number times a dimension's steps."""
    return [
        ("data", affine([(number, loop.read) for number, loop in terms], read)),
        ("result", affine([(number, loop.write) for number, loop in terms], write)),
    ]


def _product(loops: Sequence[_Loop]) -> int:
    return math.prod(loop.extent for loop in loops)


def _bands(extent: int, others: int, threads: int) -> int:
    """Return into how many parts a loop is cut so that all threads have work."""
    return max(1, min(extent, -(-_CHUNKS * threads // others)))


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


def _head(code: LlvmCode, name: str) -> None:
    start_function(code, name, 2, "count")
    code.line("  %from = getelementptr float, ptr %p0, i64 %o0")
    code.line("  %to = getelementptr float, ptr %p1, i64 %o1")
    code.line("  %none = icmp sle i64 %count, 0")
    code.line("  br i1 %none, label %done, label %outer")
    code.line("outer:")
    code.line("  %n = phi i64 [0, %entry], [%n_next, %outer_end]")
    code.line("  %a = phi ptr [%from, %entry], [%a_next, %outer_end]")
    code.line("  %b = phi ptr [%to, %entry], [%b_next, %outer_end]")


def _tail(code: LlvmCode, read: int, write: int) -> Function:
    """Close the loop over what lies so far apart, and the function."""
    code.line("  br label %outer_end")
    code.line("outer_end:")
    code.line(f"  %a_next = getelementptr float, ptr %a, i64 {read}")
    code.line(f"  %b_next = getelementptr float, ptr %b, i64 {write}")
    code.line("  %n_next = add nuw nsw i64 %n, 1")
    code.line("  %is_last = icmp eq i64 %n_next, %count")
    code.line("  br i1 %is_last, label %done, label %outer, !llvm.loop !0")
    code.line("done:")
    return finished(code)


def _copy(name: str, lanes: int, length: int, read: int, write: int) -> Function:
    """Return ``void name(ptr data, i64 offset, ptr result, i64 offset, i64 rows)``: rows of `length` elements."""
    code = LlvmCode(lanes, _FLOAT, "add")
    _head(code, name)
    step = lanes * _UNROLL
    whole = length // step

    def copied(source: str, target: str, elements: int) -> None:
        for start in range(0, elements, lanes):
            used = min(lanes, elements - start)
            value = code.load_vector(code.address(source, _FLOAT, start), _FLOAT, 1, used)
            code.store_vector(value, code.address(target, _FLOAT, start), _FLOAT, used)

    if whole:
        code.line("  br label %inner")
        code.line("inner:")
        code.line("  %m = phi i64 [0, %outer], [%m_next, %inner]")
        code.line(f"  %start = mul i64 %m, {step}")
        code.line("  %c = getelementptr float, ptr %a, i64 %start")
        code.line("  %d = getelementptr float, ptr %b, i64 %start")
        copied("%c", "%d", step)
        code.line("  %m_next = add nuw nsw i64 %m, 1")
        code.line(f"  %is_end = icmp eq i64 %m_next, {whole}")
        code.line("  br i1 %is_end, label %rest, label %inner, !llvm.loop !1")
        code.line("rest:")
    ends = [code.address(pointer, _FLOAT, whole * step) for pointer in ("%a", "%b")]
    copied(ends[0], ends[1], length - whole * step)
    return _tail(code, read, write)


class _Function:
    """Writes ``void name(ptr data, i64 offset, ptr result, i64 offset, i64 squares)``: squares along a dimension."""

    def __init__(self, name: str, lanes: int, along: _Loop, last: _Loop, columns: int, rows: int, few: bool) -> None:
        self.name = name
        self.code = code = LlvmCode(lanes, _FLOAT, "add")
        _head(code, name)
        vectors = [
            code.load_vector(code.address("%a", _FLOAT, row * last.read), _FLOAT, 1, columns) for row in range(rows)
        ]
        if few:
            for number, value in enumerate(self.interleaved(vectors)):
                used = min(lanes, columns * rows - number * lanes)
                if used > 0:
                    code.store_vector(value, code.address("%b", _FLOAT, number * lanes), _FLOAT, used)
        else:
            for column, value in enumerate(code.transpose(vectors)[:columns]):
                code.store_vector(value, code.address("%b", _FLOAT, column * along.write), _FLOAT, rows)
        self.function = _tail(code, lanes * along.read, lanes * along.write)

    def interleaved(self, vectors: Sequence[str]) -> list[str]:
        """Return the elements of a few vectors in turn."""
        code, lanes, count = self.code, self.code.lanes, len(vectors)
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
