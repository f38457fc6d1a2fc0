"""Divisions of whole numbers that do not end the process, in code that TVM writes.

A processor stops a program that divides by zero, or the least number by -1. A pass over lowered functions divides by
one in both cases; the quotient by -1 is then the negative, which wraps, as PyTorch's. What a zero divides is an error
that kernels of `codegen.cpu.divisors` raise before; on a GPU it is any number, as PyTorch's.
"""

from __future__ import annotations

from anatune.codegen.bodies import change_bodies
from anatune.untyped import TvmObject

__all__ = ["with_safe_divisions"]


def with_safe_divisions(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module of lowered functions that divide whole numbers by what is no constant safely."""
    import tvm_ffi

    kinds = [((tvm.tirx.Div, tvm.tirx.Mod), lambda node: _guarded(tvm.tirx, node))]
    return change_bodies(tvm, module, lambda body: tvm_ffi.structural_map(body, kinds))


def _guarded(tirx: TvmObject, node: TvmObject) -> TvmObject:
    """Return a quotient or a remainder by what is neither zero nor -1."""
    element, _, lanes = str(node.ty).partition("x")
    known = node.b.value if isinstance(node.b, tirx.Broadcast) else node.b
    if "int" not in element or isinstance(known, tirx.IntImm):
        return node

    def constant(value: int) -> TvmObject:
        number = tirx.const(value, element)
        return tirx.Broadcast(number, int(lanes)) if lanes else number

    divisor = node.b  # written out where it is read: LLVM computes it once
    is_zero = tirx.EQ(divisor, constant(0))
    if element.startswith("u"):
        return type(node)(node.a, tirx.Select(is_zero, constant(1), divisor))
    is_minus = tirx.EQ(divisor, constant(-1))
    safe = type(node)(node.a, tirx.Select(tirx.Or(is_zero, is_minus), constant(1), divisor))
    return tirx.Select(is_minus, tirx.Sub(constant(0), node.a), safe) if isinstance(node, tirx.Div) else safe
