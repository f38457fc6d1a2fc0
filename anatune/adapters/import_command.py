"""``anatune records import`` for logs of other tuners, and the text that it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anatune.adapters.logs.recording import ImportedTrials
from anatune.cli.output import print_json, print_lines
from anatune.cli.progress import Progress
from anatune.errors import RecordError
from anatune.records.export import workload_text
from anatune.records.place import RecordPlace
from anatune.report.text import Line, table

if TYPE_CHECKING:
    from anatune.adapters.logs import FunctionReader
    from anatune.core.workload.nest import Workload
    from anatune.records.place import RecordPlace

__all__ = ["import_lines", "import_log", "reasons_text"]

_MOST_REASONS = 5


def import_lines(
    store: RecordPlace, kind: str, imported: Sequence[ImportedTrials], left_out: Mapping[str, int]
) -> list[Line]:
    """Return a table with a row for each workload and device, and the reasons why entries were left out.

    Parameters
    ----------
    store : Path or ServerAddress
        The record file or server.
    left_out : mapping of str to int
        The number of entries for each reason.
    """
    devices: Counter[str] = Counter()
    for log in imported:
        devices[log.hardware.name] += log.rows
    shares = ", ".join(f"{count} on {name}" for name, count in devices.items())
    lines = [Line(f"{store}: {sum(devices.values())} new trials of the {kind} log{f': {shares}' * (len(devices) > 1)}")]
    cells = [
        ("device", [log.hardware.name for log in imported]),
        ("trials", [str(log.rows) for log in imported]),
        ("failed", [str(log.failed) for log in imported]),
        ("known", [str(log.known) for log in imported]),
        ("workload", [workload_text(log.workload) for log in imported]),
    ]
    lines += table(cells, ("device", "workload"))
    if any(log.known for log in imported):
        lines.append(Line("known: trials that were imported before and are not recorded again", "dim"))
    if left_out:
        lines.append(Line(f"left out: {sum(left_out.values())} entries", "bold"))
        most = max(len(str(count)) for count in left_out.values())
        lines += [Line(f"{count:>{most}}  {reason}") for reason, count in _sort_reasons(left_out)]
    return lines


def reasons_text(left_out: Mapping[str, int]) -> str:
    """Return the most frequent reasons in one line."""
    ordered = _sort_reasons(left_out)
    named = [f"{count} entries: {reason}" for reason, count in ordered[:_MOST_REASONS]]
    if other_count := sum(count for _, count in ordered[_MOST_REASONS:]):
        named.append(f"{other_count} entries for other reasons")
    return "; ".join(named)


def _sort_reasons(left_out: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(left_out.items(), key=lambda pair: -pair[1])


def import_log(file: Path, workload: Workload | None, records: RecordPlace, hw: str | None, as_json: bool) -> None:
    """Record the trials of a log that anatune can express, and print the trials that were left out."""
    from anatune import api
    from anatune.adapters.import_command import import_lines, reasons_text
    from anatune.adapters.logs import read_foreign
    from anatune.adapters.logs.recording import record_foreign
    from anatune.records.export import workload_text
    from anatune.records.store import RecordStore

    hardware = None if hw is None else api.hardware(hw)
    with Progress() as progress:
        progress.begin(f"reading {file}")
        log = read_foreign(file, hardware, workload, _function_reader)
        if not log.trials:
            why = reasons_text(log.left_out) or "the file is empty"
            raise RecordError(f"{file}: this {log.kind} log has no entry that can be imported: {why}")
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
    """Return the reader of a MetaSchedule database's functions; TVM is not loaded for other logs."""
    from anatune.adapters.metaschedule.functions import function_reader

    return function_reader()
