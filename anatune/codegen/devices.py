"""Lowering of schedules for any device."""

from __future__ import annotations

from anatune.codegen.compat import import_tvm
from anatune.codegen.lowered import LoweredSchedule
from anatune.core.schedule import Schedule
from anatune.templates import get_template


def lower(schedule: Schedule, threads: int) -> LoweredSchedule:
    """Lower a schedule to a TVM module that takes all tensors in the workload's own layouts.

    Raises
    ------
    BuildError
        The schedule cannot be lowered.
    MissingDependencyError
        TVM is not installed.
    """
    if schedule.hardware.kind == "gpu":
        from anatune.codegen.cuda.lower import lower_gpu

        return lower_gpu(schedule, threads)
    from anatune.codegen.cpu.lower import lower as lower_cpu

    return lower_cpu(schedule, threads=threads, prepacked=False)


def source(schedule: Schedule, threads: int) -> str:
    """Return the source code of a schedule's kernel, see `Schedule.source`.

    Raises
    ------
    BuildError, MissingDependencyError
        As in `lower`.
    """
    template = get_template(schedule.template)
    if template.toolchain == "triton":
        return str(template.program(schedule).source)
    if schedule.hardware.kind == "gpu":
        from anatune.codegen.cuda.lower import cuda_kernel

        return cuda_kernel(schedule).source
    return str(lower(schedule, threads).module.script())


def tvm_module_json(schedule: Schedule, *, threads: int) -> tuple[str, str]:
    """Return a schedule's IRModule and its target, both as JSON; ``tvm.ir.load_json`` reads the module.

    The function ``main`` takes all tensors in the workload's own layouts.

    Raises
    ------
    BuildError
        The schedule cannot be lowered.
    """
    lowered = lower(schedule, threads)
    return str(import_tvm().ir.save_json(lowered.module)), str(lowered.target)
