"""``anatune records``: list, report, merge, export and import trials, and train corrections."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.cli.options import Accuracy, AsJson, Html, parse_record_place, spread
from anatune.cli.output import UsageError, line_width, note_once, print_json, print_lines, print_text
from anatune.cli.outputs import check_html, write_page
from anatune.cli.panels import Grouped, subcommands
from anatune.cli.progress import Progress
from anatune.cli.records.export import export_records
from anatune.cli.records.import_ import import_records
from anatune.cli.records.place import (
    DamagedRows,
    SessionOptions,
    TrialOptions,
    Words,
    WorkerName,
    drop_unknown_templates,
    open_records,
)
from anatune.cli.records.train import train_corrections
from anatune.errors import RecordError
from anatune.named import load

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.schema import Record
    from anatune.records.store import RecordStore

app = subcommands("List, report, export, import and merge recorded trials.")


@spread
def report_records(
    which: SessionOptions, words: Words = None, worker: WorkerName = None, html: Html = None, as_json: AsJson = False
) -> None:
    """Report each session: the best schedule and why it won, prediction errors, failures and drift of the machine.

    --html also writes a page like that of `anatune tune --html`, with all sessions of a workload and device together.
    """
    from anatune.report.session_words import report_dict, report_lines
    from anatune.report.sessions import session_views

    path, workload = which.parse_place_and_workload(words)
    page_file = check_html(html, path if isinstance(path, Path) else None)
    with open_records(path) as store:
        session_id = which.session_id(store)
        tell = note_once()
        records = store.trials(workload, which.hw, session_id, which.threads, worker=worker, on_damage=tell)
        trials = list(drop_unknown_templates(records, tell))
    if not trials and page_file is not None:
        raise RecordError(f"no trials in {path} match the given options; no page was written, leave some options out")
    views = session_views(trials)
    if as_json:
        print_json([report_dict(view) for view in views])
    elif trials:
        print_lines(report_lines(views, width=line_width()))
    else:
        print_text(f"no trials in {path} match the given options")
    if page_file is not None:
        write_page(load("pages", "records")(views, source=str(path)), page_file)


def merge_records(
    stores: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... INTO",
            help="Record files or postgresql:// URLs; the trials are copied into the last one.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy the sessions and trials of record files and servers into another record file or server.

    Trials that are there already are not copied again, so merging twice is harmless, and an interrupted merge can be
    repeated. Damaged rows are reported on stderr and left out.
    """
    from anatune.records.merge import merge
    from anatune.records.store import RecordStore

    *sources, into = [parse_record_place(store) for store in stores]
    if not sources:
        raise UsageError("expected at least two record files or servers: anatune records merge SOURCE... INTO")
    damaged = DamagedRows()
    with ExitStack() as files, Progress() as progress:
        # Open all sources first, so that a missing one is reported before anything is written.
        read = [files.enter_context(RecordStore(source, read_only=True)) for source in sources]
        written = files.enter_context(RecordStore(into))
        counts = [merge(store, written, on_damage=damaged, progress=progress.count("merging")) for store in read]
    if as_json:
        print_json([{"source": str(source), **new._asdict()} for source, new in zip(sources, counts, strict=True)])
    else:
        for source, new in zip(sources, counts, strict=True):
            there = f", {new.known} trials were there already" if new.known else ""
            print_text(f"{into}: added {new.sessions} sessions and {new.trials} trials from {source}{there}")
    damaged.check(f"{damaged.num_rows} rows of the sources", "merged")


app.command("export", cls=Grouped)(export_records)
app.command("import", cls=Grouped)(import_records)
app.command("merge")(merge_records)
app.command("report", cls=Grouped)(report_records)
app.command("train", cls=Grouped)(train_corrections)


@app.command("list", cls=Grouped)
@spread
def list_records(
    which: TrialOptions,
    words: Words = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="List sessions instead of trials.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the trials or sessions of a record file or server."""
    from anatune.report.records import trial_lines

    path, workload = which.parse_place_and_workload(words)
    with open_records(path) as store:
        if sessions:
            _list_sessions(store, workload, which, as_json)
            return
        trials = store.trials(**which.keywords(store, workload), on_damage=note_once())
    if as_json:
        print_json([_tree(record) for record in trials])
    elif trials:
        print_lines(trial_lines(trials, line_width()))
    else:
        print_text(f"no trials in {path} match the given options")


def _list_sessions(store: RecordStore, workload: Workload | None, which: TrialOptions, as_json: bool) -> None:
    from anatune.core.accuracy import RELAXED
    from anatune.records.export import workload_text
    from anatune.report.records import session_lines

    on_damage, session_id = note_once(), which.session_id(store)
    if which.outcome is not None or which.limit is not None or which.worker is not None:
        raise UsageError("--outcome, --worker and --limit choose trials, --sessions lists sessions; leave one out")
    sessions = [
        session
        for session in store.sessions(workload, which.hw, which.threads, on_damage=on_damage)
        if session_id in (None, session.id)
    ]
    counts = {session.id: store.counts(session) for session in sessions}
    if as_json:
        print_json(
            [
                {
                    **msgspec.structs.asdict(session),
                    "workload": workload_text(session.workload),
                    "hardware": session.hardware.name,
                    "trials": {outcome.value: number for outcome, number in counts[session.id].items()},
                }
                for session in sessions
            ]
        )
    elif sessions:
        bests = {
            session.id: store.best(session.workload, session=session, accuracy=RELAXED, on_damage=on_damage)
            for session in sessions
        }
        print_lines(session_lines(sessions, counts, bests))
    else:
        print_text(f"no sessions in {store.path} match the given options")


@app.command("best", cls=Grouped)
@spread
def best(which: SessionOptions, words: Words = None, accuracy: Accuracy = "standard", as_json: AsJson = False) -> None:
    """Show the best schedule of each workload, hardware and number of threads.

    For a session that ended with a final comparison, this is the schedule that `anatune tune` returned. The winners of
    several sessions, and all schedules of imported or interrupted sessions, are compared by the samples of all their
    trials: by the median of time over the reference kernel's time if that was measured too, else by the median time.
    Schedules whose last result was wrong, or whose arithmetic --accuracy does not allow, are left out.
    """
    from anatune.core.accuracy import RELAXED
    from anatune.report.records import best_lines

    path, workload = which.parse_place_and_workload(words)
    with open_records(path) as store:
        selected = (workload, which.hw, which.threads, which.session_id(store))
        bests = store.bests(*selected, accuracy=accuracy or "standard", on_damage=note_once())
        hidden = not bests and store.bests(*selected, accuracy=RELAXED, on_damage=lambda text: None)
    if as_json:
        print_json([_tree(record) for record in bests])
    elif bests:
        print_lines(best_lines(bests, line_width()))
    else:
        more = f"; --accuracy {RELAXED} allows some" if hidden else ""
        print_text(f"no successful trials in {path} match the given options{more}")


def _tree(record: Record) -> dict[str, object]:
    """Return a record as one JSON object: its flat row, its samples and its schedule."""
    from anatune.records.export import flat_row
    from anatune.report.records import peak_of_threads

    trial = record.trial
    tree: dict[str, object] = {**(row := flat_row(record))}
    rate = row["gflop_per_s"]
    hardware, dtype = record.session.hardware, record.session.workload.dtype
    peak = peak_of_threads(hardware, dtype, trial.threads, trial.schedule.template)
    tree["peak_fraction"] = rate * 1e9 / peak if rate and isinstance(rate, float) and not math.isnan(peak) else None
    tree["schedule"] = schedule = trial.schedule.to_dict()
    tree |= {name: schedule[name] for name in ("tiles", "vector", "options")}
    tree["times_s"] = trial.measurement.times_s
    tree["reference_times_s"] = trial.measurement.reference_times_s
    return tree
