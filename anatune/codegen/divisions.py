"""Divisions of whole numbers that do not end the process, in code that TVM writes.

A processor stops a program that divides by zero, or the least number by -1. A pass over lowered functions divides by
one in both cases; the quotient by -1 is then the negative, which wraps, as PyTorch's. What a zero divides is an error
that kernels of `codegen.cpu.divisors` raise before; on a GPU it is any number, as PyTorch's.
"""

from __future__ import annotations

from anatune.untyped import TvmObject

__all__ = ["with_safe_divisions"]


def with_safe_divisions(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module of lowered functions that divide whole numbers of tensors safely; sizes are never zero."""
    import tvm_ffi

    tirx = tvm.tirx
    for name, function in module.functions_items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        bound: list[TvmObject] = []
        tvm_ffi.structural_walk(function.body, ((tirx.Bind, tirx.Let), lambda one, into=bound: into.append(one.var)))

        def divide(node: TvmObject, values: list[TvmObject] = bound) -> TvmObject:
            return _guarded(tirx, node) if _is_of_data(tvm, node, values) else node

        body = tvm_ffi.structural_map(function.body, [((tirx.Div, tirx.Mod), divide)])
        if not body.same_as(function.body):
            module[name] = function.with_body(body)
    return module


def _is_of_data(tvm: TvmObject, node: TvmObject, values: list[TvmObject]) -> bool:
    """Return whether a quotient is one of whole numbers by what memory holds, or by one of some variables."""
    import tvm_ffi

    reads: list[bool] = []
    kinds = [
        (tvm.ir.expr.TensorLoad, lambda _: reads.append(True)),
        (tvm.tirx.Var, lambda one: reads.append(any(one.same_as(other) for other in values))),
    ]
    tvm_ffi.structural_walk(node.b, kinds)
    return "int" in str(node.ty) and any(reads)


def _guarded(tirx: TvmObject, node: TvmObject) -> TvmObject:
    """Return a quotient or a remainder by what is neither zero nor -1."""
    element, _, lanes = str(node.ty).partition("x")

    def constant(value: int) -> TvmObject:
        number = tirx.const(value, element)
        return tirx.Broadcast(number, int(lanes)) if lanes else number

    divisor = tirx.Var("divisor", node.b.ty)
    is_zero = tirx.EQ(divisor, constant(0))
    if element.startswith("u"):
        return tirx.Let(divisor, node.b, type(node)(node.a, tirx.Select(is_zero, constant(1), divisor)))
    is_minus = tirx.EQ(divisor, constant(-1))
    safe = type(node)(node.a, tirx.Select(tirx.Or(is_zero, is_minus), constant(1), divisor))
    if isinstance(node, tirx.Div):
        safe = tirx.Select(is_minus, tirx.Sub(constant(0), node.a), safe)
    return tirx.Let(divisor, node.b, safe)
