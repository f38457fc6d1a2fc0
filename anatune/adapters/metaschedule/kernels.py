"""Kernels of anatune's in MetaSchedule databases, made known to TVM.

TVM replays the traces of all records when it opens a database, and applies the fastest one of each function. Until a
kernel is to be applied, the function's own loops stand under its name: a database has thousands of records, and
making a kernel takes some hundredths of a second.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

from anatune.adapters.metaschedule.objects import TuningRecord
from anatune.adapters.metaschedule.tasks import check_target
from anatune.codegen.compat import TVM_ERRORS, import_meta_schedule, import_tvm, last_line
from anatune.codegen.tvm.kernel import (
    Names,
    TirTask,
    annotated_schedule,
    kernel_names,
    recorded_kernel,
    register_kernels,
)
from anatune.errors import AnatuneError, RecordError
from anatune.files import open_file, reason
from anatune.untyped import ms, tvm

__all__ = ["lines_of", "register_database", "register_files"]

_log = logging.getLogger(__name__)

_CUT = "it is no tuning record of MetaSchedule's (cut off?)"
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def register_files(workloads: Path, records: Path) -> dict[int, str]:
    """Let plain loops stand for the kernels in a database's files that TVM does not know yet.

    Parameters
    ----------
    workloads, records : Path
        ``database_workload.json`` and ``database_tuning_record.json``; those that are missing have no kernels.

    Returns
    -------
    dict of int to str
        Line of `records`, from 1 -> why TVM will not be able to replay it.

    Raises
    ------
    RecordError
        A file cannot be read.
    """
    if not (workloads.is_file() and records.is_file()):
        return {}
    known = import_tvm().s_tir.TensorIntrin
    problems: dict[int, str] = {}
    tasks: dict[tuple[int, int], dict[Names, int]] = {}
    for number, line in enumerate(lines_of(records), 1):
        try:
            index, (trace, *_) = json.loads(line)
            found = recorded_kernel(trace)
        except _DAMAGED:
            problems[number] = _CUT
            continue
        if found is not None and any(known.get(name, allow_missing=True) is None for name in found[0]):
            tasks.setdefault((int(index), found[1]), {})[found[0]] = number
    functions = lines_of(workloads) if tasks else []
    read = import_meta_schedule().database.Workload.from_json
    for (index, threads), kernels in tasks.items():
        try:
            TirTask(read(json.loads(functions[index])).mod, threads).stand_in(kernels)
        except (*TVM_ERRORS, RecursionError) as error:
            why = str(error) if isinstance(error, AnatuneError) else f"its function cannot be read: {last_line(error)}"
            problems |= dict.fromkeys(kernels.values(), why)
    return problems


def register_database(database: ms.Database, on_skip: Callable[[str], None] | None = None) -> int:
    """Make anatune's kernels in an open database known to TVM: the fastest of each function, which TVM applies.

    Where that cannot be made (any more), or not for the present target (``with target:``), the function's own loops
    take its place: results are right, and slow.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.database.Database
    on_skip : callable, optional
        Called with a line for each of those; by default they are logged as warnings.

    Returns
    -------
    int
        Kernels, at most one a function.
    """
    target = import_tvm().target.Target.current(allow_none=True)
    found = 0
    for workload in {record.workload: None for record in database.get_all_tuning_records()}:
        for record in database.get_top_k(workload, 1):
            try:
                found += _register(record, target)
            except AnatuneError as error:
                (on_skip or _log.warning)(
                    f"a tuning record cannot be applied: {error}; its function keeps its own loops: tune it again"
                )
    return found


def _register(record: TuningRecord, target: tvm.target.Target | None) -> bool:
    """Register the kernel of a record; plain loops, and an AnatuneError, where that cannot be."""
    names = kernel_names(record.trace)
    if names is None:
        return False
    try:
        schedule = annotated_schedule(record.trace)
        if target is not None and schedule is not None:
            check_target(target, schedule.hardware)
        return register_kernels(record.workload.mod, record.trace)
    except AnatuneError:
        TirTask(record.workload.mod).stand_in([names])
        raise


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a file, without their ends; TVM knows no empty ones.

    Raises
    ------
    RecordError
        It cannot be read.
    """
    try:
        with open_file(path, None) as stream:
            text = stream.read()
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}, expected a database's file") from None
    return text.removesuffix(b"\n").split(b"\n") if text else []
