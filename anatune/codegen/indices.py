"""A pass that keeps TVM from simplifying indices incorrectly.

TVM's pass FlattenBuffer simplifies each index as a map of the surrounding loops (`iter_map_simplify`, 0.27). It loses
constants in quotients and remainders of anything but a sum of loops: ``(16 - i) % 17`` becomes ``-(i % -17)``, and
``((i + 3) % 5 + 3) % 5`` becomes ``(i + 3) % 5``. It does not change an index with an unknown operation. Such quotients
and remainders therefore get an operation without effect, ``| 0``, until that pass is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from anatune.codegen.bodies import change_bodies
from anatune.untyped import ir, tirx, tvm

__all__ = ["PLAIN_INDICES", "guard_indices", "unguard_indices"]

PLAIN_INDICES = "anatune.plain_indices"
"""Attribute of functions that are not changed: their quotients are of sums of loops, which TVM handles correctly.

With a guarded remainder of a pipeline's step, TVM would write short loops of steps twice with one name and refuse that.
"""


def guard_indices(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module with ``| 0`` around each quotient and remainder that TVM would simplify incorrectly."""
    divided = [name for name, function in module.functions_items() if _has_division(tvm, function)]
    if not divided:
        return module
    passes = tvm.s_tir.transform
    simplified = tvm.transform.Sequential(
        [
            passes.CanonicalizeLoop(),
            passes.LowerCrossThreadReduction(),
            passes.LowerInitBlock(),
            passes.PlanAndUpdateBufferAllocationLocation(),
            passes.ConvertBlocksToOpaque(),
            passes.StmtSimplify(),
        ]
    )(module)
    for name in divided:
        function = simplified[name]
        simplified[name] = function.with_body(_IndexGuard(tvm, function.body).body)
    return simplified


def unguard_indices(tvm: ModuleType, module: tvm.IRModule) -> tvm.IRModule:
    """Return a module without the operations that `guard_indices` added."""
    import tvm_ffi

    tirx = tvm.tirx

    def remove(node: ir.prim.BinaryOpExpr) -> ir.Expr:
        other = node.b.value if isinstance(node.b, tirx.Broadcast) else node.b
        return node.a if isinstance(other, tirx.IntImm) and other.value == 0 else node

    return change_bodies(tvm, module, lambda body: tvm_ffi.structural_map(body, [(tirx.BitwiseOr, remove)]))


def _has_division(tvm: ModuleType, function: ir.BaseFunc) -> bool:
    """Return whether a function contains a quotient or a remainder."""
    import tvm_ffi

    if not isinstance(function, tvm.tirx.PrimFunc) or PLAIN_INDICES in (function.attrs or {}):
        return False
    divisions: list[ir.Expr] = []
    tvm_ffi.structural_walk(function.body, [((tvm.tirx.FloorDiv, tvm.tirx.FloorMod), divisions.append)])
    return bool(divisions)


class _IndexGuard:
    """A rewriter for the indices of one function."""

    def __init__(self, tvm: ModuleType, body: tirx.Stmt) -> None:
        import tvm_ffi

        self.tirx, self.load = tvm.tirx, tvm.ir.expr.TensorLoad
        self.walk, self.map = tvm_ffi.structural_walk, tvm_ffi.structural_map
        self.loops: list[ir.Var] = []
        self.walk(body, [(self.tirx.For, self._add_loop)])
        self.body = self.map(body, [(self.tirx.BufferStore, self._store), (self.load, self._guard_load)])

    def _add_loop(self, loop: tirx.For) -> None:
        if isinstance(loop.min, self.tirx.IntImm) and loop.min.value == 0:
            self.loops.append(loop.loop_var)

    def _store(self, store: tirx.BufferStore) -> tirx.BufferStore:
        indices = self._guard_all(store.indices)
        return store if indices is None else self.tirx.BufferStore(store.buffer, store.value, indices)

    def _guard_load(self, load: ir.TensorLoad) -> ir.TensorLoad:
        indices = self._guard_all(load.indices)
        return load if indices is None else self.tirx.BufferLoad(load.source, indices)

    def _guard_all(self, indices: Sequence[ir.Expr]) -> list[ir.Expr] | None:
        """Return the guarded indices, or None if they need no guards."""
        divisions = (self.tirx.FloorDiv, self.tirx.FloorMod)
        changed = [self.map(index, [(divisions, self._division)]) for index in indices]
        is_same = all(one.same_as(other) for one, other in zip(changed, indices, strict=True))
        return None if is_same else changed

    def _division(self, node: ir.prim.BinaryOpExpr) -> ir.Expr:
        return node if self._is_plain(node.a) else self.tirx.bitwise_or(node, self.tirx.const(0, str(node.ty)))

    def _is_plain(self, value: ir.Expr) -> bool:
        """Return whether a value is a sum of loops, their multiples, quotients and remainders."""
        tirx = self.tirx
        if isinstance(value, tirx.Add):
            return self._is_plain(value.a) and self._is_plain(value.b)
        if isinstance(value, tirx.Mul):
            factor = value.b.value if isinstance(value.b, tirx.IntImm) else 1
            return factor > 0 and self._is_plain(value.a)
        if isinstance(value, tirx.Var):
            return any(value.same_as(loop) for loop in self.loops)
        return isinstance(value, tirx.FloorDiv | tirx.FloorMod)
