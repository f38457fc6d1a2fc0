"""Schedules as TVM modules, whatever device they are for."""

from __future__ import annotations

from dataclasses import dataclass

from anatune.codegen.compat import TvmObject, import_tvm, schedule_of_module
from anatune.core.schedule import Schedule
from anatune.core.templates import DEVICES

__all__ = ["Lowered", "tvm_module_json"]


@dataclass(frozen=True)
class Lowered:
    """A TVM module with the function ``main``, ready for ``tvm.compile``, and what it was made from."""

    schedule: Schedule
    module: TvmObject
    target: TvmObject

    def tvm_schedule(self) -> TvmObject:
        """Return the module as a ``tvm.s_tir.Schedule``."""
        return schedule_of_module(self.module)


def tvm_module_json(schedule: Schedule, *, threads: int) -> tuple[str, str]:
    """Return an IRModule as JSON (``tvm.ir.load_json`` reads it), and the target to compile it for, as JSON.

    Its function ``main`` takes all tensors in the workload's own layouts.

    Raises
    ------
    BuildError
        The schedule cannot be lowered.
    """
    lowered: Lowered = DEVICES[schedule.hardware.kind].part("lowering")(schedule, threads)
    return str(import_tvm().ir.save_json(lowered.module)), str(lowered.target)
