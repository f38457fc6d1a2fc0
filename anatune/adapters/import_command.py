"""``anatune records import`` of another tuner's log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anatune.cli.output import print_json, print_lines
from anatune.cli.progress import Progress
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.adapters.logs import FunctionReader
    from anatune.core.workload.nest import Workload
    from anatune.records.place import RecordPlace

__all__ = ["import_log"]


def import_log(file: Path, workload: Workload | None, records: RecordPlace, hw: str | None, as_json: bool) -> None:
    """Record what fits of a log, and say what was left out."""
    from anatune import api
    from anatune.adapters.logs import read_foreign
    from anatune.adapters.logs.recording import record_foreign
    from anatune.adapters.logs.report import import_lines, reasons_text
    from anatune.records.export import workload_text
    from anatune.records.store import RecordStore

    hardware = None if hw is None else api.hardware(hw)
    with Progress() as progress:
        progress.begin(f"reading {file}")
        log = read_foreign(file, hardware, workload, _function_reader)
        if not log.trials:
            why = reasons_text(log.left_out) or "it is empty"
            raise RecordError(f"{file}: nothing to import from this {log.kind} log: {why}")
        with RecordStore(records) as store:
            imported = record_foreign(store, log, file)
    if not as_json:
        print_lines(import_lines(store.path, log.kind, imported, log.left_out))
        return
    tasks = [
        {
            "hardware": task.hardware.name,
            "workload": workload_text(task.workload),
            "trials": task.rows,
            "failed": task.failed,
            "known": task.known,
        }
        for task in imported
    ]
    print_json(
        {"kind": log.kind, "trials": sum(task.rows for task in imported), "tasks": tasks, "left_out": log.left_out}
    )


def _function_reader() -> FunctionReader | None:
    """Return what reads the functions of a MetaSchedule database; TVM is not loaded for other logs."""
    from anatune.adapters.metaschedule.functions import function_reader

    return function_reader()
