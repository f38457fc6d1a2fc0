"""Machines that measure, as text: what happens to them in a session, who measured what, who is in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anatune.measure.place import WorkerState
from anatune.report import units
from anatune.report.text import Line, columns, wrapped
from anatune.tuning.result import WorkerShare

if TYPE_CHECKING:
    from anatune.measure.cluster.status import ClusterStatus, WorkerStatus

__all__ = ["failures_text", "fleet_text", "news", "share_lines", "status_lines"]

_MOST_NAMED = 3
"""Workers that one line names of many."""


def news(before: Sequence[WorkerState], now: Sequence[WorkerState]) -> list[str]:
    """Return a line for each worker that came, went, was refused or quarantined, or is back.

    Parameters
    ----------
    before, now : sequence of WorkerState
        When the last news were told; at present.
    """
    known = {worker.name: worker for worker in before}
    lines, joined = [], []
    for worker in now:
        last = known.get(worker.name)
        if worker.state == "ready":
            if last is None:
                joined.append(worker)
            elif last.state != "ready":
                lines.append(f"worker {worker.name} is back")
        elif last is None or (last.state, last.why) != (worker.state, worker.why):
            lines.append(f"worker {worker.name} is {worker.state}{worker.why and f': {worker.why}'}")
    return [*_joined(joined), *lines]


def fleet_text(workers: Sequence[WorkerState], trials_per_s: float | None) -> str:
    """Return how many devices measure, and how fast: "2 of 3 devices, 1.5 trials/s"; empty where there are none."""
    if not workers:
        return ""
    measuring = [worker for worker in workers if worker.measures]
    ready = sum(worker.state == "ready" for worker in measuring)
    devices = _count(len(measuring), "device")
    text = devices if ready == len(measuring) else f"{ready} of {devices}"
    return text if trials_per_s is None else f"{text}, {trials_per_s:.3g} trials/s"


def failures_text(failures: int, workers: Sequence[WorkerState]) -> str:
    """Return how many trials have no time, and on which machines: "3 failed (gpu2 2, gpu1 1)"."""
    failed = sorted((one for one in workers if one.failed), key=lambda one: -one.failed)
    named = [f"{one.name} {one.failed}" for one in failed[:_MOST_NAMED]]
    rest = len(failed) - len(named)
    named += [f"{rest} more {sum(one.failed for one in failed[_MOST_NAMED:])}"] if rest else []
    return f"{failures} failed" + (f" ({', '.join(named)})" if named else "")


def share_lines(shares: Sequence[WorkerShare], width: int) -> list[Line]:
    """Return a table of who measured what, and below it why a worker did not measure to the end.

    Parameters
    ----------
    shares : sequence of WorkerShare
        Nothing is said of none.
    width : int
        Characters a line.
    """
    if not shares:
        return []
    rows = [["worker", "trials", "failed", "best", "state", "device"]]
    for share in shares:
        worker, best = share.worker, share.best
        time_s = None if best is None else best.measurement.time_s
        rows.append(
            [
                worker.name or "this machine",
                str(worker.trials),
                str(worker.failed),
                "-" if time_s is None else units.duration(time_s),
                worker.state,
                worker.device or "-",
            ]
        )
    if not any(share.best for share in shares):
        rows = [[*row[:3], *row[4:]] for row in rows]
    words = [at for at, word in enumerate(rows[0]) if word in ("worker", "state", "device")]
    heading, *texts = columns(rows, left=words, width=width)
    lines = [Line(heading, "bold")]
    for share, text in zip(shares, texts, strict=True):
        lines.append(Line(text, "" if share.worker.state == "ready" else "yellow"))
        if share.worker.why:
            lines += [Line(line) for line in wrapped(share.worker.why, width, indent="  ")]
    return lines


def _joined(workers: Sequence[WorkerState]) -> list[str]:
    """Return a line for the workers that came at once; of many only how many of which device."""
    if not workers:
        return []
    devices = list(dict.fromkeys(worker.device for worker in workers))
    lines = []
    for device in devices:
        names = [worker.name for worker in workers if worker.device == device]
        told = ", ".join(names[:_MOST_NAMED])
        told += f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        lines.append(f"worker{'s' * (len(names) > 1)} {told} joined{device and f': {device}'}")
    return lines


def status_lines(status: ClusterStatus, *, width: int = 80) -> list[Line]:
    """Return who is in a cluster: a line a worker, below it why a session would do without it."""
    workers = status.workers
    devices, builders = sum(one.measures for one in workers), sum(one.builds for one in workers)
    counted = f"{_count(len(workers), 'worker')}, {_count(devices, 'device')}, {builders} to build at once"
    lines = [Line(f"scheduler {status.address}: {counted if workers else 'no worker has joined'}", "bold")]
    if not workers:
        return lines
    rows = [["worker", "state", "builds", "measured", "sessions", "device", "now"]]
    for one in workers:
        rows.append(
            [
                one.name,
                one.state,
                str(one.builds),
                str(one.measured),
                str(one.sessions),
                one.device or ("-" if one.state == "foreign" else "builds only"),
                _doing(one),
            ]
        )
    heading, *texts = columns(rows, left=(0, 1, 5, 6), width=width)
    lines.append(Line(heading, "bold"))
    for one, text in zip(workers, texts, strict=True):
        lines.append(Line(text, "" if one.state == "ready" else "yellow"))
        if one.why:
            lines += [Line(line) for line in wrapped(one.why, width, indent="  ")]
    return lines


def _doing(worker: WorkerStatus) -> str:
    """Return what a worker is at: "2 builds, run for 3 s"."""
    builds = sum(one.stage == "build" for one in worker.running)
    words = [_count(builds, "build")] if builds else []
    words += [f"{one.stage} for {one.seconds:.0f} s" for one in worker.running if one.stage != "build"]
    return ", ".join(words) or "idle"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"
