"""Long sums of float32: every so many terms they are added to sums in float64, and begin again.

One after the other in float32, three million equal terms are off by 5e-4 of their sum; in blocks by 1e-6 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anatune.codegen.compat import TvmObject, import_tvm
from anatune.network.relax.rest.nests import FusedLoop, constant_value

__all__ = ["BLOCK", "Totals", "is_long"]

BLOCK = 64
"""Terms that are added one after the other, at least; sums of twice as many are not divided."""

_Values = dict[TvmObject, TvmObject]
_At = Callable[[TvmObject], TvmObject]


def is_long(loops: Sequence[FusedLoop], steps: int | None) -> bool:
    """Return whether the loops of a sum take so many terms, `steps` each (None: not known here), that it is divided."""
    terms = _terms(loops, steps)
    return terms is None or terms > 2 * BLOCK


def _terms(loops: Sequence[FusedLoop], steps: int | None) -> int | None:
    terms = [steps, *(constant_value(loop.extent) for loop in loops)]
    return None if None in terms else math.prod(one or 0 for one in terms)


class Totals:
    """The sums in float64, `buffer`, of a buffer of sums so far.

    Parameters
    ----------
    writer : loops._Writer
    held : tvm.tirx.Buffer
        The sums so far, float32.
    lanes : callable
        Takes what is done for a lane of the buffer, and returns that for all.
    """

    def __init__(self, writer: TvmObject, held: TvmObject, lanes: Callable[[_At], TvmObject]) -> None:
        self._writer, self._held, self._lanes, self._tirx = writer, held, lanes, import_tvm().tirx
        self.buffer = self._tirx.decl_buffer(held.shape, "float64", f"{held.name}_total", scope="local")

    def begin(self) -> TvmObject:
        """Return what sets them to zero."""
        zero = self._tirx.const(0.0, "float64")
        return self._lanes(lambda lane: self._tirx.BufferStore(self.buffer, zero, [lane]))

    def add(self) -> TvmObject:
        """Return what adds the sums so far to them, and sets those to zero."""
        tirx = self._tirx

        def add_lane(lane: TvmObject) -> TvmObject:
            total = tirx.BufferLoad(self.buffer, [lane]) + tirx.BufferLoad(self._held, [lane]).astype("float64")
            again = tirx.BufferStore(self._held, tirx.const(0.0, "float32"), [lane])
            return tirx.SeqStmt([tirx.BufferStore(self.buffer, total, [lane]), again])

        return self._lanes(add_lane)

    def wrap_loops(
        self, loops: Sequence[FusedLoop], steps: int | None, step: Callable[[_Values], TvmObject], values: _Values
    ) -> TvmObject:
        """Return the loops of a sum, outer first, around its step, which calls `add` where it takes many terms."""
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
        """Return a loop in which the sums are added to the totals behind every `most` iterations and the last one."""
        writer = self._writer
        whole = extent // most if constant_value(extent) is not None else self._tirx.floordiv(extent, most)
        rest, parts = extent - whole * most, []
        for start, count, size in ((0, whole, most), (whole * most, 1, rest)):
            if constant_value(count) == 0 or constant_value(size) == 0:
                continue

            def block(iteration: TvmObject, start: TvmObject = start, size: TvmObject = size) -> TvmObject:
                inner = writer.loop(size, lambda place: body(start + iteration * size + place))
                return writer.sequence([inner, self.add()])

            parts.append(writer.loop(count, block))
        return writer.sequence(parts)
