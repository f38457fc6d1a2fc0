"""Nests as loops: in vectors along what lies next to each other in memory, spread over threads along the outer ones.

Reductions have their results so far in registers: those of neighbouring results where neighbours in memory belong to
different results, else several parts of each result, which are joined behind the loop. Long sums of float32 are those
of `sums`. Extents may be expressions.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anatune.codegen.compat import TvmObject
from anatune.network.relax.rest.nests import Loop, Nest, number, replaced
from anatune.network.relax.rest.sums import BLOCK, Totals, is_long

__all__ = ["written"]

_VECTOR = 16
"""Elements of a vectorised loop: LLVM splits or joins them."""
_CHAINS = 4
"""Vectors of a reduction next to each other: an addition takes some cycles."""
_PARALLEL_FROM = 1 << 14
"""Iterations from which on a block is spread over threads: a parallel loop costs some microseconds."""
_CHUNKS = 4
"""Iterations of a parallel loop for each thread, at least, where there are so many."""
_FEW = 8
"""Iterations up to which a loop is no place for vectors."""

Values = dict[TvmObject, TvmObject]
Body = Callable[[Values], TvmObject]
"""What is done for values of the nest's variables."""


class _Piece(NamedTuple):
    """A part of a loop: `count` times `chains` vectors of `lanes` elements, from `start` on."""

    start: TvmObject
    count: TvmObject
    chains: int
    lanes: int

    @property
    def width(self) -> int:
        return self.chains * self.lanes


def written(tvm: TvmObject, nest: Nest, threads: int, *, is_flat: bool = False) -> TvmObject:
    """Return a nest as a statement of loops; where its iterations are known at run time, threads are asked for then.

    Parameters
    ----------
    is_flat : bool
        Whether indices may leave their dimension, as long as the place in memory is right: so of arguments, but not of
        memory of a function's own, of which TVM keeps what indices reach. TVM sees neighbours then where divisions
        of a flat index hide them (images of 56 columns: 1.46 ns an element, 0.24 flat).
    """
    spread = _Writer(tvm, nest, threads, is_flat).statement()
    if threads < 2 or all(number(extent) is not None for extent in nest.extents):
        return spread
    iterations = functools.reduce(lambda one, other: one * other, nest.extents)
    return tvm.tirx.IfThenElse(iterations >= _PARALLEL_FROM, spread, _Writer(tvm, nest, 1, is_flat).statement())


class _Writer:
    def __init__(self, tvm: TvmObject, nest: Nest, threads: int, is_flat: bool) -> None:
        self.tvm, self.tirx, self.nest, self.is_flat = tvm, tvm.tirx, nest, is_flat
        self.names = itertools.count()
        self.spatial, self.reductions = nest.loops(reductions=False), nest.loops(reductions=True)
        work = [number(extent) for extent in nest.extents]
        is_large = any(extent is None for extent in work) or math.prod(one or 1 for one in work) >= _PARALLEL_FROM
        self.threads = threads if is_large else 1
        self.alone: Values = {
            variable: self.number(0)
            for variable, extent in zip(nest.variables, nest.extents, strict=True)
            if number(extent) == 1
        }

    # -- which loop has vectors ------------------------------------------------------------------------------------

    def statement(self) -> TvmObject:
        if not any(self.nest.is_reduction):
            return self.pointwise()
        return _Reduction(self).statement()

    def is_vector(self, loop: Loop) -> bool:
        """Whether every access stays where it is, or goes to its neighbour, from one iteration to the next."""
        own = loop.places[-1]
        return own not in self.nest.branches and all(move in (0, 1) for move in self.nest.moves(loop))

    def pointwise(self) -> TvmObject:
        """Return loops of which each iteration writes an element of its own."""
        if not self.spatial:
            return replaced(self.nest.body, self.alone, self.tvm)
        *outer, last = self.spatial

        def row(values: Values) -> TvmObject:
            def point(own: Values) -> TvmObject:
                return replaced(self.nest.body, {**values, **own}, self.tvm)

            if not self.is_vector(last):
                return self.serial(last, point)
            pieces = self.pieces(last.extent, chains=1)
            return self.sequence(self.piece(last, piece, point, spread=not outer) for piece in pieces)

        return self.around(outer, row)

    # -- loops -------------------------------------------------------------------------------------------------------

    def number(self, value: TvmObject) -> TvmObject:
        return self.tirx.const(value, "int64") if isinstance(value, int) else value

    def variable(self) -> TvmObject:
        return self.tirx.Var(f"i{next(self.names)}", "int64")

    def sequence(self, parts: Sequence[TvmObject] | itertools.chain[TvmObject] | TvmObject) -> TvmObject:
        """Return statements one after the other."""
        whole = list(parts)
        return whole[0] if len(whole) == 1 else self.tirx.SeqStmt(whole)

    def loop(self, extent: TvmObject, body: Callable[[TvmObject], TvmObject], kind: str = "SERIAL") -> TvmObject:
        """Return a loop; one iteration is none."""
        if number(extent) == 1:
            return body(self.number(0))
        variable = self.variable()
        return self.tirx.For(variable, self.number(0), self.number(extent), self.tirx.ForKind[kind], body(variable))

    def values(self, loop: Loop, at: TvmObject) -> Values:
        """Return the values of the variables of loops that are walked as one."""
        *outer, inner = (self.nest.variables[place] for place in loop.places)
        if self.is_flat and not self.nest.divided & set(loop.places):
            return {**dict.fromkeys(outer, self.number(0)), inner: at}
        found: Values = {}
        for place in reversed(loop.places):
            extent = self.nest.extents[place]
            is_first = place == loop.places[0]
            found[self.nest.variables[place]] = at if is_first else self.tirx.floormod(at, extent)
            at = at if is_first else self.tirx.floordiv(at, extent)
        return found

    def serial(self, loop: Loop, body: Body) -> TvmObject:
        """Return a plain loop, which LLVM may make vectors of."""
        return self.loop(loop.extent, lambda at: body(self.values(loop, at)))

    def within(self, loops: Sequence[Loop], body: Body, values: Values | None = None) -> TvmObject:
        """Return plain loops, outer first, around what is done with the values of all."""
        known = values or {}
        if not loops:
            return body(known)
        return self.serial(loops[0], lambda own: self.within(loops[1:], body, {**known, **own}))

    def around(self, loops: Sequence[Loop], body: Body) -> TvmObject:
        """Return loops, the outer ones spread over threads: so many as make work for all."""
        if self.threads < 2 or not loops:
            return self.within(loops, body, self.alone)
        count, total = 0, 1
        while count < len(loops) and total < _CHUNKS * self.threads:
            total, count = total * (number(loops[count].extent) or _CHUNKS * self.threads), count + 1
        extents = [loop.extent for loop in loops[:count]]

        def spread(at: TvmObject) -> TvmObject:
            values = dict(self.alone)
            for place in range(count - 1, -1, -1):
                rest = at if place == 0 else self.tirx.floormod(at, extents[place])
                values.update(self.values(loops[place], rest))
                at = self.tirx.floordiv(at, extents[place])
            return self.within(loops[count:], body, values)

        whole = functools.reduce(lambda one, other: one * other, extents)
        return self.loop(whole, spread, "PARALLEL")

    def pieces(self, extent: TvmObject, *, chains: int, lanes: int = _VECTOR) -> list[_Piece]:
        """Return a loop as vectors: several together, single ones, and what is left."""
        known = number(extent)
        if known is None:
            whole = self.tirx.floordiv(extent, lanes)
            return [_Piece(self.number(0), whole, 1, lanes), _Piece(whole * lanes, extent - whole * lanes, 1, 1)]
        found, start = [], 0
        for count, width in ((chains, lanes), (1, lanes), (1, known % lanes)):
            size = count * width
            if size and (known - start) // size:
                times = (known - start) // size
                found.append(_Piece(self.number(start), times, count, width))
                start += times * size
            if start == known:
                break
        return found

    def piece(self, loop: Loop, piece: _Piece, body: Body, *, spread: bool = False) -> TvmObject:
        """Return a part of a loop in vectors."""
        kind = "PARALLEL" if spread and self.threads > 1 and piece.lanes > 1 else "SERIAL"

        def vector(at: TvmObject) -> TvmObject:
            return self.lanes(piece, lambda lane: body(self.values(loop, piece.start + at * piece.width + lane)))

        return self.loop(piece.count, vector, kind)

    def lanes(self, piece: _Piece, body: Callable[[TvmObject], TvmObject]) -> TvmObject:
        """Return what is done for each element of some vectors; `body` takes its place in them."""

        def vector(start: TvmObject) -> TvmObject:
            return self.loop(piece.lanes, lambda lane: body(start * piece.lanes + lane), "VECTORIZED")

        return self.loop(piece.chains, vector, "UNROLLED")


_JOINED = ("Add", "Mul", "Max", "Min", "And", "Or")
"""What joins two parts of a reduction."""


class _Reduction:
    """Writes a nest that reduces."""

    def __init__(self, writer: _Writer) -> None:
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
        if row is not None and self.is_along(row) and self.joins() is not None:
            return self.along(spatial, reductions[:-1], row)
        if not spatial:
            return self.block(reductions, None, _Piece(0, 1, 1, 1), writer.alone)
        columns = self.columns()
        others = [loop for loop in spatial if loop is not columns]
        if columns is None:
            return writer.around(others, lambda values: self.block(reductions, None, _Piece(0, 1, 1, 1), values))
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

        return writer.around(others, parts)

    def is_along(self, row: Loop) -> bool:
        """Whether neighbours in memory are parts of one result: vectors are to lie along the reduction."""
        known = number(row.extent)
        is_long = known is None or known >= _VECTOR
        moves = self.nest.moves(row)
        return is_long and 1 in moves and self.writer.is_vector(row)

    def columns(self) -> Loop | None:
        """Return the loop over results that are reduced together; None: one at a time."""
        last = self.writer.spatial[-1]
        row = self.writer.reductions[-1] if self.writer.reductions else None
        if row is not None and self.is_along(row) and not self.writer.is_vector(last):
            return None
        known = number(last.extent)
        return None if known is not None and known < _FEW else last

    def joins(self) -> TvmObject | None:
        """Return what makes one of two parts, a kind of expression; None: the reduction is more than that."""
        body = self.nest.body
        if not isinstance(body, self.tirx.BufferStore):
            return None
        for name in _JOINED:
            kind = getattr(self.tirx, name)
            if isinstance(body.value, kind) and any(
                isinstance(side, self.writer.tvm.ir.expr.TensorLoad) and side.source.same_as(body.buffer)
                for side in (body.value.a, body.value.b)
            ):
                return kind
        return None

    def is_sum(self) -> bool:
        """Whether results are sums of float32."""
        return self.joins() is self.tirx.Add and str(self.targets[0].dtype) == "float32"

    # -- results so far in registers -----------------------------------------------------------------------------------

    def held(self, size: int) -> tuple[list[TvmObject], Callable[[TvmObject, TvmObject], TvmObject]]:
        """Return buffers of registers, and what puts them in place of the targets at an index."""
        import tvm_ffi

        tirx, load = self.tirx, self.writer.tvm.ir.expr.TensorLoad
        buffers = [
            tirx.decl_buffer((size,), str(target.dtype), f"held{next(self.writer.names)}", scope="local")
            for target in self.targets
        ]

        def own(buffer: TvmObject) -> TvmObject | None:
            pairs = zip(self.targets, buffers, strict=True)
            return next((other for target, other in pairs if target.same_as(buffer)), None)

        def placed(root: TvmObject, lane: TvmObject) -> TvmObject:
            bound: list[TvmObject] = []  # each copy of a statement has names of its own
            tvm_ffi.structural_walk(root, (tirx.Bind, bound.append))
            fresh = {one.var: tirx.Var(f"v{next(self.writer.names)}", one.var.ty) for one in bound}

            def store(one: TvmObject) -> TvmObject:
                other = own(one.buffer)
                return one if other is None else tirx.BufferStore(other, one.value, [lane])

            def taken(one: TvmObject) -> TvmObject:
                other = own(one.source)
                return one if other is None else tirx.BufferLoad(other, [lane])

            named = [
                (tirx.Bind, lambda one: tirx.Bind(fresh.get(one.var, one.var), one.value)),
                (tirx.Var, lambda one: fresh.get(one, one)),
            ]
            return tvm_ffi.structural_map(root, [(tirx.BufferStore, store), (load, taken), *(named if fresh else [])])

        return buffers, placed

    def allocated(self, buffers: Iterable[TvmObject], parts: Sequence[TvmObject]) -> TvmObject:
        return self.writer.sequence([*(self.tirx.AllocBuffer(buffer) for buffer in buffers), *parts])

    def block(self, reductions: Sequence[Loop], columns: Loop | None, piece: _Piece, values: Values) -> TvmObject:
        """Return what reduces neighbouring results, one in each lane; the piece's start is where they begin."""
        writer = self.writer
        buffers, placed = self.held(piece.width)
        is_vector = columns is not None and writer.is_vector(columns)

        def lanes(body: Callable[[TvmObject, Values], TvmObject]) -> TvmObject:
            def one(lane: TvmObject) -> TvmObject:
                own = {} if columns is None else writer.values(columns, piece.start + lane)
                return body(lane, {**values, **own})

            return writer.lanes(piece, one) if is_vector else writer.loop(piece.width, one)

        def step(root: TvmObject, more: Values) -> TvmObject:
            return lanes(lambda lane, own: placed(replaced(root, {**own, **more}, writer.tvm), lane))

        def result(lane: TvmObject, own: Values) -> TvmObject:
            indices = [replaced(index, own, writer.tvm) for index in self.indices]
            results = [totals.buffer] if totals else buffers
            return writer.sequence(
                self.tirx.BufferStore(target, self.tirx.BufferLoad(buffer, [lane]).astype(str(target.dtype)), indices)
                for target, buffer in zip(self.targets, results, strict=True)
            )

        def add(own: Values) -> TvmObject:
            return step(self.nest.body, own)

        begun = [] if self.nest.first is None else [step(self.nest.first, {})]
        totals = None
        if self.is_sum() and is_long(reductions, 1):
            totals = Totals(writer, buffers[0], lambda body: lanes(lambda lane, _: body(lane)))
            sums = [totals.begin(), totals.over(reductions, 1, add, {})]
            return self.allocated([*buffers, totals.buffer], [*begun, *sums, lanes(result)])
        return self.allocated(buffers, [*begun, writer.within(reductions, add), lanes(result)])

    def along(self, spatial: Sequence[Loop], reductions: Sequence[Loop], row: Loop) -> TvmObject:
        """Return loops whose vectors lie along the reduction: parts of a result, joined in the end."""
        writer, tirx = self.writer, self.tirx
        known = number(row.extent)
        chains = _CHAINS if known is None or known >= _CHAINS * _VECTOR else 1
        size = chains * _VECTOR
        kind = self.joins()
        assert kind is not None

        def result(values: Values) -> TvmObject:
            (held,), placed = self.held(size)
            whole = _Piece(0, 1, chains, _VECTOR)
            pieces = writer.pieces(row.extent, chains=chains)
            steps = None if known is None else sum(number(piece.count) or 0 for piece in pieces)
            totals = None
            if self.is_sum() and is_long(reductions, steps):
                totals = Totals(writer, held, lambda body: writer.lanes(whole, body))
            buffer = totals.buffer if totals else held
            has_blocks = totals is not None and (steps is None or steps > BLOCK)

            def part(piece: _Piece, own: Values) -> TvmObject:
                def vectors(at: TvmObject) -> TvmObject:
                    def one(lane: TvmObject) -> TvmObject:
                        place = writer.values(row, piece.start + at * piece.width + lane)
                        return placed(replaced(self.nest.body, {**own, **place}, writer.tvm), lane)

                    return writer.lanes(piece, one)

                if totals and has_blocks and (number(piece.count) or BLOCK) >= BLOCK:
                    return totals.divide(piece.count, BLOCK, vectors)
                return writer.loop(piece.count, vectors)

            def parts(own: Values) -> TvmObject:
                added = [totals.add()] if totals and has_blocks else []
                return writer.sequence([*(part(piece, own) for piece in pieces), *added])

            begun = [writer.lanes(whole, lambda lane: placed(replaced(self.nest.first, values, writer.tvm), lane))]
            if totals:
                body = totals.over(reductions, steps, parts, values)
                begun.append(totals.begin())
            else:
                body = writer.within(reductions, parts, values)
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
            indices = [replaced(index, values, writer.tvm) for index in self.indices]
            total = tirx.BufferLoad(buffer, [writer.number(0)]).astype(str(self.targets[0].dtype))
            stored = tirx.BufferStore(self.targets[0], total, indices)
            return self.allocated(dict.fromkeys([held, buffer]), [*begun, body, *folds, stored])

        return writer.around(spatial, result)
