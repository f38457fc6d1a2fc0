"""The result of lowering a schedule, on any kind of device."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.codegen.compat import schedule_of_module
from anatune.core.schedule import Schedule
from anatune.untyped import tvm

__all__ = ["LoweredSchedule"]


@dataclass(frozen=True)
class LoweredSchedule:
    """A TVM module with the function ``main``, ready for ``tvm.compile``, and the schedule that it was made from."""

    schedule: Schedule
    module: tvm.IRModule
    target: tvm.target.Target

    def tvm_schedule(self) -> tvm.s_tir.Schedule:
        """Return the module as a ``tvm.s_tir.Schedule``."""
        return schedule_of_module(self.module)
