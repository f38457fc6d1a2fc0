"""Read blocks of TVM's functions as nests: loops, the body of an iteration, and the strides of its accesses.

The indices of an access are flattened to one index in memory. Its stride along a loop is the number of elements by
which that index grows, if this is the same for all iterations of the other loops. Otherwise, or if the loop's variable
occurs in a condition or a value, the loop is tangled: only its extent is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anatune.codegen.compat import TvmObject

__all__ = ["FusedLoop", "NestAccess", "RelaxNest", "nest_of", "substitute"]

_SPATIAL, _REDUCTION = 0, 2
"""TVM's kinds of loops."""


class NestAccess(NamedTuple):
    """One load or store, and its stride along each loop in elements; None if unknown."""

    steps: tuple[int | None, ...]
    is_store: bool
    bits: int


class FusedLoop(NamedTuple):
    """Loops that are run as one, from the outer one; usually there is only one.

    Attributes
    ----------
    places : tuple of int
        Indices of the nest's loops.
    extent : int or tvm.ir.Expr
        Iterations of all together.
    """

    places: tuple[int, ...]
    extent: TvmObject


@dataclass(frozen=True)
class RelaxNest:
    """A block that reads and writes tensors element by element.

    Attributes
    ----------
    variables, extents : list
        Its loops.
    is_reduction : list of bool
    body : tvm.tirx.Stmt
        One iteration, in terms of the variables.
    first : tvm.tirx.Stmt, optional
        Initial value of a reduction.
    accesses : tuple of Access
    tangled : frozenset of int
        Loops whose variables occur outside of indices.
    branches : frozenset of int
        Loops in the conditions that guard accesses.
    divided : frozenset of int
        Loops in quotients, remainders, bounds or choices within indices.
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
        """Return the spatial loops or the reductions in order, with adjacent loops fused if every access allows it."""
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
        """Return whether the stride of every access along the outer loop is that of the inner loop times its extent."""
        extent = known_value(self.extents[inner])
        if extent is None or {outer, inner} & self.tangled:
            return False
        steps = [(access.steps[outer], access.steps[inner]) for access in self.accesses]
        return all(one is not None and other is not None and one == other * extent for one, other in steps)

    def moves(self, loop: FusedLoop) -> list[int | None]:
        """Return the stride of each access along the innermost of some loops."""
        return [access.steps[loop.places[-1]] for access in self.accesses]


def known_value(extent: TvmObject) -> int | None:
    """Return the value of an extent; None if it is known only at run time."""
    if isinstance(extent, int):
        return extent
    value = getattr(extent, "value", None)
    return value if isinstance(value, int) else None


def is_one(extent: TvmObject) -> bool:
    """Return whether a loop has one iteration."""
    return known_value(extent) == 1


def substitute(root: TvmObject, values: Mapping[TvmObject, TvmObject], tvm: TvmObject) -> TvmObject:
    """Return a statement or expression with expressions in place of variables."""
    import tvm_ffi

    if not values:
        return root
    return tvm_ffi.structural_map(root, [(tvm.tirx.Var, lambda one: values.get(one, one))])


def nest_of(tvm: TvmObject, realize: TvmObject, loops: Sequence[TvmObject]) -> RelaxNest | None:
    """Return a block as a nest; None if it is more than loops around loads, arithmetic and stores.

    Parameters
    ----------
    realize : tvm.s_tir.SBlockRealize
    loops : sequence of tvm.tirx.For
        The loops around the block, from the outer one.
    """
    block = realize.block
    kinds = [int(one.iter_type) for one in block.iter_vars]
    is_nest = len(loops) == len(kinds) and all(
        value.same_as(loop.loop_var) and known_value(loop.min) == 0
        for value, loop in zip(realize.iter_values, loops, strict=True)
    )
    if not is_nest or set(kinds) - {_SPATIAL, _REDUCTION} or known_value(realize.predicate) != 1 or block.match_buffers:
        return None
    reader = _AccessReader(tvm, [one.var for one in block.iter_vars], [loop.extent for loop in loops])
    body = reader.split_quotients(block.body)
    reader.read(body)
    if reader.is_more:
        return None
    return RelaxNest(
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
    """Finds the strides of the accesses in one iteration."""

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
        """Return a statement whose quotients and remainders depend on as few loops as possible.

        In ``(a v + b w) % m`` with a and m multiples of g and ``0 <= b w < g``, only ``a v / g % (m / g)`` is a
        remainder: elements that reshapes leave are then adjacent again along w.
        """
        import tvm_ffi

        tirx = self.tvm.tirx
        return tvm_ffi.structural_map(root, [((tirx.FloorMod, tirx.FloorDiv), self._split_quotient)])

    def _split_quotient(self, node: TvmObject) -> TvmObject:
        from tvm.sym import detect_linear_equation

        value, modulus = self.analyzer.simplify(node.a), known_value(node.b)
        if not modulus or modulus < 1:
            return node
        factors = [known_value(one) for one in detect_linear_equation(value, self.variables)]
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
        """Record the accesses of a statement or an expression."""
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

        def note_variable(node: TvmObject) -> None:
            dependencies.update(place for place, variable in enumerate(self.variables) if node.same_as(variable))

        self.walk(root, (self.tvm.tirx.Var, note_variable), order="pre")
        return dependencies

    def _access(self, buffer: TvmObject, indices: list[TvmObject], *, is_store: bool) -> None:
        """Record an access, and the loads in its indices."""
        flat: TvmObject = self.tvm.tirx.const(0, "int64")
        for index, size in zip(indices, buffer.shape, strict=True):
            flat = flat * size + index
        used = self._dependencies(flat)
        simple = self.analyzer.simplify(flat)
        steps: list[int | None] = []
        for index_of_loop, variable in enumerate(self.variables):
            moved = substitute(simple, {variable: variable + 1}, self.tvm) if index_of_loop in used else simple
            steps.append(known_value(self.analyzer.simplify(moved - simple)) if index_of_loop in used else 0)
        self.accesses.append(NestAccess(tuple(steps), is_store, int(self.tvm.DataType(str(buffer.dtype)).bits)))
        tirx = self.tvm.tirx
        beyond_sums = (tirx.FloorMod, tirx.FloorDiv, tirx.Min, tirx.Max, tirx.Select, self.tvm.ir.Call)
        for index in indices:
            self.walk(index, (self.tvm.ir.expr.TensorLoad, self._load), order="pre")
            self.walk(index, (beyond_sums, self._quotient), order="pre")


def _statements(tvm: TvmObject) -> tuple[TvmObject, ...]:
    """Return the kinds of statements that no nest contains."""
    tirx = tvm.tirx
    return (tirx.For, tirx.While, tirx.IfThenElse, tirx.AttrStmt, tirx.Evaluate, tvm.s_tir.SBlockRealize)


def _skip() -> object:
    from tvm_ffi.structural import WalkResult

    return WalkResult.SKIP
