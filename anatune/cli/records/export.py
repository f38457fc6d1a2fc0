"""``anatune records export``: trials as JSON lines, CSV or TVM tuning records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anatune.cli.output import UsageError, note, print_data
from anatune.cli.outputs import RECORD_LINES, RECORD_TABLE
from anatune.cli.records.place import (
    AnyRecordFile,
    Limit,
    OfHardware,
    OfThreads,
    OutcomeName,
    SessionStart,
    Words,
    WorkerName,
    opened,
    place,
    session_id,
)
from anatune.cli.workload import with_workload_words
from anatune.errors import RecordError
from anatune.files import Output, reason

if TYPE_CHECKING:
    from anatune.records.schema import Record, Session

__all__ = ["export_records"]


@with_workload_words(Words)
def export_records(
    words: list[str],
    chosen: dict[str, Any],
    records: AnyRecordFile = None,
    form: Annotated[
        Literal["jsonl", "csv", "tvm"],
        typer.Option("--format", help="JSON lines (all there is), CSV (a row a trial), TVM tuning records."),
    ] = "jsonl",
    output: Annotated[str, typer.Option("--output", metavar="PATH", help="A file (tvm: a folder); - is stdout.")] = "-",
    hw: OfHardware = None,
    threads: OfThreads = None,
    session: SessionStart = None,
    outcome: OutcomeName = None,
    worker: WorkerName = None,
    limit: Limit = None,
) -> None:
    """Write trials in another form; rows that are damaged are named on stderr and left out."""
    path, workload = place(words, chosen, records)
    if form == "tvm" and output == "-":
        raise UsageError("--format tvm makes two files, expected --output FOLDER")
    target = None if output == "-" or form == "tvm" else Output(output, RECORD_TABLE if form == "csv" else RECORD_LINES)
    damaged: list[str] = []

    def report(text: str) -> None:
        damaged.append(text)
        note(f"note: {text}")

    with opened(path) as store:
        only = session_id(store, session)
        found = store.iterate(workload, hw, only, threads, outcome, limit, worker=worker, on_damage=report)
        if form == "tvm":
            from anatune.codegen.tvm.records import write_tvm_database

            count = write_tvm_database(found, output, note)
            note(f"wrote {count} tuning record{'s' * (count != 1)} to {output}")
        else:
            whole = form == "jsonl" and outcome is None and worker is None and limit is None
            sessions = store.sessions(workload, hw, threads, on_damage=report) if whole else []
            _write(target, _lines(form, found, [one for one in sessions if only in (None, one.id)]))
    if damaged:
        raise RecordError(f"{path}: {len(damaged)} rows are damaged and were left out; all others are written")


def _lines(form: str, found: Iterable[Record], sessions: list[Session]) -> Iterable[str]:
    """Return the lines of an export; `sessions` are written too where no trial is of them."""
    from anatune.records.export import csv_lines, json_lines

    return csv_lines(found) if form == "csv" else json_lines(found, sessions)


def _write(target: Output | None, lines: Iterable[str]) -> None:
    """Write lines to stdout, or to a file that appears whole or not at all."""
    if target is None:
        for line in lines:
            print_data(line)
        return
    try:
        target.write(line.encode() for line in lines)
    except BrokenPipeError:  # the reader has what it wanted
        raise
    except OSError as error:
        raise RecordError(
            f"{target.path}: {reason(error)}, nothing was written; free space or name another place"
        ) from error
