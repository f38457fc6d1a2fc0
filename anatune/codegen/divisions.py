"""Divisions of whole numbers that do not end the process, in code that TVM writes.

A processor stops a program that divides by zero, or the least number by -1. A pass over lowered functions divides by
one in both cases; the quotient by -1 is then the negative, which wraps, as PyTorch's. What a zero divides is an error
that kernels of `codegen.cpu.divisors` raise before; on a GPU it is any number, as PyTorch's.
"""

from __future__ import annotations

from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.untyped import ir, tirx, tvm

__all__ = ["with_safe_divisions"]


def with_safe_divisions(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered functions that divide whole numbers by elements safely."""
    return change_bodies(tvm, module, lambda body: _Divisions(tvm, body).body)


class _Divisions:
    """Rewrites the body of one function; what indices are divided by, sizes that vary, is left alone."""

    def __init__(self, tvm: ModuleType, body: tirx.Stmt) -> None:
        import tvm_ffi

        self.tirx, self.load, self.walk = tvm.tirx, tvm.ir.expr.TensorLoad, tvm_ffi.structural_walk
        bound: list[tuple[ir.Var, ir.Expr]] = []
        kinds = (self.tirx.Bind, self.tirx.Let)
        self.walk(body, [(kinds, lambda node: bound.append((node.var, node.value)))])
        self.elements: dict[ir.Var, bool] = {}
        for name, value in bound:
            self.elements |= {name: True} if self._reads(value) else {}
        self.body = tvm_ffi.structural_map(body, [((self.tirx.Div, self.tirx.Mod), self._guard)])

    def _reads(self, value: ir.Expr) -> bool:
        """Whether a value is computed of elements."""
        found: list[ir.Expr] = []
        named = (self.tirx.Var, lambda one: found.append(one) if one in self.elements else None)
        self.walk(value, [(self.load, found.append), named])
        return bool(found)

    def _guard(self, node: ir.prim.BinaryOpExpr) -> ir.Expr:
        """Return a quotient or a remainder by what is neither zero nor -1."""
        tirx, divisor = self.tirx, node.b  # written out where it is read: LLVM computes it once
        element, _, lanes = str(node.ty).partition("x")
        if "int" not in element or not self._reads(divisor):
            return node

        def constant(value: int) -> ir.Expr:
            number = tirx.const(value, element)
            return tirx.Broadcast(number, int(lanes)) if lanes else number

        is_zero = tirx.EQ(divisor, constant(0))
        if element.startswith("u"):
            return type(node)(node.a, tirx.Select(is_zero, constant(1), divisor))
        is_minus = tirx.EQ(divisor, constant(-1))
        safe = type(node)(node.a, tirx.Select(tirx.Or(is_zero, is_minus), constant(1), divisor))
        if isinstance(node, tirx.Mod):
            return safe
        sign = tirx.Select(is_minus, constant(-1), constant(1))
        # a product that wraps: the least number has no negative
        product = tirx.Mul(*(tirx.reinterpret(f"u{node.ty}", one) for one in (safe, sign)))
        return tirx.reinterpret(str(node.ty), product)
