"""``anatune records export``: trials as JSON lines, CSV or TVM tuning records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anatune.cli.options import spread
from anatune.cli.output import UsageError, note, print_data
from anatune.cli.outputs import RECORD_LINES, RECORD_TABLE
from anatune.cli.records.place import DamagedRows, TrialOptions, Words, open_records
from anatune.errors import RecordError
from anatune.files import Output, reason

if TYPE_CHECKING:
    from anatune.records.schema import Record, Session


@spread
def export_records(
    which: TrialOptions,
    form: Annotated[
        Literal["jsonl", "csv", "tvm"],
        typer.Option("--format", help="JSON lines (all data), CSV (one row for each trial), or TVM tuning records."),
    ] = "jsonl",
    words: Words = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATH", help="File to write (tvm: folder); - is stdout.")
    ] = "-",
) -> None:
    """Write trials in another format; damaged rows are reported on stderr and left out."""
    path, workload = which.parse_place_and_workload(words)
    if form == "tvm" and output == "-":
        raise UsageError("--format tvm writes two files; name a folder with --output FOLDER")
    target = None if output == "-" or form == "tvm" else Output(output, RECORD_TABLE if form == "csv" else RECORD_LINES)
    damaged = DamagedRows()
    with open_records(path) as store:
        trials = store.iterate(**which.keywords(store, workload), on_damage=damaged)
        if form == "tvm":
            from anatune.codegen.tvm.records import write_tvm_database

            count = write_tvm_database(trials, output, note)
            note(f"wrote {count} tuning record{'s' * (count != 1)} to {output}")
        else:
            session_id = which.session_id(store)
            whole = form == "jsonl" and which.outcome is None and which.worker is None and which.limit is None
            sessions = store.sessions(workload, which.hw, which.threads, on_damage=damaged) if whole else []
            _write(target, _lines(form, trials, [session for session in sessions if session_id in (None, session.id)]))
    damaged.check(f"{path}: {damaged.num_rows} rows", "written")


def _lines(form: str, trials: Iterable[Record], sessions: list[Session]) -> Iterable[str]:
    """Return the lines of an export; JSON lines also contain `sessions` without trials."""
    from anatune.records.export import csv_lines, json_lines

    return csv_lines(trials) if form == "csv" else json_lines(trials, sessions)


def _write(target: Output | None, lines: Iterable[str]) -> None:
    """Write lines to stdout, or to a file, which is written as a whole or not at all."""
    if target is None:
        for line in lines:
            print_data(line)
        return
    try:
        target.write(line.encode() for line in lines)
    except BrokenPipeError:  # the reader closed the pipe
        raise
    except OSError as error:
        raise RecordError(
            f"{target.path}: {reason(error)}, nothing was written; free some space or name another file"
        ) from error
