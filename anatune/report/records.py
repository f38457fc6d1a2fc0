"""Records as tables of plain text: trials, sessions, the best of each workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.core.trial import Outcome
from anatune.records.export import workload_text
from anatune.records.schema import Record, Session
from anatune.report import units
from anatune.report.roofline import peak_flop_per_s
from anatune.report.text import Line, columns

__all__ = ["best_lines", "peak_of_threads", "rate_text", "session_lines", "trial_lines"]


def peak_of_threads(hardware: GpuSpec | CpuSpec, dtype: str, threads: int) -> float:
    """Return the theoretical peak of as many cores as there are threads, operations a second; of a GPU, all of it."""
    peak = peak_flop_per_s(hardware, dtype)
    return peak * min(1.0, threads / (hardware.most_threads or threads))


def rate_text(flop_per_s: float, peak_flop_per_s: float) -> str:
    """Return a measured rate, and its share of the theoretical peak, unless it is above that.

    More than the peak are operations that a transform saves, or a device that does more than its spec says.
    """
    rate = units.flop_rate(flop_per_s)
    if flop_per_s > peak_flop_per_s:
        return f"{rate}, above the spec's peak of {units.flop_rate(peak_flop_per_s)}"
    return f"{rate}, {units.percent(flop_per_s / peak_flop_per_s)} of peak"


def _rate(record: Record) -> float | None:
    """Return operations a second, None for what did not run or counts none."""
    time_s, flop = record.trial.measurement.time_s, record.trial.schedule.workload.flop
    return flop / time_s if time_s and flop else None


def _gflop(record: Record) -> str:
    rate = _rate(record)
    if rate is None:
        return "-"
    return f"{rate / 1e9:.0f}" if rate >= 99.5e9 else f"{rate / 1e9:.3g}"


def _peak(record: Record) -> str:
    rate, session = _rate(record), record.session
    if rate is None:
        return "-"
    peak = peak_of_threads(session.hardware, session.workload.dtype, record.trial.threads)
    return ">100%" if rate > peak else units.percent(rate / peak).replace(" ", "")


def _when(created_utc: str) -> str:
    return created_utc[:19].replace("T", " ")


def trial_lines(records: Iterable[Record]) -> list[Line]:
    """Return one line a trial, under a line for each session; failures show their message instead of the schedule.

    Who measured is a column where a worker of a cluster or a board did.
    """
    kept = list(records)
    is_fleet = any(record.trial.measurement.worker for record in kept)
    rows = [["id", "trial", "source", "outcome", "time", "GFLOP/s", "peak", "/ref", "samples"]]
    rows[0] += [*(["worker"] if is_fleet else []), "schedule or message"]
    for record in kept:
        trial, measurement = record.trial, record.trial.measurement
        ran, relative = measurement.time_s is not None, measurement.relative
        rows.append(
            [
                str(record.id),
                str(trial.number),
                trial.source,
                measurement.outcome.value,
                units.duration(measurement.time_s) if measurement.time_s is not None else "-",
                _gflop(record),
                _peak(record),
                units.ratio(relative) if relative is not None else "-",
                f"{len(measurement.times_s)}{'*' if measurement.stopped_early else ''}",
                *([measurement.worker or "-"] if is_fleet else []),
                trial.schedule.describe() if ran else " ".join(measurement.message.split()) or "-",
            ]
        )
    heading, *texts = columns(rows, left=(2, 3, 9, 10))
    lines = [Line(heading, "bold")]
    last = ""
    for record, text in zip(kept, texts, strict=True):
        if record.session.id != last:
            last = record.session.id
            lines.append(Line(_session_text(record.session), "bold"))
        failed = record.trial.measurement.outcome is not Outcome.OK
        lines.append(Line(text, "yellow" if failed else ""))
    if any(record.trial.measurement.stopped_early for record in kept):
        lines.append(Line("*: stopped early, clearly slower than the best", "dim"))
    return lines


def _session_text(session: Session) -> str:
    return (
        f"{workload_text(session.workload)} on {session.hardware.name}, {units.threads(session.threads)}: session "
        f"{session.id[:8]}, {session.strategy}, seed {session.seed}, begun {_when(session.created_utc)}"
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
    rows = [
        ["session", "begun (UTC)", "strategy", "threads", "trials", "failed", "best", "GFLOP/s", "hardware", "workload"]
    ]
    for session in sessions:
        found, best = counts[session.id], bests[session.id]
        total = sum(found.values())
        time_s = best.trial.measurement.time_s if best else None
        rows.append(
            [
                session.id[:8],
                _when(session.created_utc),
                session.strategy,
                str(session.threads),
                str(total),
                str(total - found.get(Outcome.OK, 0)),
                units.duration(time_s) if time_s is not None else "-",
                _gflop(best) if best else "-",
                session.hardware.name,
                workload_text(session.workload),
            ]
        )
    heading, *texts = columns(rows, left=(0, 1, 2, 8, 9))
    return [Line(heading, "bold"), *(Line(text) for text in texts)]


def best_lines(records: Sequence[Record]) -> list[Line]:
    """Return the best records, a line each with its schedule under it."""
    rows = [["time", "GFLOP/s", "peak", "/ref", "samples", "threads", "id", "hardware", "workload"]]
    for record in records:
        measurement = record.trial.measurement
        rows.append(
            [
                units.duration(measurement.time_s) if measurement.time_s is not None else "-",
                _gflop(record),
                _peak(record),
                units.ratio(measurement.relative) if measurement.relative is not None else "-",
                str(len(measurement.times_s)),
                str(record.trial.threads),
                str(record.id),
                record.session.hardware.name,
                workload_text(record.session.workload),
            ]
        )
    heading, *texts = columns(rows, left=(7, 8))
    lines = [Line(heading, "bold")]
    for record, text in zip(records, texts, strict=True):
        lines += [Line(text), Line(f"    {record.trial.schedule.describe()}", "dim")]
    lines.append(
        Line("peak: share of the theoretical peak of the threads' cores; /ref: over the reference kernel's time", "dim")
    )
    return lines
