"""Tables of tuning sessions for pages: trials, sessions, machines, workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anatune.core.show import duration_unit
from anatune.core.trial import Trial
from anatune.pages.page import Cell, Column, Table
from anatune.report.findings import agreement, failure_kinds
from anatune.report.records import peak_of_threads
from anatune.report.sessions import SessionView

__all__ = ["best_s", "failures_table", "sessions_table", "trials_table", "workers_table", "workloads_table"]

_ROWS_SHOWN, _WORKLOADS_SHOWN = 10, 25
"""Rows of one leaf of a table."""
_MOST_LETTERS = 400
"""Of a message: a compiler's may have a page."""


def best_s(view: SessionView) -> float:
    """Return the time of a session's best, s; infinite where nothing ran: for finding the fastest of several."""
    return math.inf if view.best_s is None else view.best_s


class _Unit(NamedTuple):
    """A unit of time for a column of a table."""

    scale_s: float
    name: str

    def of(self, seconds: float | None) -> float | None:
        return None if seconds is None else seconds / self.scale_s


def _unit(trials: Sequence[Trial]) -> _Unit:
    """Return the unit in which the fastest of some trials is told."""
    times = [time_s for trial in trials if (time_s := trial.measurement.time_s) is not None]
    return _Unit(*duration_unit(min(times, default=1e-3)))


def trials_table(views: Sequence[SessionView]) -> Table:
    """Return the table of all trials; the winners stand out."""
    trials = [(view, trial) for view in views for trial in view.trials]
    unit = _unit([trial for _, trial in trials])
    several, is_fleet = len(views) > 1, any(trial.measurement.worker for _, trial in trials)
    counts, has_energy = bool(views[0].workload.flop), any(one.measurement.energy_j is not None for _, one in trials)
    columns = [
        *([Column("session", is_text=True)] if several else []),
        Column("trial"),
        Column("schedule or message", is_text=True),
        Column("ended", is_text=True),
        Column(f"time ({unit.name})", help="median of the samples"),
        *([Column("of peak (%)", help="of the theoretical peak of the threads' cores")] if counts else []),
        Column(f"predicted ({unit.name})"),
        Column("asked by", is_text=True, help="the plan's first choice, records, or the strategy", is_detail=True),
        *([Column("GFLOP/s", is_detail=True)] if counts else []),
        Column("measured / predicted", is_detail=True),
        Column(
            "/ reference",
            help="over the time of the reference kernel beside each sample: what trials are compared by",
            is_detail=True,
        ),
        Column("samples", is_detail=True),
        Column("build (s)", is_detail=True),
        *([Column("energy (mJ)", help="of one run, of the whole device", is_detail=True)] if has_energy else []),
        *([Column("machine", is_text=True, is_detail=True)] if is_fleet else []),
    ]
    rows: list[Sequence[Cell]] = []
    for view, trial in trials:
        measurement, time_s = trial.measurement, trial.measurement.time_s
        rate = view.workload.flop / time_s if time_s else None
        peak = peak_of_threads(view.hardware, view.workload.dtype, trial.threads)
        ratio = time_s / trial.predicted_s if time_s is not None and trial.predicted_s else None
        said = trial.schedule.describe() if time_s is not None else _cut(measurement.message)
        rows.append(
            (
                *([view.name] if several else []), trial.number, said, measurement.outcome.value, unit.of(time_s),
                *([rate and 100 * rate / peak] if counts else []), unit.of(trial.predicted_s),
                trial.source, *([rate and rate / 1e9] if counts else []),
                ratio, measurement.relative, len(measurement.times_s), measurement.build_s or None,
                *([None if measurement.energy_j is None else 1e3 * measurement.energy_j] if has_energy else []),
                *([measurement.worker or None] if is_fleet else []),
            )
        )  # fmt: skip
    marked = [place for place, (view, trial) in enumerate(trials) if trial is view.best]
    return Table(columns, rows, "The winner stands out" if marked else "", _ROWS_SHOWN, marked)


def sessions_table(views: Sequence[SessionView]) -> Table:
    """Return one row a session."""
    unit = _unit([view.best for view in views if view.best is not None])
    columns = (
        Column("session", is_text=True), Column("begun (UTC)", is_text=True), Column("trials"),
        Column("without a time"), Column(f"best ({unit.name})"), Column("against the plan's first choice"),
        Column("took (s)"), Column("rank correlation"),
    )  # fmt: skip
    rows = []
    for view in views:
        rows.append(
            (
                view.name, view.begun_utc[:19].replace("T", " ") or None, len(view.trials), view.num_failed,
                unit.of(view.best_s),
                None if view.comparison is None else view.comparison.speedup,
                view.ended_s[-1] if view.ended_s else None, agreement(view.trials).rho,
            )
        )  # fmt: skip
    fastest = min(range(len(views)), key=lambda place: best_s(views[place]))
    return Table(columns, rows, "Sessions", _ROWS_SHOWN, [fastest])


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_LETTERS else f"{line[:_MOST_LETTERS]} …"


def failures_table(views: Sequence[SessionView]) -> Table:
    """Return the first lines of failures' messages with how many had them."""
    kinds = failure_kinds(trial for view in views for trial in view.trials)
    rows = [(kind.outcome.value, count, _cut(line)) for kind in kinds for line, count in kind.messages]
    columns = (Column("ended", is_text=True), Column("trials"), Column("first line of the message", is_text=True))
    return Table(columns, rows, "What they said", _ROWS_SHOWN)


def workers_table(views: Sequence[SessionView]) -> Table:
    """Return one row for each machine that measured; what became of it, where the session itself tells."""
    shares = [(view, share) for view in views for share in view.shares]
    unit = _unit([share.best for _, share in shares if share.best is not None])
    are_known = any(view.workers for view in views)
    columns = [
        *([Column("session", is_text=True)] if len(views) > 1 else []),
        Column("machine", is_text=True),
        Column("trials"),
        Column("without a time"),
        Column(f"best ({unit.name})"),
        *([Column(name, is_text=True) for name in ("state", "device", "why")] if are_known else []),
    ]
    rows: list[Sequence[Cell]] = []
    for view, share in shares:
        worker = share.worker
        time_s = None if share.best is None else share.best.measurement.time_s
        state = (worker.state, worker.device or None, worker.why or None) if are_known else ()
        whose = [view.name] if len(views) > 1 else []
        rows.append((*whose, worker.name or "this machine", worker.trials, worker.failed, unit.of(time_s), *state))
    return Table(columns, rows)


def workloads_table(groups: Mapping[str, Sequence[SessionView]]) -> Table:
    """Return one row for each workload and device."""
    columns = (
        Column("workload and device", is_text=True), Column("sessions", is_detail=True), Column("trials"),
        Column("without a time", is_detail=True), Column("best (us)"), Column("GFLOP/s"), Column("of peak (%)"),
        Column("measured / predicted"), Column("rank correlation", is_detail=True),
    )  # fmt: skip
    rows = []
    for where, views in groups.items():
        trials = [trial for view in views for trial in view.trials]
        fastest_s = min(map(best_s, views))
        view, agreed = views[0], agreement(trials)
        ran = math.isfinite(fastest_s)
        rate = view.workload.flop / fastest_s if ran and view.workload.flop else None
        peak = peak_of_threads(view.hardware, view.workload.dtype, view.threads)
        rows.append(
            (
                where, len(views), len(trials), sum(one.num_failed for one in views), fastest_s * 1e6 if ran else None,
                rate and rate / 1e9, rate and 100 * rate / peak, agreed.ratio, agreed.rho,
            )
        )  # fmt: skip
    return Table(columns, rows, rows_shown=_WORKLOADS_SHOWN)
