"""Read nests of TVM's loops as `ir.DeviceNest`; only this module knows how TVM writes values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from anatune.codegen.compat import import_tvm
from anatune.network.relax.device.ir import (
    NAN_STAYS,
    CallExpr,
    Cast,
    ChoiceExpr,
    DeviceNest,
    Element,
    Expr,
    Infix,
    Name,
    NoSourceError,
    Number,
    Reduction,
    equal,
    where,
)  # fmt: skip
from anatune.network.relax.rest import nests
from anatune.network.relax.rest.nests import known_value

if TYPE_CHECKING:
    from tvm import ir, tirx

__all__ = ["JOINS", "read_nest"]

JOINS = ("Add", "Max", "Min", "Or", "And", "Mul")
"""Kinds of reductions, by TVM's name of the operator that joins two values."""
_INFIX = {
    "Add": "+", "Sub": "-", "Mul": "*", "EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">=",
    "And": "&", "Or": "|", "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "LShift": "<<", "RShift": ">>",
}  # fmt: skip
_SIGNS = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "shift_left": "<<", "shift_right": ">>"}
"""TVM function -> operator of Triton."""


def read_nest(name: str, nest: nests.RelaxNest, buffers: Mapping[tirx.Var, int]) -> DeviceNest:
    """Return a nest of a function with the name `name`.

    Parameters
    ----------
    buffers : mapping
        Index of each of the function's buffers.

    Raises
    ------
    NoSourceError
        The nest has no Triton source.
    """
    return _NestReader(name, nest, buffers).read()


class _NestReader:
    def __init__(self, name: str, nest: nests.RelaxNest, buffers: Mapping[tirx.Var, int]) -> None:
        from tvm.sym import Analyzer

        self.tvm = import_tvm()
        self.name, self.nest, self.buffers = name, nest, buffers
        self.loops = set(nest.variables)
        self.values: dict[tirx.Var, Expr] = {one: Name(f"i{place}") for place, one in enumerate(nest.variables)}
        self.analyzer = Analyzer()
        for variable, extent in zip(nest.variables, nest.extents, strict=True):
            self.analyzer.bind(variable, self.tvm.ir.Range(0, extent))

    def read(self) -> DeviceNest:
        nest, stores = self.nest, self.stores(self.nest.body)
        if len(stores) > 1:
            raise NoSourceError(f"{self.name}: a nest with several results has no Triton source")
        value = self.reduction(stores[0]) if any(nest.is_reduction) else self.value(stores[0].value)
        moves = tuple(access.steps for access in nest.accesses if not access.is_store)
        target = self.element(stores[0].buffer, stores[0].indices)
        extents = tuple(int(extent) for extent in nest.extents)
        return DeviceNest(self.name, extents, tuple(nest.is_reduction), target, value, moves)

    def stores(self, root: tirx.Stmt) -> list[tirx.BufferStore]:
        import tvm_ffi

        stores: list[tirx.BufferStore] = []
        tvm_ffi.structural_walk(root, (self.tvm.tirx.BufferStore, stores.append))
        return stores

    def reduction(self, store: tirx.BufferStore) -> Reduction:
        kind, node = type(store.value).__name__, store.value
        sides = [node.a, node.b] if kind in JOINS else []
        terms = [side for side in sides if not self.is_own(side, store)]
        if len(terms) != 1:
            raise NoSourceError(f"{self.name}: the reduction {node!s:.60} has no Triton source")
        first = self.value(self.stores(self.nest.first)[0].value)
        return Reduction(kind, self.value(terms[0]), first, str(node.ty))

    def is_own(self, node: ir.Expr, store: tirx.BufferStore) -> bool:
        return isinstance(node, self.tvm.ir.expr.TensorLoad) and node.source.same_as(store.buffer)

    def element(self, buffer: tirx.Var, indices: Sequence[ir.Expr]) -> Element:
        """Return an element with its index in memory."""
        from tvm.sym import detect_linear_equation

        flat = self.tvm.tirx.const(0, "int64")
        for index, size in zip(indices, buffer.shape, strict=True):
            flat = flat * size + index
        flat = self.analyzer.simplify(flat)
        factors = [known_value(one) for one in detect_linear_equation(flat, list(self.nest.variables))]
        exact = tuple(factor for factor in factors if factor is not None)
        return Element(self.buffers[buffer], self.value(flat), exact if exact and len(exact) == len(factors) else None)

    def value(self, node: ir.Expr) -> Expr:
        tvm, kind = self.tvm, type(node).__name__
        if isinstance(node, tvm.ir.expr.TensorLoad):
            return self.element(node.source, node.indices)
        if node in self.values:
            return self.values[node]
        if kind in ("IntImm", "FloatImm"):
            return Number(int(node.value) if str(node.ty) == "bool" else node.value)
        if kind in _INFIX:
            return Infix(_INFIX[kind], self.value(node.a), self.value(node.b))
        if kind in ("Max", "Min"):
            sides = self.value(node.a), self.value(node.b)
            return CallExpr(f"{kind.lower()}imum", sides, NAN_STAYS if "float" in str(node.ty) else ())
        if kind == "Not":
            return equal(self.value(node.a), 0)
        if kind in ("Div", "FloorDiv", "Mod", "FloorMod"):
            return self.quotient(node, kind)
        if kind == "Select":
            return where(*(self.value(one) for one in (node.condition, node.true_value, node.false_value)))
        if kind == "Cast":
            return Cast(self.value(node.value), str(node.ty), str(node.value.ty))
        if isinstance(node, tvm.ir.Call):
            return self.call(node)
        if isinstance(node, tvm.tirx.Let):
            self.values[node.var] = self.value(node.value)
            return self.value(node.body)
        raise NoSourceError(f"{kind} {node!s:.80} has no Triton source")

    def quotient(self, node: tirx.FloorDiv, kind: str) -> Expr:
        left, right = self.value(node.a), self.value(node.b)
        is_float, is_division = str(node.ty).startswith(("float", "bfloat")), kind.endswith("Div")
        if is_float and kind != "Div":
            raise NoSourceError(f"{kind} of {node.ty} has no Triton source")
        if is_float:
            return left / right
        if kind.startswith("Floor") and not self.is_natural(node.a):  # Triton's own truncate, as C's
            return CallExpr("_floor_div" if is_division else "_floor_mod", (left, right))
        return left // right if is_division else left % right

    def is_natural(self, node: ir.Expr) -> bool:
        """Return whether an integer is known to be at least zero; only sums and products of such are recognised."""
        if node in self.loops:
            return True
        if type(node).__name__ in ("Add", "Mul", "FloorDiv", "FloorMod", "Div", "Mod"):
            return self.is_natural(node.a) and self.is_natural(node.b)
        constant = known_value(node)
        return constant is not None and constant >= 0

    def call(self, node: ir.Call) -> Expr:
        name = str(getattr(node.op, "name", "")).rpartition(".")[2]
        arguments = tuple(map(self.value, node.args))
        if name == "if_then_else":
            return ChoiceExpr(*arguments)
        if name in _SIGNS:
            return Infix(_SIGNS[name], *arguments)
        return arguments[0] if name == "likely" else CallExpr(name, arguments)
