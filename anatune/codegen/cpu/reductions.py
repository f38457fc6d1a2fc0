"""Kernels that reduce one dimension: sums, means, extremes; the lanes lie along the last dimension.

One call of a function in LLVM IR reduces a block of columns, or, where nothing lies behind the reduced dimension, one
row across its lanes. Several sums go on next to each other, as an addition takes some cycles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anatune.emit.kernels import call, finished, loop_over, only_lanes, open_kernel, start_function, starts_of
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
        Of the data; the result has outer and inner.
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
    is_row = kernel.inner == 1
    width = 1 if is_row else _CHAINS * lanes
    blocks, rest = divmod(kernel.inner, width)
    functions: list[_Function] = []
    text = Script()
    open_kernel(text, name, "reduction", shapes)
    is_large = math.prod(shapes["data"]) >= _PARALLEL_FROM
    for count, columns, first in ((blocks, width, 0), (int(rest > 0), rest, blocks * width)):
        total = kernel.outer * count
        if total:
            functions.append(_Function(kernel, f"{name}_{len(functions)}", lanes, columns))
            image, place = f"(chunk // {count})", f"(chunk % {count}) * {width} + {first}"
            sizes = {"data": kernel.length * kernel.inner, "result": kernel.inner}
            with text.scope(loop_over("chunk", total, parallel=threads > 1 and is_large and total > 1)):
                call(
                    text,
                    functions[-1].name,
                    [(tensor, f"{image} * {size} + {place}") for tensor, size in sizes.items()],
                )
    return str(text), module_ir([function.function for function in functions])


class _Function:
    """Writes ``void name(ptr data, i64 offset, ptr result, i64 offset)`` for some columns."""

    def __init__(self, kernel: ReductionKernel, name: str, lanes: int, columns: int) -> None:
        self.kernel, self.name, self.lanes = kernel, name, lanes
        self.code = code = LlvmCode(lanes, _FLOAT, "add")
        self.is_row = kernel.inner == 1
        vectors = 1 if self.is_row else -(-columns // lanes)
        used = lanes if self.is_row else columns - (vectors - 1) * lanes
        self.used = [lanes] * (vectors - 1) + [used]
        chains = max(1, _CHAINS // vectors)
        start_function(code, name, 2)
        data, result = starts_of(code, 2)
        sums = self.reduced(data, vectors, chains)
        for vector, value in enumerate(sums):
            if kernel.kind == "mean":
                value = code.binary("mul", value, code.constant(1.0 / kernel.length))
            address = code.address(result, _FLOAT, vector * lanes)
            code.store_vector(value, address, _FLOAT, 1 if self.is_row else self.used[vector])
        self.function = finished(code)

    def reduced(self, data: str, vectors: int, chains: int) -> list[str]:
        """Return the results, one of all lanes where lanes are reduced, too."""
        code, kernel = self.code, self.kernel
        step = self.lanes if self.is_row else kernel.inner
        units, tail = divmod(kernel.length, self.lanes) if self.is_row else (kernel.length, 0)
        whole, rest = divmod(units, chains)
        sums = [[self.neutral()] * vectors for _ in range(chains)]
        at = data
        if whole:
            code.line("  br label %loop")
            code.line("loop:")
            names = [[code.name() for _ in range(vectors)] for _ in range(chains)]
            place, trip, next_place, next_trip, done = (code.name() for _ in range(5))
            head = len(code.lines)
            following = [
                [self.joined(names[c][v], self.load(place, c * step, v)) for v in range(vectors)] for c in range(chains)
            ]
            phis = [
                f"  {place} = phi ptr [{data}, %entry], [{next_place}, %loop]",
                f"  {trip} = phi i64 [0, %entry], [{next_trip}, %loop]",
            ]
            phis += [
                f"  {names[c][v]} = phi {code.vector} [{sums[c][v]}, %entry], [{following[c][v]}, %loop]"
                for c in range(chains)
                for v in range(vectors)
            ]
            code.lines[head:head] = phis
            code.line(f"  {next_place} = getelementptr float, ptr {place}, i64 {chains * step}")
            code.line(f"  {next_trip} = add nuw nsw i64 {trip}, 1")
            code.line(f"  {done} = icmp eq i64 {next_trip}, {whole}")
            code.line(f"  br i1 {done}, label %behind, label %loop, !llvm.loop !0")
            code.line("behind:")
            sums, at = following, next_place
        for c in range(rest):
            sums[c] = [self.joined(sums[c][v], self.load(at, c * step, v)) for v in range(vectors)]
        if tail:
            sums[0] = [self.joined(sums[0][0], self.last(at, rest * step, tail))]
        while len(sums) > 1:
            half = -(-len(sums) // 2)
            pairs = zip(sums[:half], [*sums[half:], None][:half], strict=True)
            sums = [self.both(first, other) for first, other in pairs]
        return [code.splat(self.across(sums[0][0]))] if self.is_row else sums[0]

    def both(self, first: list[str], other: Sequence[str] | None) -> list[str]:
        return first if other is None else [self.joined(a, b) for a, b in zip(first, other, strict=True)]

    def load(self, place: str, offset: int, vector: int) -> str:
        """Return a vector of one unit's elements."""
        code = self.code
        address = code.address(place, _FLOAT, offset + vector * self.lanes)
        return code.load_vector(address, _FLOAT, 1, self.used[vector])

    def last(self, place: str, offset: int, count: int) -> str:
        """Return the last elements of a row, and in the other lanes what changes nothing."""
        code = self.code
        value = code.load_vector(code.address(place, _FLOAT, offset), _FLOAT, 1, count)
        return only_lanes(code, value, count, self.neutral())

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
