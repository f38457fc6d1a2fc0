"""A pass that protects remainders of loops by powers of two from LLVM.

LLVM's loop vectoriser (22) treats ``x[j % 8 * 4 + 1]`` as ``x[j * 4 + 1]`` if each iteration of a loop over j reads
several such elements and vectors have more than 8 numbers: it takes j for a number of three bits that does not wrap,
and drops the check. Therefore a loop over 16 numbers whose remainder by 8 is used becomes two loops of 2 and 8, and
other remainders by powers of two become differences with a quotient that LLVM does not recognise.
"""

from __future__ import annotations

from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.untyped import ir, tirx, tvm

__all__ = ["with_safe_remainders"]

_BITS, _SHIFT = 29, 31
"""Bits of a number from which its remainder by a power of two is computed. The quotient by 2**n is the product with
2**31 + 3, divided by 2**(31 + n); LLVM would recognise a product with 2**31 + 1 as the sum of two shifted numbers."""


def with_safe_remainders(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered CPU functions whose remainders of loops LLVM does not recognise."""
    return change_bodies(tvm, module, lambda body: _RemainderRewriter(tvm, body).body)


class _RemainderRewriter:
    """A rewriter for the body of one function."""

    def __init__(self, tvm: ModuleType, body: tirx.Stmt) -> None:
        import tvm_ffi

        self.tirx, self.load = tvm.tirx, tvm.ir.expr.TensorLoad
        self.walk, self.map = tvm_ffi.structural_walk, tvm_ffi.structural_map
        self.loops: dict[ir.Var, bool] = {}
        self.body = self.map(body, [(self.tirx.For, self._split)])
        self.walk(self.body, [(self.tirx.For, lambda loop: self.loops.update({loop.loop_var: True}))])
        self.body = self.map(self.body, [(self.tirx.FloorMod, self._hide)])

    def _split(self, loop: tirx.For) -> tirx.For:
        """Return a loop split in two; the inner loop has the length of the largest power of two that divides it."""
        tirx, name = self.tirx, loop.loop_var
        sizes = [one.value if isinstance(one, tirx.IntImm) else -1 for one in (loop.min, loop.extent)]
        if sizes[0] != 0 or loop.kind != tirx.ForKind.SERIAL:
            return loop
        divisors: list[int] = []

        def note(node: ir.prim.BinaryOpExpr) -> None:
            if self._is_power(node.b) and node.a.same_as(name):
                divisors.append(int(node.b.value))

        self.walk(loop.body, [(tirx.FloorMod, note)])
        width = max((one for one in divisors if one < sizes[1] and sizes[1] % one == 0), default=0)
        if not width:
            return loop
        outer, inner = (tirx.Var(f"{name.name}_{word}", name.ty) for word in ("outer", "inner"))
        whole = tirx.Add(tirx.Mul(outer, tirx.const(width, str(name.ty))), inner)

        def divide(node: ir.prim.BinaryOpExpr) -> ir.Expr:
            if not node.a.same_as(whole) or not isinstance(node.b, tirx.IntImm):
                return node
            divisor = int(node.b.value)
            if isinstance(node, tirx.FloorDiv):
                return outer if divisor == width else node
            return inner if divisor == width else tirx.FloorMod(inner, node.b) if width % divisor == 0 else node

        callbacks = [
            (tirx.Var, lambda one: whole if one.same_as(name) else one),
            ((tirx.FloorMod, tirx.FloorDiv), divide),
        ]
        body = self.map(loop.body, callbacks)
        zero, counts = tirx.const(0, str(name.ty)), (sizes[1] // width, width)
        numbers = [tirx.const(count, str(name.ty)) for count in counts]
        split = self._split(tirx.For(inner, zero, numbers[1], loop.kind, body, None, loop.annotations))
        return tirx.For(outer, zero, numbers[0], loop.kind, split, None, loop.annotations)

    def _hide(self, node: tirx.FloorMod) -> ir.Expr:
        """Return a remainder of loops as a difference from a multiple of a quotient that LLVM does not recognise."""
        tirx, dtype = self.tirx, str(node.ty)
        if dtype not in ("int32", "int64") or not self._is_power(node.b) or not self._has_loop(node.a):
            return node
        power = int(node.b.value).bit_length() - 1

        def wide(value: int) -> ir.Expr:
            return tirx.const(value, "int64")

        low = tirx.bitwise_and(node.a if dtype == "int64" else tirx.Cast("int64", node.a), wide((1 << _BITS) - 1))
        quotient = tirx.shift_right(tirx.Mul(low, wide((1 << _SHIFT) + 3)), wide(_SHIFT + power))
        rest = tirx.Sub(low, tirx.Mul(quotient, wide(1 << power)))
        return rest if dtype == "int64" else tirx.Cast(dtype, rest)

    def _is_power(self, value: ir.Expr) -> bool:
        number = int(value.value) if isinstance(value, self.tirx.IntImm) else 0
        return 1 < number < 1 << _BITS and number & (number - 1) == 0

    def _has_loop(self, value: ir.Expr) -> bool:
        """Return whether a value depends on loops and not on elements."""
        loops: list[ir.Var] = []
        loads: list[ir.TensorLoad] = []
        self.walk(value, [(self.tirx.Var, lambda one: loops.append(one) if one in self.loops else None)])
        self.walk(value, [(self.load, loads.append)])
        return bool(loops) and not loads
