"""``anatune records``: what was measured, the best of it, and other forms of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from anatune.cli.options import Accuracy, AsJson, spread
from anatune.cli.output import UsageError, line_width, note_once, print_json, print_lines, print_text
from anatune.cli.panels import Grouped, subcommands
from anatune.cli.records.export import export_records
from anatune.cli.records.import_ import import_records
from anatune.cli.records.merge import merge_records
from anatune.cli.records.place import Selection, Trials, Words, opened
from anatune.cli.records.report import report_records
from anatune.cli.records.train import train_corrections

if TYPE_CHECKING:
    from anatune.core.workload.nest import Workload
    from anatune.records.schema import Record
    from anatune.records.store import RecordStore

__all__ = ["app"]

app = subcommands("List, choose from and export what was measured.")
app.command("export", cls=Grouped)(export_records)
app.command("import", cls=Grouped)(import_records)
app.command("merge")(merge_records)
app.command("report", cls=Grouped)(report_records)
app.command("train", cls=Grouped)(train_corrections)


@app.command("list", cls=Grouped)
@spread
def list_records(
    which: Trials,
    words: Words = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="One line a session instead of one a trial.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the trials of a record file or server, or its sessions."""
    from anatune.report.records import trial_lines

    path, workload = which.named(words)
    with opened(path) as store:
        if sessions:
            _list_sessions(store, workload, which, as_json)
            return
        trials = store.trials(**which.keywords(store, workload), on_damage=note_once())
    if as_json:
        print_json([_tree(record) for record in trials])
    elif trials:
        print_lines(trial_lines(trials, line_width()))
    else:
        print_text(f"no trials in {path} meet the conditions")


def _list_sessions(store: RecordStore, workload: Workload | None, which: Trials, as_json: bool) -> None:
    from anatune.core.accuracy import RELAXED
    from anatune.records.export import workload_text
    from anatune.report.records import session_lines

    told, only = note_once(), which.session_id(store)
    if which.outcome is not None or which.limit is not None or which.worker is not None:
        raise UsageError("--outcome, --worker and --limit choose trials, --sessions lists sessions; leave one out")
    sessions = [
        session
        for session in store.sessions(workload, which.hw, which.threads, on_damage=told)
        if only in (None, session.id)
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
            session.id: store.best(session.workload, session=session, accuracy=RELAXED, on_damage=told)
            for session in sessions
        }
        print_lines(session_lines(sessions, counts, bests))
    else:
        print_text(f"no sessions in {store.path} meet the conditions")


@app.command("best", cls=Grouped)
@spread
def best(which: Selection, words: Words = None, accuracy: Accuracy = "standard", as_json: AsJson = False) -> None:
    """Show the best schedule of each workload, hardware and number of threads.

    Of a session that ended with a final comparison it is the schedule that `anatune tune` returned. The winners of
    several sessions, and all schedules of sessions that were imported or interrupted, are judged by the samples of all
    their trials together: by the median over the reference kernel's time where it ran beside them, else by the median
    time. A schedule whose last result was wrong is left out, and so is one whose arithmetic --accuracy does not admit.
    """
    from anatune.core.accuracy import RELAXED
    from anatune.report.records import best_lines

    path, workload = which.named(words)
    with opened(path) as store:
        selected = (workload, which.hw, which.threads, which.session_id(store))
        bests = store.bests(*selected, accuracy=accuracy or "standard", on_damage=note_once())
        hidden = not bests and store.bests(*selected, accuracy=RELAXED, on_damage=lambda text: None)
    if as_json:
        print_json([_tree(record) for record in bests])
    elif bests:
        print_lines(best_lines(bests, line_width()))
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
    hardware, dtype = record.session.hardware, record.session.workload.dtype
    peak = peak_of_threads(hardware, dtype, trial.threads, trial.schedule.template)
    tree["peak_fraction"] = rate * 1e9 / peak if rate and isinstance(rate, float) and not math.isnan(peak) else None
    tree["schedule"] = schedule = trial.schedule.to_dict()
    tree |= {name: schedule[name] for name in ("tiles", "vector", "options")}
    tree["times_s"] = trial.measurement.times_s
    tree["reference_times_s"] = trial.measurement.reference_times_s
    return tree
