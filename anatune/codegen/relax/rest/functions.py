"""Elementary functions of float32 as expressions of TVM, which become vectors; TVM's own are calls of the C library."""

from __future__ import annotations

import itertools

from anatune.codegen.compat import TvmObject
from anatune.emit.elementary import FORMULAS

__all__ = ["with_formulas"]


def with_formulas(tvm: TvmObject, root: TvmObject) -> TvmObject:
    """Return a statement whose elementary functions of float32 are formulas."""
    import tvm_ffi

    names = itertools.count()

    def called(call: TvmObject) -> TvmObject:
        formula = FORMULAS.get(str(getattr(call.op, "name", "")).rpartition(".")[2])
        if formula is None or len(call.args) != 1 or str(call.ty) != "float32":
            return call
        ops = _Expressions(tvm, names)
        result = formula(ops, ops.named(call.args[0]))
        for variable, value in reversed(ops.known):
            result = tvm.tirx.Let(variable, value, result)
        return result

    return tvm_ffi.structural_map(root, [(tvm.ir.Call, called)])


class _Expressions:
    """Expressions of TVM as `Arithmetic`; each has a name, as formulas use them again."""

    def __init__(self, tvm: TvmObject, names: itertools.count[int]) -> None:
        self.tvm, self.tirx, self.names = tvm, tvm.tirx, names
        self.known: list[tuple[TvmObject, TvmObject]] = []

    def named(self, value: TvmObject) -> TvmObject:
        variable = self.tirx.Var(f"x{next(self.names)}", value.ty)
        self.known.append((variable, value))
        return variable

    def constant(self, number: float) -> TvmObject:
        return self.tirx.FloatImm("float32", number)

    def binary(self, operation: str, left: TvmObject, right: TvmObject) -> TvmObject:
        return self.named(getattr(self.tirx, operation.capitalize())(left, right))

    def multiply_add(self, left: TvmObject, right: TvmObject, term: TvmObject) -> TvmObject:
        fused = self.tirx.call_llvm_pure_intrin("float32", "llvm.fmuladd", left, right, term)
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
        return self.named(self.tirx.reinterpret("int32", x))

    def value(self, bits: TvmObject) -> TvmObject:
        return self.named(self.tirx.reinterpret("float32", bits))

    def converted(self, whole: TvmObject) -> TvmObject:
        return self.named(self.tirx.Cast("float32", whole))

    def whole(self, operation: str, left: TvmObject, right: int | TvmObject) -> TvmObject:
        other = self._whole(right) if isinstance(right, int) else right
        kinds = {"add": self.tirx.Add, "sub": self.tirx.Sub}
        shifts = {"shl": self.tirx.shift_left, "ashr": self.tirx.shift_right}
        return self.named((kinds.get(operation) or shifts[operation])(left, other))

    def _whole(self, number: int) -> TvmObject:
        return self.tirx.IntImm("int32", number)
