"""Registration of anatune's kernels in MetaSchedule databases with TVM.

TVM replays the traces of all records when it opens a database, and applies the fastest record of each function. A
database has thousands of records, and building a kernel takes some hundredths of a second. Until a kernel is applied,
the function's own loops are therefore registered under the kernel's name.
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
    find_kernel_names,
    read_annotated_schedule,
    read_recorded_kernel,
    register_kernels,
)
from anatune.errors import AnatuneError, RecordError
from anatune.files import open_file, reason
from anatune.untyped import ms, tvm

__all__ = ["lines_of", "register_database", "register_files"]

_log = logging.getLogger(__name__)

_CUT = "it is not a tuning record of MetaSchedule (cut off?)"
_DAMAGED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


def register_files(workloads: Path, records: Path) -> dict[int, str]:
    """Register the functions' own loops in the place of a database's kernels that TVM does not know yet.

    Parameters
    ----------
    workloads, records : Path
        ``database_workload.json`` and ``database_tuning_record.json``. Missing files have no kernels.

    Returns
    -------
    dict of int to str
        The lines of `records` (from 1) that TVM will not be able to replay, with the reasons.

    Raises
    ------
    RecordError
        A file cannot be read.
    """
    if not (workloads.is_file() and records.is_file()):
        return {}
    intrinsics = import_tvm().s_tir.TensorIntrin
    problems: dict[int, str] = {}
    tasks: dict[tuple[int, int], dict[Names, int]] = {}
    for number, line in enumerate(lines_of(records), 1):
        try:
            index, (trace, *_) = json.loads(line)
            kernel = read_recorded_kernel(trace)
        except _DAMAGED:
            problems[number] = _CUT
            continue
        if kernel is not None and any(intrinsics.get(name, allow_missing=True) is None for name in kernel[0]):
            tasks.setdefault((int(index), kernel[1]), {})[kernel[0]] = number
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
    """Register the fastest kernel of each function in an open database, which TVM applies.

    If this version or the current target (``with target:``) cannot build a kernel, the function keeps its own loops:
    the results are right, but slow.

    Parameters
    ----------
    database : tvm.s_tir.meta_schedule.database.Database
        The open database.
    on_skip : callable, optional
        Called with a line for each such function. By default these lines are logged as warnings.

    Returns
    -------
    int
        The number of registered kernels, at most one for each function.
    """
    target = import_tvm().target.Target.current(allow_none=True)
    registered = 0
    for workload in {record.workload: None for record in database.get_all_tuning_records()}:
        for record in database.get_top_k(workload, 1):
            try:
                registered += _register(record, target)
            except AnatuneError as error:
                (on_skip or _log.warning)(f"record not applied: {error}; its function keeps slow loops, tune it again")
    return registered


def _register(record: TuningRecord, target: tvm.target.Target | None) -> bool:
    """Register the kernel of a record; if it cannot be built, register the function's own loops and raise."""
    names = find_kernel_names(record.trace)
    if names is None:
        return False
    try:
        schedule = read_annotated_schedule(record.trace)
        if target is not None and schedule is not None:
            check_target(target, schedule.hardware)
        return register_kernels(record.workload.mod, record.trace)
    except AnatuneError:
        TirTask(record.workload.mod).stand_in([names])
        raise


def lines_of(path: Path) -> list[bytes]:
    """Return the lines of a file without line ends; TVM writes no empty lines.

    Raises
    ------
    RecordError
        The file cannot be read.
    """
    try:
        with open_file(path, None) as stream:
            text = stream.read()
    except OSError as error:
        raise RecordError(f"{path}: {reason(error)}, expected a file of a MetaSchedule database") from None
    return text.removesuffix(b"\n").split(b"\n") if text else []
