"""Repair of MetaSchedule databases: TVM refuses a database with a line that it cannot replay, such as one cut off."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from anatune.adapters.metaschedule.database import database_files, meta_schedule
from anatune.adapters.metaschedule.kernels import lines_of, register_files
from anatune.codegen.compat import TVM_ERRORS
from anatune.errors import RecordError
from anatune.files import reason, replace_file
from anatune.untyped import ms

__all__ = ["repair_database"]

_Workloads: TypeAlias = "dict[int, tuple[ms.database.Workload | None, int]]"
_ASIDE = ".damaged"


def repair_database(folder: str | Path) -> int:
    """Move the lines of a database that TVM cannot replay to other files, so that TVM opens the database again.

    The lines are appended to ``database_workload.json.damaged`` and ``database_tuning_record.json.damaged``. No tuning
    may run in the folder at the same time.

    Parameters
    ----------
    folder : str or Path
        The ``work_dir`` of ``tune_tir`` and ``tune_relax``.

    Returns
    -------
    int
        The number of moved lines; if it is 0, nothing is written.

    Raises
    ------
    RecordError
        The folder has no database, or its files cannot be written.
    MissingDependencyError
        TVM's MetaSchedule cannot be imported.
    """
    package = meta_schedule().database
    paths = database_files(folder)
    problems = register_files(*paths)
    workloads: _Workloads = {}
    kept: tuple[list[bytes], list[bytes]] = ([], [])
    moved: tuple[list[bytes], list[bytes]] = ([], [])
    for index, line in enumerate(lines_of(paths[0])):
        workload = _workload(package, line)
        workloads[index] = workload, len(kept[0])
        (moved if workload is None else kept)[0].append(line)
    for number, line in enumerate(lines_of(paths[1]), 1):
        record = None if number in problems else _record(package, line, workloads)
        (moved if record is None else kept)[1].append(record or line)
    for path, good, bad in zip(paths, kept, moved, strict=True):
        if any(moved):
            _write(path, good, bad)
    return sum(map(len, moved))


def _workload(package: ModuleType, line: bytes) -> ms.database.Workload | None:
    """Return the workload of a line, or None if TVM cannot read it."""
    try:
        return package.Workload.from_json(json.loads(line))
    except (*TVM_ERRORS, RecursionError):
        return None


def _record(package: ModuleType, line: bytes, workloads: _Workloads) -> bytes | None:
    """Return the line of a record with its workload's new number, or None if TVM cannot replay it."""
    try:
        index, record = json.loads(line)
        workload, number = workloads[index]
        package.TuningRecord.from_json(record, workload)
    except (*TVM_ERRORS, RecursionError):
        return None
    return b"[%d%s" % (number, line[line.index(b",") :])


def _write(path: Path, good: list[bytes], bad: list[bytes]) -> None:
    try:
        if bad:
            with path.with_name(path.name + _ASIDE).open("ab") as aside:
                aside.writelines(line + b"\n" for line in bad)
        replace_file(path, [line + b"\n" for line in good])
    except OSError as error:
        raise RecordError(f"{path}: not repaired ({reason(error)}); copy the database to a writable folder") from None
