"""Kernels that reduce one dimension: sums, means, extremes; the lanes lie along the last dimension.

One call of a function in LLVM IR reduces a block of columns, or, where nothing lies behind the reduced dimension, one
row across its lanes. Several sums go on next to each other, as an addition takes some cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anatune.core.sizes import at_run_time
from anatune.emit.kernels import (
    Loops,
    call,
    finished,
    lanes_below,
    one_over,
    only_lanes,
    open_kernel,
    spread_over,
    start_function,
    starts_of,
)
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script
from anatune.templates.cpu.program.microkernel import module_ir

__all__ = ["ReductionKernel", "reduction_program"]

_FLOAT = "float32"
_CHAINS = 8
"""Sums next to each other: the latency of an addition times those of a cycle."""
_PARALLEL_FROM = 1 << 14
"""Elements from which on a reduction is spread over threads: a parallel loop costs some microseconds."""
_INTRINSICS = {"max": "maximum", "min": "minimum"}
"""A NaN stays one, as in PyTorch; which zero does not matter."""


@dataclass(frozen=True)
class ReductionKernel:
    """What is reduced.

    Attributes
    ----------
    kind : str
        "sum", "mean", "max" or "min".
    outer, length, inner : int
        Of the data; the result has outer and inner. Each may be known at run time alone (`core.sizes`).
    """

    kind: str
    outer: int
    length: int
    inner: int


def reduction_program(kernel: ReductionKernel, name: str, threads: int, *, lanes: int) -> tuple[str, str]:
    """Return (the function in TVMScript, the LLVM IR it calls); its parameters are the data and the result.

    Parameters
    ----------
    lanes : int
        float32 elements of a vector.
    """
    shapes = {"data": (kernel.outer, kernel.length, kernel.inner), "result": (kernel.outer, kernel.inner)}
    inner, sizes = kernel.inner, {"data": kernel.length * kernel.inner, "result": kernel.inner}
    functions: list[_Function] = []
    text = Script()
    open_kernel(text, name, "reduction", shapes)
    for columns, count, first in _blocks(inner, lanes):
        function = _Function(kernel, f"{name}_{len(functions)}", lanes, columns)
        functions.append(function)
        numbers = {"length": kernel.length, "inner": inner, "columns": inner % lanes}
        image, place = f"(chunk // {count})", f"(chunk % {count}) * {columns or 1} + {first}"
        offsets = [(tensor, f"{image} * {size} + {place}") for tensor, size in sizes.items()]
        one = partial(call, text, function.name, offsets, *(str(numbers[number]) for number in function.numbers))
        work = kernel.outer * kernel.length * inner
        spread_over(text, "chunk", kernel.outer * count, one, threads=threads, work=work, least=_PARALLEL_FROM)
    return str(text), module_ir([function.function for function in functions])


def _blocks(inner: int, lanes: int) -> list[tuple[int, int, int]]:
    """Return (columns of a block, how many blocks, first column); 0 columns: less than a vector, known at run time."""
    if inner == 1:
        return [(1, 1, 0)]
    width = _CHAINS * lanes
    whole = inner // width
    if at_run_time(inner):
        return [(width, whole, 0), (lanes, inner % width // lanes, whole * width), (0, 1, inner // lanes * lanes)]
    return [block for block in [(width, whole, 0), (inner % width, 1, whole * width)] if block[0] and block[1]]


class _Function:
    """Writes ``void name(ptr data, i64 offset, ptr result, i64 offset)`` for some columns.

    Sizes that are known at run time are arguments behind those: the length, the columns that there are, and those of
    the block.
    """

    def __init__(self, kernel: ReductionKernel, name: str, lanes: int, columns: int) -> None:
        self.kernel, self.name, self.lanes = kernel, name, lanes
        self.code = code = LlvmCode(lanes, _FLOAT, "add")
        self.is_row = kernel.inner == 1
        vectors = 1 if self.is_row else max(1, -(-columns // lanes))
        self.numbers = [name for name in ("length", "inner") if at_run_time(getattr(kernel, name))]
        self.numbers += [] if columns else ["columns"]
        start_function(code, name, 2, *self.numbers)
        data, result = starts_of(code, 2)
        used: int | str = lanes if self.is_row else columns - (vectors - 1) * lanes
        self.used = [*[lanes] * (vectors - 1), used if columns else lanes_below(code, "%columns")]
        sums = self.reduced(data, vectors, max(1, _CHAINS // vectors))
        for vector, value in enumerate(sums):
            if kernel.kind == "mean":
                value = code.binary("mul", value, one_over(code, kernel.length, "length"))
            address = code.address(result, _FLOAT, vector * lanes)
            code.store_vector(value, address, _FLOAT, 1 if self.is_row else self.used[vector])
        self.function = finished(code)

    def reduced(self, data: str, vectors: int, chains: int) -> list[str]:
        """Return the results, one of all lanes where lanes are reduced, too."""
        code, kernel, loops = self.code, self.kernel, Loops(self.code)
        length = "%length" if at_run_time(kernel.length) else str(kernel.length)
        inner = "%inner" if at_run_time(kernel.inner) else str(kernel.inner)
        unit = str(self.lanes) if self.is_row else inner  # elements from one vector to the next
        units = code.emit(f"udiv i64 {length}, {self.lanes}") if self.is_row else length
        numbers = (code.emit(f"and i64 {units}, {-chains}"), units)
        whole, end = (code.emit(f"mul i64 {number}, {unit}") for number in numbers)
        places = [code.emit(f"mul i64 {unit}, {chain}") for chain in range(chains + 1)]

        def joined(place: str, count: int, sums: Sequence[str]) -> list[str]:
            starts = [code.emit(f"add i64 {place}, {offset}") for offset in places[:count]]
            loaded = [self.load(data, start, vector) for start in starts for vector in range(vectors)]
            return [*map(self.joined, sums, loaded), *sums[len(loaded) :]]

        def last(place: str, sums: Sequence[str], used: int | str) -> list[str]:
            value = code.load_vector(code.emit(f"getelementptr float, ptr {data}, i64 {place}"), _FLOAT, 1, used)
            return [self.joined(sums[0], only_lanes(code, value, used, self.neutral())), *sums[1:]]

        sums = [self.neutral()] * (chains * vectors)
        sums = loops.over("0", whole, places[chains], sums, lambda place, now: joined(place, chains, now))
        if at_run_time(kernel.length):
            first = loops.over(whole, end, unit, sums[:vectors], lambda place, now: joined(place, 1, now))
            if self.is_row:
                tail = lanes_below(code, code.emit(f"sub i64 {length}, {end}"))
                first = loops.over(end, length, unit, first, lambda place, now: last(place, now, tail))
            sums[:vectors] = first
        else:
            count, rest = divmod(kernel.length, self.lanes) if self.is_row else (kernel.length, 0)
            sums = joined(whole, count % chains, sums)
            sums = last(end, sums, rest) if rest else sums
        while len(sums) > vectors:
            half = -(-len(sums) // vectors // 2) * vectors
            sums = [*map(self.joined, sums, sums[half:]), *sums[len(sums) - half : half]]
        return [code.splat(self.across(sums[0]))] if self.is_row else sums

    def load(self, data: str, place: str, vector: int) -> str:
        """Return a vector of one unit's elements."""
        code = self.code
        start = code.emit(f"getelementptr float, ptr {data}, i64 {place}")
        return code.load_vector(code.address(start, _FLOAT, vector * self.lanes), _FLOAT, 1, self.used[vector])

    def neutral(self) -> str:
        if self.kernel.kind in _INTRINSICS:
            return self.code.constant(math.inf if self.kernel.kind == "min" else -math.inf)
        return self.code.constant(0.0)

    def joined(self, left: str, right: str) -> str:
        """Return what two parts are together."""
        code = self.code
        if self.kernel.kind not in _INTRINSICS:
            return code.binary("add", left, right)
        name = f"llvm.{_INTRINSICS[self.kernel.kind]}.v{self.lanes}f32"
        return code.call(code.vector, name, [(code.vector, left), (code.vector, right)], "nsz")

    def across(self, value: str) -> str:
        """Return what all lanes are together, a number."""
        code = self.code
        if self.kernel.kind not in _INTRINSICS:
            return code.horizontal(value)
        name = f"llvm.vector.reduce.f{_INTRINSICS[self.kernel.kind]}.v{self.lanes}f32"
        return code.call("float", name, [(code.vector, value)], "nsz")
