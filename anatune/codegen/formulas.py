"""Elementary functions of float32 as expressions of TVM, which become vectors; TVM's own are calls of the C library."""

from __future__ import annotations

import itertools

from anatune.emit.elementary import FORMULAS
from anatune.untyped import TvmObject

__all__ = ["with_formulas"]


def with_formulas(tvm: TvmObject, module: TvmObject) -> TvmObject:
    """Return a module of functions whose elementary functions of float32, and of vectors of it, are formulas."""
    import tvm_ffi

    names = itertools.count()

    def called(call: TvmObject) -> TvmObject:
        formula = FORMULAS.get(str(getattr(call.op, "name", "")).rpartition(".")[2])
        kind = str(call.ty)
        if formula is None or len(call.args) != 1 or kind.partition("x")[0] != "float32":
            return call
        ops = _Expressions(tvm, names, int(kind.partition("x")[2] or 1))
        result = formula(ops, ops.named(call.args[0]))
        for variable, value in reversed(ops.known):
            result = tvm.tirx.Let(variable, value, result)
        return result

    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            body = tvm_ffi.structural_map(function.body, [(tvm.ir.Call, called)])
            if not body.same_as(function.body):
                module[name] = function.with_body(body)
    return module


class _Expressions:
    """Expressions of TVM as `Arithmetic`; each has a name, as formulas use them again."""

    def __init__(self, tvm: TvmObject, names: itertools.count[int], lanes: int) -> None:
        self.tirx, self.names, self.lanes = tvm.tirx, names, lanes
        self.known: list[tuple[TvmObject, TvmObject]] = []

    def named(self, value: TvmObject) -> TvmObject:
        variable = self.tirx.Var(f"x{next(self.names)}", value.ty)
        self.known.append((variable, value))
        return variable

    def constant(self, number: float) -> TvmObject:
        return self._spread(self.tirx.FloatImm("float32", number))

    def binary(self, operation: str, left: TvmObject, right: TvmObject) -> TvmObject:
        return self.named(getattr(self.tirx, operation.capitalize())(left, right))

    def multiply_add(self, left: TvmObject, right: TvmObject, term: TvmObject) -> TvmObject:
        fused = self.tirx.call_llvm_pure_intrin(self._kind("float32"), "llvm.fmuladd", left, right, term)
        return self.named(fused)

    def absolute(self, x: TvmObject) -> TvmObject:
        return self.named(self.tirx.abs(x))

    def signed(self, size: TvmObject, sign: TvmObject) -> TvmObject:
        top = self.tirx.BitwiseAnd(self.bits(sign), self._whole(-(2**31)))
        return self.value(self.tirx.BitwiseOr(self.bits(size), top))

    def less(self, left: TvmObject, right: TvmObject) -> TvmObject:
        return self.tirx.LT(left, right)

    def where(self, holds: TvmObject, yes: TvmObject, no: TvmObject) -> TvmObject:
        return self.named(self.tirx.Select(holds, yes, no))

    def bits(self, x: TvmObject) -> TvmObject:
        return self.named(self.tirx.reinterpret(self._kind("int32"), x))

    def value(self, bits: TvmObject) -> TvmObject:
        return self.named(self.tirx.reinterpret(self._kind("float32"), bits))

    def converted(self, whole: TvmObject) -> TvmObject:
        return self.named(self.tirx.Cast(self._kind("float32"), whole))

    def whole(self, operation: str, left: TvmObject, right: int | TvmObject) -> TvmObject:
        other = self._whole(right) if isinstance(right, int) else right
        kinds = {"add": self.tirx.Add, "sub": self.tirx.Sub}
        shifts = {"shl": self.tirx.shift_left, "ashr": self.tirx.shift_right}
        return self.named((kinds.get(operation) or shifts[operation])(left, other))

    def _whole(self, number: int) -> TvmObject:
        return self._spread(self.tirx.IntImm("int32", number))

    def _spread(self, value: TvmObject) -> TvmObject:
        return value if self.lanes == 1 else self.tirx.Broadcast(value, self.lanes)

    def _kind(self, element: str) -> str:
        return element if self.lanes == 1 else f"{element}x{self.lanes}"
