"""A pass that makes integer divisions safe in code that TVM writes.

A processor ends a program that divides by zero, or the smallest number by -1. The pass divides by one in both cases and
negates the quotient by -1, which wraps around as in PyTorch. Division by zero is an error that the kernels of
`codegen.cpu.divisors` raise before; on a GPU the result is any number, as in PyTorch.
"""

from __future__ import annotations

from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.untyped import ir, tirx, tvm

__all__ = ["with_safe_divisions"]


def with_safe_divisions(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered functions in which integer divisions by elements are safe."""
    return change_bodies(tvm, module, lambda body: _DivisionRewriter(tvm, body).body)


class _DivisionRewriter:
    """A rewriter for the body of one function; divisions of indices by varying sizes are not changed."""

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
        """Return whether a value depends on elements of tensors."""
        elements: list[ir.Expr] = []
        named = (self.tirx.Var, lambda one: elements.append(one) if one in self.elements else None)
        self.walk(value, [(self.load, elements.append), named])
        return bool(elements)

    def _guard(self, node: ir.prim.BinaryOpExpr) -> ir.Expr:
        """Return a quotient or remainder whose divisor is neither zero nor -1."""
        tirx, divisor = self.tirx, node.b  # repeated in the expression; LLVM computes it once
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
        # an unsigned product, because the smallest number has no negative
        product = tirx.Mul(*(tirx.reinterpret(f"u{node.ty}", one) for one in (safe, sign)))
        return tirx.reinterpret(str(node.ty), product)
