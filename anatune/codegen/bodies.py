"""Changes of the bodies of TVM's lowered functions."""

from __future__ import annotations

from collections.abc import Callable

from anatune.untyped import TvmObject

__all__ = ["change_bodies"]


def change_bodies(tvm: TvmObject, module: TvmObject, change: Callable[[TvmObject], TvmObject]) -> TvmObject:
    """Put what `change` returns for the body of each function into a module, and return the module."""
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc):
            body = change(function.body)
            if not body.same_as(function.body):
                module[name] = function.with_body(body)
    return module
