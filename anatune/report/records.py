"""Reports about records: tables of trials, of sessions, and of the best trial of each workload."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.templates import all_templates
from anatune.core.trial import Measurement, Outcome
from anatune.records.export import workload_text
from anatune.records.schema import Record, Session
from anatune.report import units
from anatune.report.roofline import peak_flop_per_s
from anatune.report.text import Line, paragraph, table


def peak_of_threads(hardware: GpuSpec | CpuSpec, dtype: str, threads: int, template: str = "") -> float:
    """Return the peak of as many CPU cores as there are threads, or of the whole GPU, in operations per second.

    With a template it is the peak of the units on which its kernels multiply; NaN if this version lacks the template.
    """
    if template and template not in all_templates():
        return math.nan
    peak = peak_flop_per_s(hardware, dtype, template)
    return peak * min(1.0, threads / (hardware.most_threads or threads))


def rate_text(flop_per_s: float, peak_flop_per_s: float) -> str:
    """Return a measured rate and its share of the peak.

    A rate above the peak comes from a transform that saves operations, or from a device that is faster than its spec.
    """
    rate = units.flop_rate(flop_per_s)
    if math.isnan(peak_flop_per_s):
        return rate
    if flop_per_s > peak_flop_per_s:
        return f"{rate}, above the peak of {units.flop_rate(peak_flop_per_s)} in the spec"
    return f"{rate}, {units.percent(flop_per_s / peak_flop_per_s)} of peak"


def _speed(record: Record) -> tuple[str, str]:
    """Return the cells for GFLOP/s and the share of the peak; dashes if it did not run or has no operations."""
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
    """Return an ISO time, cut after the seconds."""
    return created_utc[:19].replace("T", " ")


def trial_lines(records: Iterable[Record], width: int) -> list[Line]:
    """Return one row for each trial, below a line for its session, and under the row its schedule or failure message.

    The column `worker` is there if a worker of a cluster or a board measured.
    """
    listed = list(records)
    measured = [record.trial.measurement for record in listed]
    speeds = [_speed(record) for record in listed]
    cells = [
        ("id", [str(record.id) for record in listed]),
        ("trial", [str(record.trial.number) for record in listed]),
        ("source", [record.trial.source for record in listed]),
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
    for record, row in zip(listed, rows, strict=True):
        if record.session.id != last:
            last = record.session.id
            lines += paragraph(_session_text(record.session), width, "bold")
        failed = record.trial.measurement.outcome is not Outcome.OK
        lines.append(row._replace(style="yellow") if failed else row)
        lines += _lines_below(record, width)
    if any(found.stopped_early for found in measured):
        lines.append(Line("*: timing stopped early, because the kernel is clearly slower than the best one", "dim"))
    return [*lines, *_times_lines(measured, width)]


def _times_lines(measured: Sequence[Measurement], width: int) -> list[Line]:
    """Return a legend of the times, if a reference kernel ran."""
    explanation = "time: as measured; /ref: time over that of a reference kernel; trials are compared by /ref"
    return paragraph(explanation, width, "dim") if any(found.relative is not None for found in measured) else []


def _lines_below(record: Record, width: int) -> list[Line]:
    """Return the lines below a row: the schedule or the message; they break at every blank."""
    texts = textwrap.wrap(_description(record), width - 4, break_long_words=False, break_on_hyphens=False)
    return [Line(f"    {text}", "dim") for text in texts]


def _description(record: Record) -> str:
    """Return a trial's schedule, or its message if it failed."""
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
    """Return a table with one row for each session: workload, device, number of trials and failures, the best.

    Parameters
    ----------
    sessions : sequence of Session
        The sessions to show.
    counts : mapping
        Session id -> outcome -> number of trials.
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
    """Return a table of the best records, with the schedule under each row."""
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
    lines += paragraph("peak: share of the peak of as many cores as there are threads", width, "dim")
    return [*lines, *_times_lines(measured, width)]
