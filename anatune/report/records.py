"""Records as tables of plain text: trials, sessions, the best of each workload, what an import recorded."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import known_templates
from anatune.core.trial import Measurement, Outcome
from anatune.records.export import workload_text
from anatune.records.schema import Record, Session
from anatune.report import units
from anatune.report.roofline import peak_flop_per_s
from anatune.report.text import Line, paragraph, table


def peak_of_threads(hardware: GpuSpec | CpuSpec, dtype: str, threads: int, template: str = "") -> float:
    """Return the theoretical peak of as many cores as there are threads, operations a second; of a GPU, all of it.

    With a template that of the unit that its kernels multiply on; NaN for a template of another version, which is not
    known here.
    """
    if template and template not in known_templates():
        return math.nan
    peak = peak_flop_per_s(hardware, dtype, template)
    return peak * min(1.0, threads / (hardware.most_threads or threads))


def rate_text(flop_per_s: float, peak_flop_per_s: float) -> str:
    """Return a measured rate, and its share of the theoretical peak, unless it is above that.

    More than the peak are operations that a transform saves, or a device that does more than its spec says.
    """
    rate = units.flop_rate(flop_per_s)
    if math.isnan(peak_flop_per_s):
        return rate
    if flop_per_s > peak_flop_per_s:
        return f"{rate}, above the spec's peak of {units.flop_rate(peak_flop_per_s)}"
    return f"{rate}, {units.percent(flop_per_s / peak_flop_per_s)} of peak"


def _speed(record: Record) -> tuple[str, str]:
    """Return GFLOP/s and the share of the peak; dashes for what did not run or counts no operations."""
    trial, session = record.trial, record.session
    time_s, workload = trial.measurement.time_s, trial.schedule.workload
    if not time_s or not workload.flop:
        return "-", "-"
    rate = workload.flop / time_s
    share = rate / peak_of_threads(session.hardware, workload.dtype, trial.threads, trial.schedule.template)
    if math.isnan(share):
        return units.giga(rate), "-"
    return units.giga(rate), ">100%" if share > 1.0 else units.share(share)


def when_text(created_utc: str) -> str:
    """Return an ISO time to the second, without its zone."""
    return created_utc[:19].replace("T", " ")


def trial_lines(records: Iterable[Record], width: int) -> list[Line]:
    """Return a row a trial, under a line for each session, and below it the schedule, or the message of a failure.

    Who measured is a column where a worker of a cluster or a board did.
    """
    kept = list(records)
    measured = [record.trial.measurement for record in kept]
    speeds = [_speed(record) for record in kept]
    cells = [
        ("id", [str(record.id) for record in kept]),
        ("trial", [str(record.trial.number) for record in kept]),
        ("source", [record.trial.source for record in kept]),
        ("outcome", [found.outcome.value for found in measured]),
        ("time", [units.or_dash(found.time_s) for found in measured]),
        ("GFLOP/s", [rate for rate, _ in speeds]),
        ("peak", [share for _, share in speeds]),
        ("/ref", [units.or_dash(found.relative, units.ratio) for found in measured]),
        ("samples", [f"{len(found.times_s)}{'*' if found.stopped_early else ''}" for found in measured]),
    ]
    if any(found.worker for found in measured):
        cells.append(("worker", [found.worker or "-" for found in measured]))
    heading, *rows = table(cells, ("source", "outcome", "worker"))
    lines = [heading]
    last = ""
    for record, row in zip(kept, rows, strict=True):
        if record.session.id != last:
            last = record.session.id
            lines += paragraph(_session_text(record.session), width, "bold")
        failed = record.trial.measurement.outcome is not Outcome.OK
        lines.append(row._replace(style="yellow") if failed else row)
        lines += _lines_below(record, width)
    if any(found.stopped_early for found in measured):
        lines.append(Line("*: stopped early, clearly slower than the best", "dim"))
    return [*lines, *_times_lines(measured, width)]


def _times_lines(measured: Sequence[Measurement], width: int) -> list[Line]:
    """Return what the times of records are, where a reference kernel ran."""
    told = "time: as measured then; /ref, over a reference kernel, compares trials"
    return paragraph(told, width, "dim") if any(found.relative is not None for found in measured) else []


def _lines_below(record: Record, width: int) -> list[Line]:
    """Return what a trial says besides its numbers; it breaks at every blank."""
    texts = textwrap.wrap(_said(record), width - 4, break_long_words=False, break_on_hyphens=False)
    return [Line(f"    {text}", "dim") for text in texts]


def _said(record: Record) -> str:
    """Return a trial's schedule, or its message where it has no time."""
    measurement = record.trial.measurement
    ran = measurement.time_s is not None
    return record.trial.schedule.describe() if ran else " ".join(measurement.message.split()) or "-"


def _session_text(session: Session) -> str:
    return (
        f"{workload_text(session.workload)} on {session.hardware.name}, {units.threads(session.threads)}: session "
        f"{session.id[:8]}, {session.strategy}, seed {session.seed}, begun {when_text(session.created_utc)}"
    )


def session_lines(
    sessions: Sequence[Session], counts: Mapping[str, Mapping[Outcome, int]], bests: Mapping[str, Record | None]
) -> list[Line]:
    """Return one line a session: what, where, how many trials, how many failed, the best.

    Parameters
    ----------
    sessions : sequence of Session
        What to show.
    counts : mapping
        Session id -> outcome -> trials.
    bests : mapping
        Session id -> its best record, or None.
    """
    best = [bests[session.id] for session in sessions]
    totals = [sum(counts[session.id].values()) for session in sessions]
    ran = [counts[session.id].get(Outcome.OK, 0) for session in sessions]
    cells = [
        ("session", [session.id[:8] for session in sessions]),
        ("begun (UTC)", [when_text(session.created_utc) for session in sessions]),
        ("strategy", [session.strategy for session in sessions]),
        ("threads", [str(session.threads) for session in sessions]),
        ("trials", [str(total) for total in totals]),
        ("failed", [str(total - good) for total, good in zip(totals, ran, strict=True)]),
        ("best", [units.or_dash(record.trial.measurement.time_s if record else None) for record in best]),
        ("GFLOP/s", [_speed(record)[0] if record else "-" for record in best]),
        ("hardware", [session.hardware.name for session in sessions]),
        ("workload", [workload_text(session.workload) for session in sessions]),
    ]
    return table(cells, ("session", "begun (UTC)", "strategy", "hardware", "workload"))


def best_lines(records: Sequence[Record], width: int) -> list[Line]:
    """Return the best records, a line each with its schedule under it."""
    measured = [record.trial.measurement for record in records]
    speeds = [_speed(record) for record in records]
    cells = [
        ("time", [units.or_dash(found.time_s) for found in measured]),
        ("GFLOP/s", [rate for rate, _ in speeds]),
        ("peak", [share for _, share in speeds]),
        ("/ref", [units.or_dash(found.relative, units.ratio) for found in measured]),
        ("samples", [str(len(found.times_s)) for found in measured]),
        ("threads", [str(record.trial.threads) for record in records]),
        ("id", [str(record.id) for record in records]),
        ("hardware", [record.session.hardware.name for record in records]),
        ("workload", [workload_text(record.session.workload) for record in records]),
    ]
    heading, *rows = table(cells, ("hardware", "workload"))
    lines = [heading]
    for record, row in zip(records, rows, strict=True):
        lines += [row, *_lines_below(record, width)]
    lines += paragraph("peak: share of the theoretical peak of the threads' cores", width, "dim")
    return [*lines, *_times_lines(measured, width)]
