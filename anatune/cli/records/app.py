"""``anatune records``: what was measured, the best of it, and other forms of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from anatune.cli.options import Accuracy, AsJson
from anatune.cli.output import UsageError, note_once, print_json, print_lines, print_text
from anatune.cli.panels import Grouped
from anatune.cli.records.export import export_records
from anatune.cli.records.import_ import import_records
from anatune.cli.records.merge import merge_records
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
from anatune.cli.records.report import report_records
from anatune.cli.records.train import train_corrections
from anatune.cli.workload import with_workload_words

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.schema import Record
    from anatune.records.store import RecordStore

__all__ = ["app"]

app = typer.Typer(
    help="List, choose from and export what was measured.",
    no_args_is_help=False,
    rich_markup_mode=None,
    add_completion=False,
)
app.command("export", cls=Grouped)(export_records)
app.command("import", cls=Grouped)(import_records)
app.command("merge")(merge_records)
app.command("report", cls=Grouped)(report_records)
app.command("train", cls=Grouped)(train_corrections)


@app.command("list", cls=Grouped)
@with_workload_words(Words)
def list_records(
    words: list[str],
    chosen: dict[str, Any],
    records: AnyRecordFile = None,
    hw: OfHardware = None,
    threads: OfThreads = None,
    session: SessionStart = None,
    outcome: OutcomeName = None,
    worker: WorkerName = None,
    limit: Limit = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="One line a session instead of one a trial.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the trials of a record file or server, one a line, or its sessions."""
    from anatune.report.records import trial_lines

    path, workload = place(words, chosen, records)
    with opened(path) as store:
        only = session_id(store, session)
        if sessions:
            if outcome is not None or limit is not None or worker is not None:
                raise UsageError(
                    "--outcome, --worker and --limit choose trials, --sessions lists sessions; leave one out"
                )
            _list_sessions(store, workload, hw, threads, only, as_json)
            return
        found = store.trials(workload, hw, only, threads, outcome, limit, worker=worker, on_damage=note_once())
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
    only: str | None,
    as_json: bool,
) -> None:
    from anatune.core.accuracy import RELAXED
    from anatune.records.export import workload_text
    from anatune.report.records import session_lines

    told = note_once()
    found = [one for one in store.sessions(workload, hw, threads, on_damage=told) if only in (None, one.id)]
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
        bests = {one.id: store.best(one.workload, session=one, accuracy=RELAXED, on_damage=told) for one in found}
        print_lines(session_lines(found, counts, bests))
    else:
        print_text(f"no sessions in {store.path} meet the conditions")


@app.command("best", cls=Grouped)
@with_workload_words(Words)
def best(
    words: list[str],
    chosen: dict[str, Any],
    records: AnyRecordFile = None,
    hw: OfHardware = None,
    threads: OfThreads = None,
    session: SessionStart = None,
    accuracy: Accuracy = "standard",
    as_json: AsJson = False,
) -> None:
    """Show the best schedule of each workload, hardware and number of threads.

    Of a session that ended with a final comparison it is the schedule that `anatune tune` returned. The winners of
    several sessions, and all schedules of sessions that were imported or interrupted, are judged by the samples of all
    their trials together: by the median over the reference kernel's time where it ran beside them, else by the median
    time. A schedule whose last result was wrong is left out, and so is one whose arithmetic --accuracy does not admit.
    """
    from anatune.core.accuracy import RELAXED
    from anatune.report.records import best_lines

    path, workload = place(words, chosen, records)
    with opened(path) as store:
        only = session_id(store, session)
        found = store.bests(workload, hw, threads, only, accuracy=accuracy, on_damage=note_once())
        hidden = not found and store.bests(workload, hw, threads, only, accuracy=RELAXED, on_damage=lambda text: None)
    if as_json:
        print_json([_tree(record) for record in found])
    elif found:
        print_lines(best_lines(found))
    else:
        more = f"; --accuracy {RELAXED} shows some" if hidden else ""
        print_text(f"no trials in {path} that ran meet the conditions{more}")


def _tree(record: Record) -> dict[str, object]:
    """Return a record as one JSON object: its flat row, its samples, its schedule, the tiles and options as objects."""
    from anatune.records.export import flat_row
    from anatune.report.records import peak_of_threads

    trial = record.trial
    tree: dict[str, object] = {**(row := flat_row(record))}
    rate = row["gflop_per_s"]
    peak = peak_of_threads(record.session.hardware, record.session.workload.dtype, trial.threads)
    tree["peak_fraction"] = rate * 1e9 / peak if rate and isinstance(rate, float) else None
    tree["schedule"] = schedule = trial.schedule.to_dict()
    tree |= {name: schedule[name] for name in ("tiles", "vector", "options")}
    tree["times_s"] = trial.measurement.times_s
    tree["reference_times_s"] = trial.measurement.reference_times_s
    return tree
