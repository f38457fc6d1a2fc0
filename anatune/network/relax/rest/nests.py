"""Blocks of TVM's functions as nests: loops, what one iteration does, and how its accesses move with each loop.

An access is flattened to one index of its buffer in memory. With a loop it moves by a number of elements where that
index grows by this number whatever the other loops are at; else, and where the loop counts in a condition or a value,
the loop is tangled: nothing is known of it but its extent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.codegen.compat import TvmObject

__all__ = ["FusedLoop", "LoopNest", "NestAccess", "nest_of", "replace_variables"]

_SPATIAL, _REDUCTION = 0, 2
"""TVM's kinds of loops."""


class NestAccess(NamedTuple):
    """One load or store: elements by which it moves with each loop; None: not known."""

    steps: tuple[int | None, ...]
    is_store: bool
    bits: int


class FusedLoop(NamedTuple):
    """Loops that are walked as one, outer first; one of them is the usual case.

    Attributes
    ----------
    places : tuple of int
        Of the nest's loops.
    extent : int or tvm.ir.Expr
        Iterations, of all together.
    """

    places: tuple[int, ...]
    extent: TvmObject


@dataclass(frozen=True)
class LoopNest:
    """A block that reads and writes tensors element by element.

    Attributes
    ----------
    variables, extents : list
        Of its loops.
    is_reduction : list of bool
    body : tvm.tirx.Stmt
        One iteration, in the variables.
    first : tvm.tirx.Stmt, optional
        What a reduction's results begin with.
    accesses : tuple of Access
    tangled : frozenset of int
        Loops that count outside of indices.
    branches : frozenset of int
        Loops that conditions depend on which guard accesses.
    divided : frozenset of int
        Loops that indices hold quotients, remainders, bounds or choices of.
    """

    variables: list[TvmObject]
    extents: list[TvmObject]
    is_reduction: list[bool]
    body: TvmObject
    first: TvmObject | None
    accesses: tuple[NestAccess, ...]
    tangled: frozenset[int]
    branches: frozenset[int]
    divided: frozenset[int] = frozenset()

    def loops(self, *, reductions: bool) -> list[FusedLoop]:
        """Return the loops of a kind in order, those as one that every access walks as if they were."""
        loops: list[FusedLoop] = []
        for index, (extent, is_reduction) in enumerate(zip(self.extents, self.is_reduction, strict=True)):
            if is_reduction != reductions or is_one(extent):
                continue
            if loops and self._can_fuse(loops[-1].places[-1], index):
                loops[-1] = FusedLoop((*loops[-1].places, index), loops[-1].extent * extent)
            else:
                loops.append(FusedLoop((index,), extent))
        return loops

    def _can_fuse(self, outer: int, inner: int) -> bool:
        """Whether every access moves with the outer loop as with the inner one times its extent."""
        extent = constant_value(self.extents[inner])
        if extent is None or {outer, inner} & self.tangled:
            return False
        steps = [(access.steps[outer], access.steps[inner]) for access in self.accesses]
        return all(one is not None and other is not None and one == other * extent for one, other in steps)

    def moves(self, loop: FusedLoop) -> list[int | None]:
        """Return by how much each access moves with the innermost of some loops."""
        return [access.steps[loop.places[-1]] for access in self.accesses]


def constant_value(extent: TvmObject) -> int | None:
    """Return an extent that is known."""
    if isinstance(extent, int):
        return extent
    value = getattr(extent, "value", None)
    return value if isinstance(value, int) else None


def is_one(extent: TvmObject) -> bool:
    """Whether a loop has one iteration."""
    return constant_value(extent) == 1


def replace_variables(root: TvmObject, values: Mapping[TvmObject, TvmObject], tvm: TvmObject) -> TvmObject:
    """Return a statement or expression with other expressions for variables."""
    import tvm_ffi

    if not values:
        return root
    return tvm_ffi.structural_map(root, [(tvm.tirx.Var, lambda one: values.get(one, one))])


def nest_of(tvm: TvmObject, realize: TvmObject, loops: Sequence[TvmObject]) -> LoopNest | None:
    """Return a block as a nest; None: it is more than loops around loads, arithmetic and stores.

    Parameters
    ----------
    realize : tvm.s_tir.SBlockRealize
    loops : sequence of tvm.tirx.For
        Around it, outer first.
    """
    block = realize.block
    kinds = [int(one.iter_type) for one in block.iter_vars]
    plain = len(loops) == len(kinds) and all(
        value.same_as(loop.loop_var) and constant_value(loop.min) == 0
        for value, loop in zip(realize.iter_values, loops, strict=True)
    )
    if (
        not plain
        or set(kinds) - {_SPATIAL, _REDUCTION}
        or constant_value(realize.predicate) != 1
        or block.match_buffers
    ):
        return None
    reader = _AccessReader(tvm, [one.var for one in block.iter_vars], [loop.extent for loop in loops])
    body = reader.split_quotients(block.body)
    reader.read(body)
    if reader.is_more:
        return None
    return LoopNest(
        reader.variables,
        reader.extents,
        [kind == _REDUCTION for kind in kinds],
        body,
        block.init,
        tuple(reader.accesses),
        frozenset(reader.tangled),
        frozenset(reader.branches),
        frozenset(reader.quotients),
    )


class _AccessReader:
    """Finds out how the accesses of one iteration move."""

    def __init__(self, tvm: TvmObject, variables: list[TvmObject], extents: list[TvmObject]) -> None:
        import tvm_ffi
        from tvm.sym import Analyzer

        self.tvm, self.variables, self.extents = tvm, variables, extents
        self.accesses: list[NestAccess] = []
        self.tangled: set[int] = set()
        self.branches: set[int] = set()
        self.quotients: set[int] = set()
        self.is_more = False
        self.walk = tvm_ffi.structural_walk
        self.analyzer = Analyzer()
        for variable, extent in zip(variables, extents, strict=True):
            self.analyzer.bind(variable, tvm.ir.Range(0, extent))

    def split_quotients(self, root: TvmObject) -> TvmObject:
        """Return a statement whose quotients and remainders depend on as few loops as they can.

        Of ``(a v + b w) % m`` with a and m multiples of g and ``0 <= b w < g`` only ``a v / g % (m / g)`` is one: what
        reshapes leave then lies next to each other again along w.
        """
        import tvm_ffi

        tirx = self.tvm.tirx
        return tvm_ffi.structural_map(root, [((tirx.FloorMod, tirx.FloorDiv), self._split_quotient)])

    def _split_quotient(self, node: TvmObject) -> TvmObject:
        from tvm.sym import detect_linear_equation

        value, modulus = self.analyzer.simplify(node.a), constant_value(node.b)
        if not modulus or modulus < 1:
            return node
        factors = [constant_value(one) for one in detect_linear_equation(value, self.variables)]
        if not factors or any(one is None or one < 0 for one in factors):
            return node
        terms = [(variable, factor or 0) for variable, factor in zip(self.variables, factors[:-1], strict=True)]
        for step in sorted({math.gcd(factor, modulus) for _, factor in terms if factor} - {1}, reverse=True):
            rest = self._total([(one, factor) for one, factor in terms if factor % step], factors[-1] or 0)
            bound = self.analyzer.const_int_bound(rest)
            if not 0 <= bound.min_value <= bound.max_value < step:
                continue
            whole = self._total([(one, factor // step) for one, factor in terms if factor % step == 0], 0)
            if isinstance(node, self.tvm.tirx.FloorDiv):
                return self.analyzer.simplify(self.tvm.tirx.floordiv(whole, modulus // step))
            return self.analyzer.simplify(self.tvm.tirx.floormod(whole, modulus // step) * step + rest)
        return node

    def _total(self, terms: Sequence[tuple[TvmObject, int]], constant: int) -> TvmObject:
        total = self.tvm.tirx.const(constant, "int64")
        for variable, factor in terms:
            total = total + variable * factor
        return total

    def read(self, root: TvmObject) -> None:
        """Go through a statement or an expression."""
        tirx = self.tvm.tirx
        self.walk(
            root,
            [
                (tirx.BufferStore, self._store),
                (self.tvm.ir.expr.TensorLoad, self._load),
                (tirx.Var, self._count),
                (self.tvm.ir.Call, self._call),
                (_statements(self.tvm), self._refuse),
            ],
            order="pre",
        )

    def _store(self, store: TvmObject) -> object:
        self._access(store.buffer, list(store.indices), is_store=True)
        self.read(store.value)
        return _skip()

    def _load(self, load: TvmObject) -> object:
        self._access(load.source, list(load.indices), is_store=False)
        return _skip()

    def _count(self, variable: TvmObject) -> None:
        self.tangled |= self._dependencies(variable)

    def _call(self, call: TvmObject) -> None:
        if str(getattr(call.op, "name", "")).endswith("if_then_else"):
            self.branches |= self._dependencies(call.args[0])

    def _quotient(self, node: TvmObject) -> None:
        self.quotients |= self._dependencies(node)

    def _refuse(self, _: TvmObject) -> object:
        self.is_more = True
        return _skip()

    def _dependencies(self, root: TvmObject) -> set[int]:
        """Return the loops that an expression depends on."""
        dependencies: set[int] = set()

        def seen(node: TvmObject) -> None:
            dependencies.update(place for place, variable in enumerate(self.variables) if node.same_as(variable))

        self.walk(root, (self.tvm.tirx.Var, seen), order="pre")
        return dependencies

    def _access(self, buffer: TvmObject, indices: list[TvmObject], *, is_store: bool) -> None:
        """Note an access, and the loads in its indices."""
        flat: TvmObject = self.tvm.tirx.const(0, "int64")
        for index, size in zip(indices, buffer.shape, strict=True):
            flat = flat * size + index
        used = self._dependencies(flat)
        simple = self.analyzer.simplify(flat)
        steps: list[int | None] = []
        for index_of_loop, variable in enumerate(self.variables):
            moved = replace_variables(simple, {variable: variable + 1}, self.tvm) if index_of_loop in used else simple
            steps.append(constant_value(self.analyzer.simplify(moved - simple)) if index_of_loop in used else 0)
        self.accesses.append(NestAccess(tuple(steps), is_store, int(self.tvm.DataType(str(buffer.dtype)).bits)))
        tirx = self.tvm.tirx
        beyond_sums = (tirx.FloorMod, tirx.FloorDiv, tirx.Min, tirx.Max, tirx.Select, self.tvm.ir.Call)
        for index in indices:
            self.walk(index, (self.tvm.ir.expr.TensorLoad, self._load), order="pre")
            self.walk(index, (beyond_sums, self._quotient), order="pre")


def _statements(tvm: TvmObject) -> tuple[TvmObject, ...]:
    """Return statements that no nest has."""
    tirx = tvm.tirx
    return (tirx.For, tirx.While, tirx.IfThenElse, tirx.AttrStmt, tirx.Evaluate, tvm.s_tir.SBlockRealize)


def _skip() -> object:
    from tvm_ffi.structural import WalkResult

    return WalkResult.SKIP
