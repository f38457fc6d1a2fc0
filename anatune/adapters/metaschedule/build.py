"""What MetaSchedule's builder processes call: TVM's own build function without the imports that CPUs do not need."""

from __future__ import annotations

from anatune.adapters.metaschedule.objects import TvmObject
from anatune.codegen.compat import build_measured

__all__ = ["build"]


def build(module: TvmObject, target: TvmObject, _params: TvmObject) -> TvmObject:
    """Return the built module of a candidate; the arguments are those of ``meta_schedule.builder.default_build``."""
    return build_measured(module, target)
