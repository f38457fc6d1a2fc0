"""Bodies of the functions of a module of TVM's, rewritten."""

from __future__ import annotations

from collections.abc import Callable

from anatune.untyped import TvmObject

__all__ = ["change_bodies"]


def change_bodies(tvm: TvmObject, module: TvmObject, change: Callable[[TvmObject], TvmObject]) -> TvmObject:
    """Return a module with what `change` makes of the body of each of its functions of loops."""
    for name, function in module.functions_items():
        if isinstance(function, tvm.tirx.PrimFunc) and not (body := change(function.body)).same_as(function.body):
            module[name] = function.with_body(body)
    return module
