"""Long sums of float32: blocks of terms are added up in float32, and the blocks in float64.

Without blocks, three million equal terms are wrong by 5e-4 of their sum; with blocks by at most 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.network.relax.rest.nests import FusedLoop, known_value

__all__ = ["BLOCK", "Totals", "is_long"]

BLOCK = 64
"""Least number of terms in a block; sums of up to twice as many are not divided."""

_Values = dict[TvmObject, TvmObject]
_At = Callable[[TvmObject], TvmObject]


def is_long(loops: Sequence[FusedLoop], steps: int | None) -> bool:
    """Return whether a sum has so many terms that it is divided; `steps` of the innermost loop, None if unknown."""
    terms = _terms(loops, steps)
    return terms is None or terms > 2 * BLOCK


def _terms(loops: Sequence[FusedLoop], steps: int | None) -> int | None:
    terms = [steps, *(known_value(loop.extent) for loop in loops)]
    return None if None in terms else math.prod(one or 0 for one in terms)


class Totals:
    """Sums in float64, `buffer`, to which the sums in a float32 buffer are added.

    Parameters
    ----------
    writer : loops._LoopWriter
    held : tvm.tirx.Buffer
        The float32 sums.
    lanes : callable
        Takes a function that returns the statement for one lane, and returns the statement for all.
    """

    def __init__(self, writer: TvmObject, held: TvmObject, lanes: Callable[[_At], TvmObject]) -> None:
        self._writer, self._held, self._lanes, self._tirx = writer, held, lanes, import_tvm().tirx
        self.buffer = self._tirx.decl_buffer(held.shape, "float64", f"{held.name}_total", scope="local")

    def begin(self) -> TvmObject:
        """Return the statement that sets them to zero."""
        zero = self._tirx.const(0.0, "float64")
        return self._lanes(lambda lane: self._tirx.BufferStore(self.buffer, zero, [lane]))

    def add(self) -> TvmObject:
        """Return the statement that adds the float32 sums to them, and sets those to zero."""
        tirx = self._tirx

        def add_lane(lane: TvmObject) -> TvmObject:
            total = tirx.BufferLoad(self.buffer, [lane]) + tirx.BufferLoad(self._held, [lane]).astype("float64")
            again = tirx.BufferStore(self._held, tirx.const(0.0, "float32"), [lane])
            return tirx.SeqStmt([tirx.BufferStore(self.buffer, total, [lane]), again])

        return self._lanes(add_lane)

    def wrap_loops(
        self, loops: Sequence[FusedLoop], steps: int | None, step: Callable[[_Values], TvmObject], values: _Values
    ) -> TvmObject:
        """Return the loops of a sum, from the outer one, around its step; `add` is called after many terms."""
        writer = self._writer
        if not loops:
            return step(values)
        first, *others = loops
        terms = _terms(others, steps)
        if terms is None or terms > BLOCK:
            return writer.serial(first, lambda own: self.wrap_loops(others, steps, step, {**values, **own}))

        def iterate(iteration: TvmObject) -> TvmObject:
            return writer.nest_loops(others, step, {**values, **writer.values(first, iteration)})

        return self.divide(first.extent, BLOCK // max(terms, 1), iterate)

    def divide(self, extent: TvmObject, most: int, body: _At) -> TvmObject:
        """Return a loop that calls `add` after every `most` iterations and after the last one."""
        writer = self._writer
        whole = extent // most if known_value(extent) is not None else self._tirx.floordiv(extent, most)
        rest, parts = extent - whole * most, []
        for start, count, size in ((0, whole, most), (whole * most, 1, rest)):
            if known_value(count) == 0 or known_value(size) == 0:
                continue

            def block(iteration: TvmObject, start: TvmObject = start, size: TvmObject = size) -> TvmObject:
                inner = writer.loop(size, lambda place: body(start + iteration * size + place))
                return writer.sequence([inner, self.add()])

            parts.append(writer.loop(count, block))
        return writer.sequence(parts)
