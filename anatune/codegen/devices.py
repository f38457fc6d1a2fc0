"""Schedules as TVM modules, whatever device they are for."""

from __future__ import annotations

from anatune.codegen.compat import import_tvm
from anatune.codegen.lowered import Lowered
from anatune.core.schedule import Schedule
from anatune.templates import template_named


def lower(schedule: Schedule, threads: int) -> Lowered:
    """Return a schedule as a TVM module that takes all tensors in the workload's own layouts.

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
    """Return a schedule's program as text; see `Schedule.source`.

    Raises
    ------
    BuildError, MissingDependencyError
        As `lower`.
    """
    template = template_named(schedule.template)
    if template.toolchain == "triton":
        return str(template.program(schedule).source)
    if schedule.hardware.kind == "gpu":
        from anatune.codegen.cuda.lower import cuda_kernel

        return cuda_kernel(schedule).source
    return str(lower(schedule, threads).module.script())


def tvm_module_json(schedule: Schedule, *, threads: int) -> tuple[str, str]:
    """Return an IRModule as JSON (``tvm.ir.load_json`` reads it), and the target to compile it for, as JSON.

    Its function ``main`` takes all tensors in the workload's own layouts.

    Raises
    ------
    BuildError
        The schedule cannot be lowered.
    """
    lowered = lower(schedule, threads)
    return str(import_tvm().ir.save_json(lowered.module)), str(lowered.target)
