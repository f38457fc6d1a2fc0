"""MetaSchedule databases that hold kernels of anatune's: opening them, planning into them, applying them to a model.

with target, anatune.adapters.metaschedule.database.open_database(work_dir):
    model = tvm.relax.transform.MetaScheduleApplyDatabase()(model)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anatune.adapters.metaschedule.tasks import check_target, cpu_spec, task_model, task_of
from anatune.codegen.compat import TVM_ERRORS, import_meta_schedule, import_tvm, last_line
from anatune.codegen.tir_kernel import register_kernels
from anatune.codegen.tvm_records import TVM_FILES
from anatune.core.hardware import CpuSpec
from anatune.errors import AnatuneError, BuildError, RecordError, SpaceError, WorkloadError
from anatune.files import reason

__all__ = ["open_database", "plan_model", "register_database"]


def open_database(folder: str | Path, on_skip: Callable[[str], None] | None = None) -> Any:
    """Return the ``JSONDatabase`` of a folder, with anatune's kernels known to TVM so that its records can be applied.

    Parameters
    ----------
    folder : str or Path
        The ``work_dir`` of ``tune_tir`` and ``tune_relax``.
    on_skip : callable, optional
        Called with a line for each function whose fastest kernel cannot be made (any more).

    Raises
    ------
    RecordError
        It holds no database, or TVM cannot read it.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    meta_schedule = import_meta_schedule()
    paths = [Path(folder) / name for name in TVM_FILES]
    for path in paths:
        if not path.is_file():
            raise RecordError(
                f"{path}: no such file, expected a database of MetaSchedule's; name the work_dir that it was tuned in"
            )
    try:
        database = meta_schedule.database.JSONDatabase(*map(str, paths), allow_missing=False)
    except TVM_ERRORS as error:
        raise RecordError(f"{folder}: TVM cannot read its database: {last_line(error)}; tune again") from None
    register_database(database, on_skip)
    return database


def register_database(database: Any, on_skip: Callable[[str], None] | None = None) -> int:
    """Make anatune's kernels in a database known to TVM: the fastest of each function, which TVM applies.

    A process that has tuned knows them already.

    Returns
    -------
    int
        Kernels, at most one a function.
    """
    found = 0
    for workload in {record.workload: None for record in database.get_all_tuning_records()}:
        for record in database.get_top_k(workload, 1):
            try:
                found += register_kernels(workload.mod, record.trace)
            except AnatuneError as error:
                if on_skip is not None:
                    on_skip(f"a tuning record cannot be applied: {error}; tune its function again")
    return found


def plan_model(
    module: Any,
    target: Any,
    folder: str | Path,
    hw: str | Path | CpuSpec = "host",
    on_skip: Callable[[str], None] | None = None,
) -> Any:
    """Write the first choice of the model for every function of a module into a database; nothing is measured.

    The times of its records are predictions: give the plan a folder of its own, TVM takes the smallest time it finds.

    Parameters
    ----------
    module : tvm.IRModule
        Of PrimFuncs, or a legalised Relax module: its operators are PrimFuncs.
    target : tvm.target.Target
        A CPU; its "num-cores" are the threads.
    folder : str or Path
        Where the database goes; made if missing.
    hw : str, Path or CpuSpec
        The CPU: a spec, its name, "host", or a file.
    on_skip : callable, optional
        Called with a line for each function that anatune has no kernel for.

    Returns
    -------
    tvm.s_tir.meta_schedule.database.JSONDatabase
    """
    meta_schedule = import_meta_schedule()
    hardware = cpu_spec(hw)
    check_target(target, hardware)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder}: {reason(error)}; name another folder") from error
    database = meta_schedule.database.JSONDatabase(work_dir=str(folder))
    normalised = import_tvm().get_global_func("tvm.s_tir.meta_schedule.normalize_mod")
    for name, function in module.functions_items():
        if type(function).__name__ != "PrimFunc":
            continue
        alone = normalised(function)
        try:
            task = task_of(alone, target)
            model = task_model(task, hardware)
            ranking = model.rank(1)
            if not len(ranking.points):
                raise WorkloadError(f"no schedule of {task.workload.describe()} is legal on {hardware.name}")
            traced = task.schedule(model.space.schedule_of(ranking.points[0]), predicted=True)
        except (WorkloadError, BuildError, SpaceError) as error:
            if on_skip is not None:
                on_skip(f"{name.name_hint}: {error}")
            continue
        database.commit_tuning_record(
            meta_schedule.database.TuningRecord(
                traced.trace,
                database.commit_workload(alone),
                [float(model.times(ranking.points[:1])[0][0])],
                target,
                meta_schedule.arg_info.ArgInfo.from_prim_func(function),
            )
        )
    return database
