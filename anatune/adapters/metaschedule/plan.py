"""Plans: the first choice of the model for every function of a module, written into a MetaSchedule database."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from anatune.adapters.metaschedule.database import meta_schedule
from anatune.adapters.metaschedule.objects import run_secs
from anatune.adapters.metaschedule.tasks import check_target, device_spec, target_from, task_model, task_of
from anatune.arguments import checked_function
from anatune.codegen.compat import import_tvm, operators_left
from anatune.codegen.tvm.kernel import kernel_names
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
    """Write the first choice of the model for every function of a module into a database; nothing is measured.

    The times of its records are predictions: give the plan a folder of its own, TVM takes the smallest time it finds.
    Planning the same again adds nothing. The module has to be the one that the database will be applied to, after all
    passes that change its functions: TVM looks them up by structure.

    Parameters
    ----------
    module : tvm.IRModule or tvm.tirx.PrimFunc
        Of PrimFuncs, or a legalised Relax module: its operators are PrimFuncs.
    target : tvm.target.Target or str
        A CPU, whose "num-cores" are the threads, or a GPU (CUDA).
    folder : str or Path
        Where the database goes; made if missing.
    hw : str, Path, CpuSpec or GpuSpec
        The device: a spec, its name, "host", or a file.
    on_skip : callable, optional
        Called with a line for each function that anatune has no kernel for, and for operators that are no functions
        yet. Without it there is a warning in the log where nothing at all was planned.

    Returns
    -------
    tvm.s_tir.meta_schedule.database.JSONDatabase
        ``len`` of it is the number of records.

    Raises
    ------
    WorkloadError
        The module has no PrimFunc: it was not legalised.
    SpaceError
        `target` is no device of the kind of `hw`, the target lacks the vectors of `hw`, or `on_skip` is no function.
    RecordError
        The folder cannot be made, or a database in it cannot be read.
    UnknownNameError, SpecError
        There is no such hardware.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    package = meta_schedule()
    checked_function("plan_model: on_skip", on_skip)
    hardware, target = device_spec(hw), target_from(target)
    check_target(target, hardware)
    normalised = import_tvm().get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    functions, operators = _functions_of(normalised(module) if type(module).__name__ == "PrimFunc" else module)
    database = _opened(folder, on_skip)
    known = {(kernel_names(record.trace), *run_secs(record)) for record in database.get_all_tuning_records()}
    skipped = [f"{name} is not legalised: it stays as it is; run {_LEGALISE} before" for name in operators]
    planned = 0
    for name, function in functions:
        alone = normalised(function)
        try:
            trace, time_s = _first_choice(alone, target, hardware)
        except (WorkloadError, BuildError, SpaceError) as error:
            skipped.append(f"{name}: {error}")
            continue
        planned += 1
        arguments = package.arg_info.ArgInfo.from_prim_func(function)
        record = package.database.TuningRecord(trace, database.commit_workload(alone), [time_s], target, arguments)
        key = (kernel_names(trace), *run_secs(record))
        if key not in known:
            database.commit_tuning_record(record)
            known.add(key)
    if on_skip is not None:
        for line in skipped:
            on_skip(line)
    elif not planned:
        _log.warning(
            "%s: none of %d functions has a plan (%s; on_skip=print says more)", folder, len(functions), skipped[0]
        )
    return database


def _opened(folder: str | Path, on_skip: Callable[[str], None] | None) -> ms.database.JSONDatabase:
    """Return the database of a folder; both are made if missing.

    Raises
    ------
    RecordError
        The folder cannot be made, or a database in it cannot be read.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder}: {reason(error)}; name another folder") from error
    return meta_schedule().database.JSONDatabase(work_dir=str(folder), on_skip=on_skip)


def _functions_of(module: tvm.IRModule) -> tuple[list[tuple[str, tirx.PrimFunc]], list[str]]:
    """Return the PrimFuncs of a module by name, and the operators that are none yet.

    Raises
    ------
    WorkloadError
        It is no module, or has no PrimFunc.
    """
    if not hasattr(module, "functions_items"):
        raise WorkloadError(f"plan_model: the module is a {type(module).__name__}, expected a tvm.IRModule")
    functions = [(name.name_hint, one) for name, one in module.functions_items() if type(one).__name__ == "PrimFunc"]
    operators = operators_left(module)
    if not functions:
        left = f"operators {', '.join(operators)}" if operators else "no operators, either"
        raise WorkloadError(
            f"plan_model: the module has no PrimFunc (it has {left}), expected a legalised one: plan what "
            f"{_LEGALISE}(module) returns, after the passes that it will be compiled with"
        )
    return functions, operators


def _first_choice(
    module: tvm.IRModule, target: tvm.target.Target, hardware: HardwareSpec
) -> tuple[tvm.s_tir.schedule.Trace, float]:
    """Return the trace of the model's first choice for a function, and its predicted time.

    Raises
    ------
    WorkloadError, BuildError, SpaceError
        There is no kernel for it.
    """
    task = task_of(module, target, hardware)
    model = task_model(task, hardware)
    points = model.rank(1).points
    if not len(points):
        raise WorkloadError(f"no schedule of {task.workload.describe()} is legal on {hardware.name}")
    traced = task.schedule(model.space.schedule_of(points[0]), predicted=True)
    return traced.trace, float(model.times(points[:1])[0][0])
