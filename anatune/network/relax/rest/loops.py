"""Write nests as loops: vectors along contiguous elements, and outer loops in parallel over threads.

Reductions accumulate in registers. If neighbours in memory belong to different results, a vector holds neighbouring
results; otherwise it holds several parts of one result, which are joined after the loop. Long float32 sums are those
of `sums`. Extents may be expressions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anatune.codegen.compat import TvmObject
from anatune.network.relax.rest.nests import FusedLoop, RelaxNest, known_value, substitute
from anatune.network.relax.rest.sums import BLOCK, Totals, is_long

__all__ = ["write_loops"]

_VECTOR = 16
"""Elements of a vectorised loop, which LLVM splits or joins."""
_CHAINS = 4
"""Vectors that a reduction accumulates side by side, because an addition takes several cycles."""
_PARALLEL_FROM = 1 << 14
"""Least iterations of a nest that runs in parallel, because a parallel loop costs some microseconds."""
_CHUNKS = 4
"""Least iterations of a parallel loop for each thread, if the loop is long enough."""
_MOST_SCALAR = 8
"""Most iterations of a loop that is not vectorised."""

Values = dict[TvmObject, TvmObject]
Body = Callable[[Values], TvmObject]
"""A function from values of the nest's variables to a statement."""


class _Span(NamedTuple):
    """A part of a loop: `count` times `chains` vectors of `lanes` elements, from `start` on."""

    start: TvmObject
    count: TvmObject
    chains: int
    lanes: int

    @property
    def width(self) -> int:
        return self.chains * self.lanes


def write_loops(tvm: TvmObject, nest: RelaxNest, threads: int, *, is_flat: bool = False) -> TvmObject:
    """Return a nest as a statement of loops; if its iterations are known only at run time, it uses threads if they pay.

    Parameters
    ----------
    is_flat : bool
        Whether an index may exceed its dimension while the flat index is right. It may for arguments, but not for local
        memory, of which TVM keeps only what indices reach. TVM then finds contiguous elements that divisions of a flat
        index hide (images of 56 columns: 1.46 ns an element, 0.24 flat).
    """
    spread = _LoopWriter(tvm, nest, threads, is_flat).statement()
    if threads < 2 or all(known_value(extent) is not None for extent in nest.extents):
        return spread
    iterations = functools.reduce(lambda one, other: one * other, nest.extents)
    return tvm.tirx.IfThenElse(iterations >= _PARALLEL_FROM, spread, _LoopWriter(tvm, nest, 1, is_flat).statement())


class _LoopWriter:
    def __init__(self, tvm: TvmObject, nest: RelaxNest, threads: int, is_flat: bool) -> None:
        self.tvm, self.tirx, self.nest, self.is_flat = tvm, tvm.tirx, nest, is_flat
        self.names = itertools.count()
        self.spatial, self.reductions = nest.loops(reductions=False), nest.loops(reductions=True)
        work = [known_value(extent) for extent in nest.extents]
        is_large = any(extent is None for extent in work) or math.prod(one or 1 for one in work) >= _PARALLEL_FROM
        self.threads = threads if is_large else 1
        self.unit_values: Values = {
            variable: self.number(0)
            for variable, extent in zip(nest.variables, nest.extents, strict=True)
            if known_value(extent) == 1
        }

    # -- which loop has vectors ------------------------------------------------------------------------------------

    def statement(self) -> TvmObject:
        if not any(self.nest.is_reduction):
            return self.pointwise()
        return _Reduction(self).statement()

    def is_vector(self, loop: FusedLoop) -> bool:
        """Return whether each access has stride 0 or 1 along a loop that no branch depends on."""
        innermost = loop.places[-1]
        return innermost not in self.nest.branches and all(move in (0, 1) for move in self.nest.moves(loop))

    def pointwise(self) -> TvmObject:
        """Return loops in which each iteration writes another element."""
        if not self.spatial:
            return substitute(self.nest.body, self.unit_values, self.tvm)
        *outer, last = self.spatial

        def row(values: Values) -> TvmObject:
            def point(inner_values: Values) -> TvmObject:
                return substitute(self.nest.body, {**values, **inner_values}, self.tvm)

            if not self.is_vector(last):
                return self.serial(last, point)
            pieces = self.pieces(last.extent, chains=1)
            return self.sequence(self.piece(last, piece, point, spread=not outer) for piece in pieces)

        return self.spread_loops(outer, row)

    # -- loops -------------------------------------------------------------------------------------------------------

    def number(self, value: TvmObject) -> TvmObject:
        return self.tirx.const(value, "int64") if isinstance(value, int) else value

    def variable(self) -> TvmObject:
        return self.tirx.Var(f"i{next(self.names)}", "int64")

    def sequence(self, parts: Sequence[TvmObject] | itertools.chain[TvmObject] | TvmObject) -> TvmObject:
        """Return a sequence of statements."""
        whole = list(parts)
        return whole[0] if len(whole) == 1 else self.tirx.SeqStmt(whole)

    def loop(self, extent: TvmObject, body: Callable[[TvmObject], TvmObject], kind: str = "SERIAL") -> TvmObject:
        """Return a loop; a single iteration needs none."""
        if known_value(extent) == 1:
            return body(self.number(0))
        variable = self.variable()
        return self.tirx.For(variable, self.number(0), self.number(extent), self.tirx.ForKind[kind], body(variable))

    def values(self, loop: FusedLoop, index: TvmObject) -> Values:
        """Return the values of the variables of loops that are run as one."""
        *outer, inner = (self.nest.variables[place] for place in loop.places)
        if self.is_flat and not self.nest.divided & set(loop.places):
            return {**dict.fromkeys(outer, self.number(0)), inner: index}
        loop_values: Values = {}
        for loop_index in reversed(loop.places):
            extent = self.nest.extents[loop_index]
            is_first = loop_index == loop.places[0]
            loop_values[self.nest.variables[loop_index]] = index if is_first else self.tirx.floormod(index, extent)
            index = index if is_first else self.tirx.floordiv(index, extent)
        return loop_values

    def serial(self, loop: FusedLoop, body: Body) -> TvmObject:
        """Return a serial loop, which LLVM may vectorise."""
        return self.loop(loop.extent, lambda at: body(self.values(loop, at)))

    def nest_loops(self, loops: Sequence[FusedLoop], body: Body, values: Values | None = None) -> TvmObject:
        """Return serial loops, from the outer one, around a body that takes the values of all variables."""
        all_values = values or {}
        if not loops:
            return body(all_values)
        return self.serial(loops[0], lambda own: self.nest_loops(loops[1:], body, {**all_values, **own}))

    def spread_loops(self, loops: Sequence[FusedLoop], body: Body) -> TvmObject:
        """Return loops of which enough outer ones run in parallel to give all threads work."""
        if self.threads < 2 or not loops:
            return self.nest_loops(loops, body, self.unit_values)
        count, total = 0, 1
        while count < len(loops) and total < _CHUNKS * self.threads:
            total, count = total * (known_value(loops[count].extent) or _CHUNKS * self.threads), count + 1
        extents = [loop.extent for loop in loops[:count]]

        def spread(index: TvmObject) -> TvmObject:
            values = dict(self.unit_values)
            for loop_index in range(count - 1, -1, -1):
                rest = index if loop_index == 0 else self.tirx.floormod(index, extents[loop_index])
                values.update(self.values(loops[loop_index], rest))
                index = self.tirx.floordiv(index, extents[loop_index])
            return self.nest_loops(loops[count:], body, values)

        whole = functools.reduce(lambda one, other: one * other, extents)
        return self.loop(whole, spread, "PARALLEL")

    def pieces(self, extent: TvmObject, *, chains: int, lanes: int = _VECTOR) -> list[_Span]:
        """Return a loop in pieces: groups of vectors, single vectors, and the remainder."""
        constant_extent = known_value(extent)
        if constant_extent is None:
            whole = self.tirx.floordiv(extent, lanes)
            return [_Span(self.number(0), whole, 1, lanes), _Span(whole * lanes, extent - whole * lanes, 1, 1)]
        pieces, start = [], 0
        for count, width in ((chains, lanes), (1, lanes), (1, constant_extent % lanes)):
            size = count * width
            if size and (constant_extent - start) // size:
                times = (constant_extent - start) // size
                pieces.append(_Span(self.number(start), times, count, width))
                start += times * size
            if start == constant_extent:
                break
        return pieces

    def piece(self, loop: FusedLoop, piece: _Span, body: Body, *, spread: bool = False) -> TvmObject:
        """Return a piece of a loop, vectorised."""
        kind = "PARALLEL" if spread and self.threads > 1 and piece.lanes > 1 else "SERIAL"

        def vector(iteration: TvmObject) -> TvmObject:
            return self.lanes(piece, lambda lane: body(self.values(loop, piece.start + iteration * piece.width + lane)))

        return self.loop(piece.count, vector, kind)

    def lanes(self, piece: _Span, body: Callable[[TvmObject], TvmObject]) -> TvmObject:
        """Return statements for all elements of some vectors; `body` takes the index of an element."""

        def vector(start: TvmObject) -> TvmObject:
            return self.loop(piece.lanes, lambda lane: body(start * piece.lanes + lane), "VECTORIZED")

        return self.loop(piece.chains, vector, "UNROLLED")


_JOINS = ("Add", "Mul", "Max", "Min", "And", "Or")
"""Kinds of reductions, by TVM's name of the operator that joins two values."""


class _Reduction:
    """Writes a nest that reduces."""

    def __init__(self, writer: _LoopWriter) -> None:
        self.writer, self.tirx = writer, writer.tirx
        self.nest = writer.nest
        body = self.nest.body
        stores = [one for one in (body.seq if isinstance(body, self.tirx.SeqStmt) else [body])]
        self.targets = [one.buffer for one in stores if isinstance(one, self.tirx.BufferStore)]
        self.indices = next(list(one.indices) for one in stores if isinstance(one, self.tirx.BufferStore))

    def statement(self) -> TvmObject:
        writer = self.writer
        spatial, reductions = writer.spatial, writer.reductions
        row = reductions[-1] if reductions else None
        if row is not None and self.is_along(row) and self.join_kind() is not None:
            return self.reduce_along(spatial, reductions[:-1], row)
        if not spatial:
            return self.block(reductions, None, _Span(0, 1, 1, 1), writer.unit_values)
        columns = self.columns()
        others = [loop for loop in spatial if loop is not columns]
        if columns is None:
            return writer.spread_loops(others, lambda values: self.block(reductions, None, _Span(0, 1, 1, 1), values))
        if writer.is_vector(columns):
            pieces = writer.pieces(columns.extent, chains=_CHAINS)
        else:
            pieces = writer.pieces(columns.extent, chains=1, lanes=_CHAINS * _VECTOR)

        def parts(values: Values) -> TvmObject:
            return writer.sequence(
                writer.loop(
                    piece.count,
                    lambda at, piece=piece: self.block(  # type: ignore[misc]
                        reductions, columns, piece._replace(start=piece.start + at * piece.width), values
                    ),
                    "PARALLEL" if not others and writer.threads > 1 and piece.lanes > 1 else "SERIAL",
                )
                for piece in pieces
            )

        return writer.spread_loops(others, parts)

    def is_along(self, row: FusedLoop) -> bool:
        """Return whether vectors should lie along the reduction: neighbours in memory belong to one result."""
        constant_extent = known_value(row.extent)
        is_long = constant_extent is None or constant_extent >= _VECTOR
        moves = self.nest.moves(row)
        return is_long and 1 in moves and self.writer.is_vector(row)

    def columns(self) -> FusedLoop | None:
        """Return the loop over results that are reduced together; None if they are reduced one at a time."""
        last = self.writer.spatial[-1]
        row = self.writer.reductions[-1] if self.writer.reductions else None
        if row is not None and self.is_along(row) and not self.writer.is_vector(last):
            return None
        constant_extent = known_value(last.extent)
        return None if constant_extent is not None and constant_extent < _MOST_SCALAR else last

    def join_kind(self) -> TvmObject | None:
        """Return the TVM expression that joins two parts of a result; None if the reduction is more than that."""
        body = self.nest.body
        if not isinstance(body, self.tirx.BufferStore):
            return None
        for name in _JOINS:
            kind = getattr(self.tirx, name)
            if isinstance(body.value, kind) and any(
                isinstance(side, self.writer.tvm.ir.expr.TensorLoad) and side.source.same_as(body.buffer)
                for side in (body.value.a, body.value.b)
            ):
                return kind
        return None

    def is_sum(self) -> bool:
        """Return whether results are sums of float32."""
        return self.join_kind() is self.tirx.Add and str(self.targets[0].dtype) == "float32"

    # -- results so far in registers -----------------------------------------------------------------------------------

    def make_registers(self, size: int) -> tuple[list[TvmObject], Callable[[TvmObject, TvmObject], TvmObject]]:
        """Return register buffers, and a function that redirects a statement from its targets to them, at an index."""
        import tvm_ffi

        tirx, load = self.tirx, self.writer.tvm.ir.expr.TensorLoad
        buffers = [
            tirx.decl_buffer((size,), str(target.dtype), f"held{next(self.writer.names)}", scope="local")
            for target in self.targets
        ]

        def register_of(buffer: TvmObject) -> TvmObject | None:
            pairs = zip(self.targets, buffers, strict=True)
            return next((other for target, other in pairs if target.same_as(buffer)), None)

        def redirect(root: TvmObject, lane: TvmObject) -> TvmObject:
            bound: list[TvmObject] = []  # each copy of a statement needs its own names
            tvm_ffi.structural_walk(root, (tirx.Bind, bound.append))
            fresh = {one.var: tirx.Var(f"v{next(self.writer.names)}", one.var.ty) for one in bound}

            def put(statement: TvmObject) -> TvmObject:
                other = register_of(statement.buffer)
                return statement if other is None else tirx.BufferStore(other, statement.value, [lane])

            def get(expression: TvmObject) -> TvmObject:
                other = register_of(expression.source)
                return expression if other is None else tirx.BufferLoad(other, [lane])

            named = [
                (tirx.Bind, lambda one: tirx.Bind(fresh.get(one.var, one.var), one.value)),
                (tirx.Var, lambda one: fresh.get(one, one)),
            ]
            return tvm_ffi.structural_map(root, [(tirx.BufferStore, put), (load, get), *(named if fresh else [])])

        return buffers, redirect

    def allocate(self, buffers: Iterable[TvmObject], parts: Sequence[TvmObject]) -> TvmObject:
        return self.writer.sequence([*(self.tirx.AllocBuffer(buffer) for buffer in buffers), *parts])

    def block(self, reduced: Sequence[FusedLoop], columns: FusedLoop | None, piece: _Span, values: Values) -> TvmObject:
        """Return a reduction of neighbouring results, one in each lane, which begin at the piece's start."""
        writer = self.writer
        buffers, redirect = self.make_registers(piece.width)
        is_vector = columns is not None and writer.is_vector(columns)

        def lanes(body: Callable[[TvmObject, Values], TvmObject]) -> TvmObject:
            def run_lane(lane: TvmObject) -> TvmObject:
                column_values = {} if columns is None else writer.values(columns, piece.start + lane)
                return body(lane, {**values, **column_values})

            return writer.lanes(piece, run_lane) if is_vector else writer.loop(piece.width, run_lane)

        def step(root: TvmObject, more: Values) -> TvmObject:
            return lanes(lambda lane, own: redirect(substitute(root, {**own, **more}, writer.tvm), lane))

        def result(lane: TvmObject, lane_values: Values) -> TvmObject:
            indices = [substitute(index, lane_values, writer.tvm) for index in self.indices]
            results = [totals.buffer] if totals else buffers
            return writer.sequence(
                self.tirx.BufferStore(target, self.tirx.BufferLoad(buffer, [lane]).astype(str(target.dtype)), indices)
                for target, buffer in zip(self.targets, results, strict=True)
            )

        def add(inner: Values) -> TvmObject:
            return step(self.nest.body, inner)

        begun = [] if self.nest.first is None else [step(self.nest.first, {})]
        totals = None
        if self.is_sum() and is_long(reduced, 1):
            totals = Totals(writer, buffers[0], lambda body: lanes(lambda lane, _: body(lane)))
            sums = [totals.begin(), totals.wrap_loops(reduced, 1, add, {})]
            return self.allocate([*buffers, totals.buffer], [*begun, *sums, lanes(result)])
        return self.allocate(buffers, [*begun, writer.nest_loops(reduced, add), lanes(result)])

    def reduce_along(self, spatial: Sequence[FusedLoop], reductions: Sequence[FusedLoop], row: FusedLoop) -> TvmObject:
        """Return loops with vectors along the reduction, which hold parts of a result and are joined at the end."""
        writer, tirx = self.writer, self.tirx
        constant_extent = known_value(row.extent)
        chains = _CHAINS if constant_extent is None or constant_extent >= _CHAINS * _VECTOR else 1
        size = chains * _VECTOR
        kind = self.join_kind()
        assert kind is not None

        def result(values: Values) -> TvmObject:
            (held,), redirect = self.make_registers(size)
            whole = _Span(0, 1, chains, _VECTOR)
            pieces = writer.pieces(row.extent, chains=chains)
            steps = None if constant_extent is None else sum(known_value(piece.count) or 0 for piece in pieces)
            totals = None
            if self.is_sum() and is_long(reductions, steps):
                totals = Totals(writer, held, lambda body: writer.lanes(whole, body))
            buffer = totals.buffer if totals else held
            has_blocks = totals is not None and (steps is None or steps > BLOCK)

            def part(piece: _Span, inner: Values) -> TvmObject:
                def vectors(iteration: TvmObject) -> TvmObject:
                    def run_lane(lane: TvmObject) -> TvmObject:
                        row_values = writer.values(row, piece.start + iteration * piece.width + lane)
                        return redirect(substitute(self.nest.body, {**inner, **row_values}, writer.tvm), lane)

                    return writer.lanes(piece, run_lane)

                if totals and has_blocks and (known_value(piece.count) or BLOCK) >= BLOCK:
                    return totals.divide(piece.count, BLOCK, vectors)
                return writer.loop(piece.count, vectors)

            def parts(inner: Values) -> TvmObject:
                added = [totals.add()] if totals and has_blocks else []
                return writer.sequence([*(part(piece, inner) for piece in pieces), *added])

            begun = [writer.lanes(whole, lambda lane: redirect(substitute(self.nest.first, values, writer.tvm), lane))]
            if totals:
                body = totals.wrap_loops(reductions, steps, parts, values)
                begun.append(totals.begin())
            else:
                body = writer.nest_loops(reductions, parts, values)
            folds = []
            half = size // 2
            while half:
                folds.append(
                    writer.loop(
                        half,
                        lambda lane, half=half: tirx.BufferStore(  # type: ignore[misc]
                            buffer,
                            kind(tirx.BufferLoad(buffer, [lane]), tirx.BufferLoad(buffer, [lane + half])),
                            [lane],
                        ),
                        "VECTORIZED",
                    )
                )
                half //= 2
            indices = [substitute(index, values, writer.tvm) for index in self.indices]
            total = tirx.BufferLoad(buffer, [writer.number(0)]).astype(str(self.targets[0].dtype))
            stored = tirx.BufferStore(self.targets[0], total, indices)
            return self.allocate(dict.fromkeys([held, buffer]), [*begun, body, *folds, stored])

        return writer.spread_loops(spatial, result)
