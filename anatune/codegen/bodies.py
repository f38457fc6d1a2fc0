"""Rewriting of the function bodies of a TVM module."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from anatune.untyped import tirx, tvm

__all__ = ["change_bodies"]


def change_bodies(tvm: ModuleType, module: tvm.IRModule, change: Callable[[tirx.Stmt], tirx.Stmt]) -> tvm.IRModule:
    """Return a module in which `change` has rewritten the body of each PrimFunc."""
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and not (body := change(function.body)).same_as(function.body):
            module[name] = function.with_body(body)
    return module
