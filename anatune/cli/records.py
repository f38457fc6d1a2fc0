"""``anatune records``: what was measured, the best of it, and other forms of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anatune.cli.output import UsageError, note, note_once, print_json, print_lines, print_text, write_text
from anatune.cli.records_import import import_records
from anatune.cli.tune import DEFAULT_RECORDS
from anatune.errors import RecordError

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.schema import Record, Session
    from anatune.records.store import RecordStore

__all__ = ["app"]

FORMATS = ("jsonl", "csv", "tvm")

app = typer.Typer(
    help="List, choose from and export what was measured.",
    no_args_is_help=False,
    rich_markup_mode=None,
    add_completion=False,
)
# The workload's own options (--stride 2) are no options here: they go to the words, which are parsed with them.
_SETTINGS = {"ignore_unknown_options": True}


def _check_limit(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"got {value}, expected an integer >= 1")
    return value


def _check_outcome(value: str | None) -> str | None:
    from anatune.core.trial import Outcome

    known = [outcome.value for outcome in Outcome]
    if value is not None and value not in known:
        raise typer.BadParameter(f"got {value!r}, expected one of {', '.join(known)}")
    return value


def _check_format(value: str) -> str:
    if value not in FORMATS:
        raise typer.BadParameter(f"got {value!r}, expected one of {', '.join(FORMATS)}")
    return value


_Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [WORKLOAD...]",
        help="A record file, and a workload as for `anatune plan`, with its options: only its trials.",
    ),
]
_Records = Annotated[
    Path | None, typer.Option("--records", metavar="PATH", help=f"The record file.  [default: {DEFAULT_RECORDS}]")
]
_Hardware = Annotated[
    str | None, typer.Option("--hw", metavar="NAME", help="Only what was measured on hardware of this name.")
]
_Threads = Annotated[int | None, typer.Option("--threads", metavar="N", help="Only kernels of so many threads.")]
_Session = Annotated[str | None, typer.Option("--session", metavar="ID", help="Only this session (its first digits).")]
_Outcome = Annotated[
    str | None,
    typer.Option("--outcome", metavar="OUTCOME", callback=_check_outcome, help="Only trials that ended so: ok, ..."),
]
_Limit = Annotated[
    int | None, typer.Option("--limit", metavar="N", callback=_check_limit, help="Only the last N trials.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list", context_settings=_SETTINGS)
def list_records(
    words: _Words = None,
    records: _Records = None,
    hw: _Hardware = None,
    threads: _Threads = None,
    session: _Session = None,
    outcome: _Outcome = None,
    limit: _Limit = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="One line a session instead of one a trial.")] = False,
    as_json: _Json = False,
) -> None:
    """List the trials of a record file, one a line, or its sessions."""
    from anatune.report.records import trial_lines

    path, workload = _place(words, records)
    with _opened(path) as store:
        chosen = _session_id(store, session)
        if sessions:
            if outcome is not None or limit is not None:
                raise UsageError("--outcome and --limit choose trials, --sessions lists sessions; leave one out")
            _list_sessions(store, workload, hw, threads, chosen, as_json)
            return
        found = store.trials(workload, hw, chosen, threads, outcome, limit, on_damage=note_once())
    if as_json:
        print_json([_tree(record) for record in found])
    elif found:
        print_lines(trial_lines(found))
    else:
        print_text(f"no trials in {path} meet the conditions")


def _list_sessions(
    store: RecordStore,
    workload: Workload | None,
    hw: str | None,
    threads: int | None,
    chosen: str | None,
    as_json: bool,
) -> None:
    from anatune.records.export import workload_text
    from anatune.report.records import session_lines

    told = note_once()
    found = [one for one in store.sessions(workload, hw, threads, on_damage=told) if chosen in (None, one.id)]
    counts = {one.id: store.counts(one) for one in found}
    if as_json:
        print_json(
            [
                {
                    "id": one.id,
                    "created_utc": one.created_utc,
                    "workload": workload_text(one.workload),
                    "hardware": one.hardware.name,
                    "threads": one.threads,
                    "strategy": one.strategy,
                    "seed": one.seed,
                    "settings": one.settings,
                    "environment": one.environment,
                    "trials": {outcome.value: number for outcome, number in counts[one.id].items()},
                }
                for one in found
            ]
        )
    elif found:
        bests = {one.id: store.best(one.workload, session=one, on_damage=told) for one in found}
        print_lines(session_lines(found, counts, bests))
    else:
        print_text(f"no sessions in {store.path} meet the conditions")


@app.command("best", context_settings=_SETTINGS)
def best(
    words: _Words = None,
    records: _Records = None,
    hw: _Hardware = None,
    threads: _Threads = None,
    session: _Session = None,
    as_json: _Json = False,
) -> None:
    """Show the best schedule of each workload, hardware and number of threads."""
    from anatune.report.records import best_lines

    path, workload = _place(words, records)
    with _opened(path) as store:
        found = store.bests(workload, hw, threads, _session_id(store, session), on_damage=note_once())
    if as_json:
        print_json([_tree(record) for record in found])
    elif found:
        print_lines(best_lines(found))
    else:
        print_text(f"no trials in {path} that ran meet the conditions")


@app.command("export", context_settings=_SETTINGS)
def export(
    words: _Words = None,
    records: _Records = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="jsonl|csv|tvm",
            callback=_check_format,
            help="JSON lines (all there is), CSV (a row a trial), TVM tuning records.",
        ),
    ] = "jsonl",
    output: Annotated[str, typer.Option("--output", metavar="PATH", help="A file (tvm: a folder); - is stdout.")] = "-",
    hw: _Hardware = None,
    threads: _Threads = None,
    session: _Session = None,
    outcome: _Outcome = None,
    limit: _Limit = None,
) -> None:
    """Write trials in another form; rows that are damaged are named on stderr and left out."""
    path, workload = _place(words, records)
    if form == "tvm" and output == "-":
        raise UsageError("--format tvm makes two files, expected --output FOLDER")
    if output != "-" and Path(output).exists() and path.exists() and Path(output).samefile(path):
        raise UsageError(f"--output {output} is the record file itself; name another file")
    damaged: list[str] = []

    def report(text: str) -> None:
        damaged.append(text)
        note(f"note: {text}")

    with _opened(path) as store:
        chosen = _session_id(store, session)
        found = store.iterate(workload, hw, chosen, threads, outcome, limit, on_damage=report)
        if form == "tvm":
            from anatune.codegen.tvm.records import write_tvm_database

            count = write_tvm_database(found, output, note)
            note(f"wrote {count} tuning record{'s' * (count != 1)} to {output}")
        else:
            whole = form == "jsonl" and outcome is None and limit is None
            sessions = store.sessions(workload, hw, threads, on_damage=report) if whole else []
            _write(output, _lines(form, found, [one for one in sessions if chosen in (None, one.id)]))
    if damaged:
        raise RecordError(f"{path}: {len(damaged)} rows are damaged and were left out; all others are written")


app.command("import", context_settings=_SETTINGS)(import_records)


@app.command("train", context_settings=_SETTINGS)
def train(
    words: _Words = None,
    records: _Records = None,
    hw: _Hardware = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FOLDER", help="Write the correction there, whether it helps or not."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Fit corrections of the analytical model from records, one for each device, and say what they are worth.

    A correction that ranks the workloads that were left out better than the analytical model is saved where
    `anatune plan`, `anatune tune` and predict() look for it.
    """
    from anatune.report.training import family_lines
    from anatune.tuning.training import families_of, judge
    from anatune.tuning.training import train as fit

    path, workload = _place(words, records)
    with _opened(path) as store:
        families = families_of(store.iterate(workload, hw, on_damage=note_once()))
    if not families:
        raise RecordError(
            f"{path}: no workload has 20 successful trials, expected two of one device at least; tune more first"
        )
    if output is not None and len(families) > 1:
        names = ", ".join(family.name for family in families)
        raise UsageError(f"--output is one folder, but there are records of {names}; choose one with --hw")
    results = []
    for family in families:
        judgement = judge(family, families)
        saved = fit(family, judgement, str(path), output) if output is not None or judgement.helps else None
        results.append((family, judgement, saved))
    if as_json:
        print_json(
            [
                {
                    "name": family.name,
                    "workloads": [one._asdict() for one in family.workloads],
                    "left_out": family.num_left_out,
                    "judgement": judgement,
                    "helps": judgement.helps,
                    "saved": str(saved or "") or None,
                }
                for family, judgement, saved in results
            ]
        )
        return
    for family, judgement, saved in results:
        print_lines(family_lines(family, judgement, saved))


# ---- parts of the commands ------------------------------------------------------------------------------------


def _place(words: list[str] | None, records: Path | None) -> tuple[Path, Workload | None]:
    """Return the record file and the workload that the words name."""
    from anatune.core.workload.text import parse_workload

    rest = list(words or ())
    file = None
    # No operator or layer has a dot, a slash or a file of its name: the first word may be the record file.
    if rest and not rest[0].startswith("-") and ("." in rest[0] or os.sep in rest[0] or Path(rest[0]).is_file()):
        file = Path(rest.pop(0))
        if records is not None:
            raise UsageError(f"got two record files, {file} and --records {records}; leave one out")
    return file or records or Path(DEFAULT_RECORDS), parse_workload(rest) if rest else None


def _opened(path: Path) -> RecordStore:
    from anatune.records.store import RecordStore

    return RecordStore(path, read_only=True)


def _session_id(store: RecordStore, start: str | None) -> str | None:
    """Return the id of the session whose id starts so."""
    if start is None:
        return None
    found = [one.id for one in store.sessions(on_damage=lambda text: None) if one.id.startswith(start)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} sessions begin with {start!r}" if found else f"no session begins with {start!r}"
    raise RecordError(f"{store.path}: {problem}, expected one; `anatune records list --sessions` shows them")


def _tree(record: Record) -> dict[str, object]:
    """Return a record as one JSON object: its flat row, its samples, its schedule, the tiles and options as objects."""
    from anatune.records.export import flat_row
    from anatune.report.records import peak_of_threads

    trial = record.trial
    tree = flat_row(record)
    rate = tree["gflop_per_s"]
    peak = peak_of_threads(record.session.hardware, record.session.workload.dtype, trial.threads)
    tree["peak_fraction"] = rate * 1e9 / peak if rate else None
    tree["schedule"] = schedule = trial.schedule.to_dict()
    tree |= {name: schedule[name] for name in ("tiles", "vector", "options")}
    tree["times_s"] = trial.measurement.times_s
    tree["reference_times_s"] = trial.measurement.reference_times_s
    return tree


def _lines(form: str, found: Iterable[Record], sessions: list[Session]) -> Iterable[str]:
    """Return the lines of an export; `sessions` are written too where no trial is of them."""
    from anatune.records.export import csv_lines, json_lines

    return csv_lines(found) if form == "csv" else json_lines(found, sessions)


def _write(output: str, lines: Iterable[str]) -> None:
    """Write lines to stdout, or to a file that appears whole or not at all."""
    if output == "-":
        for line in lines:
            typer.echo(line, nl=False)
        return
    target = Path(output)
    if not target.parent.is_dir():
        raise RecordError(
            f"{output}: the folder {target.parent} does not exist, expected a place for the file; make it"
        )
    try:
        write_text(target, lines)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RecordError(f"{output}: {reason}, nothing was written; free space or name another place") from error
