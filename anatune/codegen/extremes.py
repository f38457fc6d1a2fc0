"""A pass that makes maxima and minima keep NaN, as in PyTorch, ONNX and NumPy.

TVM computes ``max(a, b)`` as ``a > b ? a : b``, which is b if a is NaN; CUDA C returns the number if one of them is
NaN. TVM's maximum of no elements, and its padding for maxima, is the lowest finite number instead of ``-inf``. This
pass over lowered functions writes comparisons instead. It runs after all of TVM's own passes, because these match the
maxima of reductions, and their arithmetic does not know NaN (``x == x`` is true). A comparison with a constant and its
selection are one instruction on x86 processors, as the maximum is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

from anatune.codegen.bodies import change_bodies
from anatune.codegen.divisions import with_safe_divisions
from anatune.codegen.elements import guard_elements, unguard_elements
from anatune.codegen.formulas import with_device_functions, with_formulas
from anatune.codegen.indices import guard_indices, unguard_indices
from anatune.codegen.remainders import with_safe_remainders
from anatune.threads import compute_once
from anatune.untyped import ir, tirx, tvm

__all__ = ["PIPELINE", "keeping_nan", "register_pipeline"]

_Finish: TypeAlias = "Callable[[], tvm.transform.Pass]"
PIPELINE = "anatune"
"""Name of the pipeline that `register_pipeline` registers."""


def keeping_nan(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module of lowered functions in which floating-point maxima and minima keep NaN."""
    return change_bodies(tvm, module, lambda body: _ExtremesRewriter(tvm, body).body)


@compute_once
def register_pipeline(tvm: ModuleType) -> str:
    """Register a pipeline of TVM's and anatune's passes (indices, formulas, NaN, safe divisions); return its name."""
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP, register_tir_pipeline

    def wrap(change: Callable[[ModuleType, ir.IRModule], ir.IRModule], name: str) -> ir.transform.Pass:
        return tvm.transform.module_pass(lambda module, _: change(tvm, module), opt_level=0, name=name)

    def with_it(finish: _Finish) -> _Finish:
        unguard, keep_nan = wrap(unguard_indices, "UnguardIndices"), wrap(keeping_nan, "KeepNan")
        last = [wrap(unguard_elements, "UnguardElements"), keep_nan, wrap(with_safe_divisions, "Divide")]
        return lambda: tvm.transform.Sequential([unguard, finish(), *last])

    def factory() -> tuple[ir.transform.Pass, _Finish, _Finish]:
        passes, host, device = PIPELINE_MAP["s_tir"]()
        guards = [wrap(guard_elements, "GuardElements"), wrap(guard_indices, "GuardIndices")]
        guarded = tvm.transform.Sequential([*guards, passes])

        def behind(finish: _Finish, *changes: Callable[..., ir.IRModule]) -> _Finish:
            return with_it(lambda: tvm.transform.Sequential([*(wrap(one, one.__name__) for one in changes), finish()]))

        return guarded, behind(host, with_safe_remainders, with_formulas), behind(device, with_device_functions)

    register_tir_pipeline(PIPELINE, factory)
    return PIPELINE


class _ExtremesRewriter:
    """A rewriter for the body of one function."""

    def __init__(self, tvm: ModuleType, body: tirx.Stmt) -> None:
        import tvm_ffi

        self.tirx, self.load = tvm.tirx, tvm.ir.expr.TensorLoad
        tirx = tvm.tirx
        self.names = itertools.count()
        self.sought: list[tuple[ir.Var, float]] = []
        """Buffers that hold the largest or smallest of elements, and their initial value in TVM."""
        tvm_ffi.structural_walk(body, (tirx.BufferStore, self._seek))
        rewriting = [
            ((tirx.Max, tirx.Min), self._extreme),
            (tirx.NE, self._compare_different),
            (tirx.BufferStore, self._begin_infinite),
            (tvm.ir.Call, self._pad_infinite),
            (tirx.Cast, self._select_truth),
        ]
        self.body = tvm_ffi.structural_map(body, rewriting)

    def _seek(self, store: tirx.BufferStore) -> None:
        value = store.value
        if not isinstance(value, self.tirx.Max | self.tirx.Min) or not _is_float(value):
            return
        for side in (value.a, value.b):
            if isinstance(side, self.load) and side.source.same_as(store.buffer):
                limit = self.tirx.min_value if isinstance(value, self.tirx.Max) else self.tirx.max_value
                self.sought.append((store.buffer, float(limit(_element_dtype(value)).value)))

    def _extreme(self, node: ir.prim.BinaryOpExpr) -> ir.Expr:
        """Return comparisons that select NaN if one of the numbers is NaN."""
        if not _is_float(node):
            return node
        tirx = self.tirx
        constant, other = (node.b, node.a) if self._is_constant(node.b) else (node.a, node.b)
        beats = tirx.GT if isinstance(node, tirx.Max) else tirx.LT
        value = tirx.Var(f"value{next(self.names)}", other.ty)
        if self._is_constant(constant):
            return tirx.Let(value, other, tirx.Select(beats(constant, value), constant, value))
        first = tirx.Var(f"value{next(self.names)}", constant.ty)
        larger = tirx.Select(beats(first, value), first, value)
        selected = tirx.Select(tirx.EQ(first, first), larger, first)
        return tirx.Let(first, constant, tirx.Let(value, other, selected))

    def _select_truth(self, cast: tirx.Cast) -> ir.Expr:
        """Return a cast of truth values as a selection, because TVM's code for a cast of vectors fails in a Let."""
        if not str(cast.value.ty).startswith("boolx"):
            return cast
        unit, zero = (self.tirx.const(number, _element_dtype(cast)) for number in (1, 0))
        lanes = int(str(cast.ty).partition("x")[2])
        return self.tirx.Select(cast.value, self.tirx.Broadcast(unit, lanes), self.tirx.Broadcast(zero, lanes))

    def _compare_different(self, node: ir.prim.BinaryOpExpr) -> ir.Expr:
        """Return the negation of an equality, because in TVM's code for CPUs the comparison NaN != x is false."""
        return self.tirx.Not(self.tirx.EQ(node.a, node.b)) if _is_float(node.a) else node

    def _begin_infinite(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """Return a store of an initial value with an infinity."""
        limits = [limit for buffer, limit in self.sought if buffer.same_as(store.buffer)]
        value = self._infinite(store.value, limits)
        return store if value is store.value else self.tirx.BufferStore(store.buffer, value, store.indices)

    def _pad_infinite(self, call: ir.Call) -> ir.Expr:
        """Return a selection between an element and padding, with an infinity as padding of maxima and minima."""
        if not self.sought or str(getattr(call.op, "name", "")) != "prim.if_then_else":
            return call
        condition, inside, outside = call.args
        value = self._infinite(outside, [limit for _, limit in self.sought])
        return call if value is outside else self.tirx.if_then_else(condition, inside, value)

    def _infinite(self, value: ir.Expr, limits: list[float]) -> ir.Expr:
        """Return an infinity for a constant that is one of the limits; return other values unchanged."""
        tirx = self.tirx
        if isinstance(value, tirx.Broadcast):
            element = self._infinite(value.value, limits)
            return value if element is value.value else tirx.Broadcast(element, value.lanes)
        if not isinstance(value, tirx.FloatImm) or float(value.value) not in limits:
            return value
        return tirx.FloatImm(_element_dtype(value), math.copysign(math.inf, float(value.value)))

    def _is_constant(self, value: ir.Expr) -> bool:
        tirx = self.tirx
        return isinstance(value.value if isinstance(value, tirx.Broadcast) else value, tirx.FloatImm)


def _element_dtype(value: ir.Expr) -> str:
    """Return the dtype of a value's elements."""
    return str(value.ty).partition("x")[0]


def _is_float(value: ir.Expr) -> bool:
    return "float" in str(value.ty)
