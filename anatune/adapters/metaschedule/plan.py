"""Plans: the best predicted schedule of every function in a module, written into a MetaSchedule database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import run_secs
from anatune.adapters.metaschedule.tasks import check_target, device_spec, read_target, task_model, task_of
from anatune.arguments import check_function
from anatune.codegen.compat import import_tvm, list_unlowered_operators
from anatune.codegen.tvm.kernel import find_kernel_names
from anatune.core.hardware.spec import HardwareSpec
from anatune.errors import BuildError, RecordError, SpaceError, WorkloadError
from anatune.files import reason
from anatune.measure.named_hardware import HardwareLike
from anatune.untyped import ms, tirx, tvm

__all__ = ["plan_model"]

_log = logging.getLogger(__name__)
_LEGALISE = "tvm.relax.transform.LegalizeOps()"


def plan_model(
    module: tvm.IRModule,
    target: tvm.target.Target,
    folder: str | Path,
    hw: HardwareLike = "host",
    on_skip: Callable[[str], None] | None = None,
) -> ms.database.JSONDatabase:
    """Write the best predicted schedule of every function in a module into a database, without measuring.

    The times of the records are predictions. Use a separate folder for plans, because TVM applies the record with the
    smallest time in a database. Planning the same module again adds nothing. Pass the module to which the database will
    be applied, after all passes that change its functions: TVM looks functions up by structure.

    Parameters
    ----------
    module : tvm.IRModule or tvm.tirx.PrimFunc
        A module of PrimFuncs, or a legalised Relax module, whose operators are PrimFuncs.
    target : tvm.target.Target or str
        A CPU, whose "num-cores" is the number of threads, or a GPU (CUDA).
    folder : str or Path
        The folder of the database; it is created if missing.
    hw : str, Path, CpuSpec or GpuSpec
        The device: a spec, its name, "host", or a TOML file.
    on_skip : callable, optional
        Called with a line for each function without a kernel, and for each operator that is not legalised. Without it,
        a warning is logged if no function was planned.

    Returns
    -------
    tvm.s_tir.meta_schedule.database.JSONDatabase
        The database; its ``len`` is the number of records.

    Raises
    ------
    WorkloadError
        The module has no PrimFunc, because it was not legalised.
    SpaceError
        `target` is not of the kind of `hw` (CPU or GPU), it lacks the vector instructions of `hw`, or `on_skip` is not
        a function.
    RecordError
        The folder cannot be created, or a database in it cannot be read.
    UnknownNameError, SpecError
        The device is unknown or its file is wrong.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    package = meta_schedule()
    check_function("plan_model: on_skip", on_skip)
    hardware, target = device_spec(hw), read_target(target)
    check_target(target, hardware)
    normalise = import_tvm().get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    functions, operators = _list_functions(normalise(module) if type(module).__name__ == "PrimFunc" else module)
    database = _open_database(folder, on_skip)
    existing = {(find_kernel_names(record.trace), *run_secs(record)) for record in database.get_all_tuning_records()}
    skipped = [f"{name} is not legalised and was not planned; run {_LEGALISE} first" for name in operators]
    planned = 0
    for name, function in functions:
        single = normalise(function)
        try:
            trace, time_s = _plan(single, target, hardware)
        except (WorkloadError, BuildError, SpaceError) as error:
            skipped.append(f"{name}: {error}")
            continue
        planned += 1
        arguments = package.arg_info.ArgInfo.from_prim_func(function)
        record = package.database.TuningRecord(trace, database.commit_workload(single), [time_s], target, arguments)
        key = (find_kernel_names(trace), *run_secs(record))
        if key not in existing:
            database.commit_tuning_record(record)
            existing.add(key)
    if on_skip is not None:
        for line in skipped:
            on_skip(line)
    elif not planned:
        message = "%s: none of %d functions was planned (%s; on_skip=print lists the reasons)"
        _log.warning(message, folder, len(functions), skipped[0])
    return database


def _open_database(folder: str | Path, on_skip: Callable[[str], None] | None) -> ms.database.JSONDatabase:
    """Return the database of a folder; both are created if missing.

    Raises
    ------
    RecordError
        The folder cannot be created, or a database in it cannot be read.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder}: {reason(error)}; name another folder") from error
    return meta_schedule().database.JSONDatabase(work_dir=str(folder), on_skip=on_skip)


def _list_functions(module: tvm.IRModule) -> tuple[list[tuple[str, tirx.PrimFunc]], list[str]]:
    """Return the PrimFuncs of a module by name, and the operators that are not legalised.

    Raises
    ------
    WorkloadError
        `module` is not a module, or has no PrimFunc.
    """
    if not hasattr(module, "functions_items"):
        raise WorkloadError(f"plan_model: the module is a {type(module).__name__}, expected a tvm.IRModule")
    functions = [(name.name_hint, one) for name, one in module.functions_items() if type(one).__name__ == "PrimFunc"]
    operators = list_unlowered_operators(module)
    if not functions:
        parts = f"the operators {', '.join(operators)}" if operators else "no operators either"
        raise WorkloadError(
            f"plan_model: the module has no PrimFunc (it has {parts}), expected a legalised module; plan the result of "
            f"{_LEGALISE}(module), after all passes that it will be compiled with"
        )
    return functions, operators


def _plan(
    module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec
) -> tuple[tvm.s_tir.schedule.Trace, float]:
    """Return the trace of the best predicted schedule of a function, and its predicted time.

    Raises
    ------
    WorkloadError, BuildError, SpaceError
        There is no kernel for the function.
    """
    task = task_of(module, target, hardware)
    model = task_model(task, hardware)
    points = model.rank(1).points
    if not len(points):
        raise WorkloadError(f"no schedule of {task.workload.describe()} is legal on {hardware.name}")
    traced = task.schedule(model.space.schedule_of(points[0]), predicted=True)
    return traced.trace, float(model.times(points[:1])[0][0])
