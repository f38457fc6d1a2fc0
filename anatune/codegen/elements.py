"""A pass that keeps TVM from simplifying arithmetic of elements incorrectly.

TVM simplifies floating-point numbers as if none were NaN or infinite and no sum were rounded (`RewriteSimplifier`,
0.27): ``(x + y) - y`` becomes x, ``x - x`` zero, ``x == x`` true and ``not x < y`` ``y <= x``. It treats integers as
indices that never overflow, so that ``x + 1 > x`` is true; and LLVM extends sums of signed numbers to 64 bits before it
adds them. Such operators are therefore replaced by functions that TVM does not know until its passes are done; those of
integers then wrap around (on CPUs they are `formulas`, on GPUs operators on unsigned numbers). Constants that are zero
stay tensors (`rest.legalising`), because TVM would replace products with them by zero.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.threads import compute_once
from anatune.untyped import ir, tirx, tvm

__all__ = ["guard_elements", "unguard_elements"]

_FLOATS = ("Sub", "EQ", "NE", "LT", "LE", "GT", "GE")
"""Kinds of expressions with wrong rules for floating-point numbers, and those that such rules match."""
_SUMS = ("Add", "Sub", "Mul")


@compute_once
def _register_operators(tvm: ModuleType) -> dict[str, type[ir.Expr]]:
    """Register the operators with TVM; return name -> kind of expression that each replaces."""
    from tvm.ir.op import register_op_attr

    names = {f"tirx.anatune.guarded_{kind}": kind for kind in {*_FLOATS, *_SUMS}}
    for name in names:
        register_op_attr(name, "TCallEffectKind", 1)  # pure
        register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
        register_op_attr(name, "TVectorizable", True)
    return {name: getattr(tvm.tirx, kind) for name, kind in names.items()}


def guard_elements(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which the arithmetic of elements is hidden from TVM."""
    from tvm_ffi import structural_map

    names = {kind: name for name, kind in _register_operators(tvm).items()}
    floats = tuple(getattr(tvm.tirx, kind) for kind in _FLOATS)

    def guard(node: ir.prim.BinaryOpExpr) -> ir.Expr:
        return tvm.tirx.call_intrin(node.ty, names[type(node)], node.a, node.b)

    def guard_float(node: ir.prim.BinaryOpExpr) -> ir.Expr:
        return guard(node) if str(node.a.ty).startswith("float") else node

    def guard_store(store: tirx.BufferStore) -> tirx.BufferStore:
        value = _guard_whole(tvm, store, guard)
        return store if value is store.value else tvm.tirx.BufferStore(store.buffer, value, store.indices)

    callbacks = [(floats, guard_float), (tvm.tirx.BufferStore, guard_store)]
    return change_bodies(tvm, module, lambda body: structural_map(body, callbacks))


def _guard_whole(tvm: ModuleType, store: tirx.BufferStore, guard: Callable[..., ir.Expr]) -> ir.Expr:
    """Return a store's value in which the arithmetic of integer elements is guarded, but not that of their indices."""
    from tvm_ffi import structural_map, structural_walk

    tirx, load = tvm.tirx, tvm.ir.expr.TensorLoad
    kinds = tuple(getattr(tirx, kind) for kind in {*_FLOATS, *_SUMS})
    hidden: dict[ir.Var, ir.TensorLoad] = {}

    def hide(node: ir.TensorLoad) -> ir.Var:
        name = tirx.Var(f"element{len(hidden)}", node.ty)
        hidden[name] = node
        return name

    def has_element(node: ir.Expr) -> bool:
        names: list[ir.Var] = []
        structural_walk(node, [(tirx.Var, lambda name: names.append(name) if name in hidden else None)])
        return bool(names)

    def is_result(node: ir.Expr) -> bool:
        return node in hidden and hidden[node].source.same_as(store.buffer)

    def guard_known(node: ir.prim.BinaryOpExpr) -> ir.Expr:
        if is_result(node.a) or is_result(node.b):  # TVM has to recognise a reduction
            return node
        return guard(node) if "int" in str(node.a.ty) and has_element(node) else node

    def show(name: ir.Var) -> ir.Expr:
        return structural_map(hidden[name], [(tirx.Var, show)]) if name in hidden else name

    changed = structural_map(structural_map(store.value, [(load, hide)]), [(kinds, guard_known)])
    return structural_map(changed, [(tirx.Var, show)]) if hidden else store.value


def unguard_elements(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module in which the expressions that `guard_elements` replaced are restored."""
    from tvm_ffi import structural_map

    kinds = _register_operators(tvm)

    def unguard(call: ir.Call) -> ir.Expr:
        kind = kinds.get(str(getattr(call.op, "name", "")))
        if kind is None:
            return call
        if not str(call.ty).startswith("int"):
            return kind(*call.args)
        return tvm.tirx.Cast(str(call.ty), kind(*(tvm.tirx.Cast(f"u{call.ty}", one) for one in call.args)))

    return change_bodies(tvm, module, lambda body: structural_map(body, [(tvm.ir.Call, unguard)]))
