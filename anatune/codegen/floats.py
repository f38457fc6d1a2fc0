"""Arithmetic of floating-point numbers that TVM would simplify wrongly stays as it is.

TVM simplifies floating-point numbers as if none were NaN or infinite and no sum were rounded (`RewriteSimplifier`,
0.27): ``(x + y) - y`` becomes x, ``x - x`` zero, ``x == x`` true and ``not x < y`` ``y <= x``. Differences and
comparisons are functions that it does not know until its passes are done. Constants that are zero, of which it takes
products for zero when it makes them, stay tensors (`rest.legalising`).
"""

from __future__ import annotations

from anatune.threads import once
from anatune.untyped import TvmObject

__all__ = ["guard_floats", "unguard_floats"]

_GUARDED = ("Sub", "EQ", "NE", "LT", "LE", "GT", "GE")
"""Kinds of expressions whose rules for floating-point numbers are wrong, or which such rules read."""


@once
def _operators(tvm: TvmObject) -> dict[str, TvmObject]:
    """Return the operator that stands for each kind of expression, by its name in TVM."""
    from tvm.ir.op import register_op_attr

    names = {f"tirx.anatune.guarded_{kind}": kind for kind in _GUARDED}
    for name in names:
        register_op_attr(name, "TCallEffectKind", 1)  # pure
        register_op_attr(name, "TScriptPrinterName", name.removeprefix("tirx."))
        register_op_attr(name, "TVectorizable", True)
    return {name: getattr(tvm.tirx, kind) for name, kind in names.items()}


def guard_floats(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module of functions whose differences and comparisons of floating-point numbers TVM does not know."""
    names = {kind: name for name, kind in _operators(tvm).items()}

    def guard(node: TvmObject) -> TvmObject:
        is_float = str(node.a.ty).startswith("float")
        return tvm.tirx.call_intrin(node.ty, names[type(node)], node.a, node.b) if is_float else node

    return _map(tvm, module, tuple(names), guard)


def unguard_floats(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module in which what `guard_floats` replaced is back."""
    kinds = _operators(tvm)

    def unguard(call: TvmObject) -> TvmObject:
        kind = kinds.get(str(getattr(call.op, "name", "")))
        return call if kind is None else kind(*call.args)

    return _map(tvm, module, tvm.ir.Call, unguard)


def _map(tvm: TvmObject, module: TvmObject, kinds: TvmObject, change: TvmObject) -> TvmObject:
    import tvm_ffi

    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, [(kinds, change)])
            if not body.same_as(function.body):
                module[name] = function.with_body(body)
    return module
