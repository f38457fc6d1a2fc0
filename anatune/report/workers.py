"""Machines that measure, as text: what happens to them in a session, who measured what, who is in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anatune.measure.place import WorkerState
from anatune.report import units
from anatune.report.text import Cells, Line, paragraph, table
from anatune.tuning.result import WorkerShare


class _Reasoned(Protocol):
    """A worker that says why it is not ready."""

    @property
    def state(self) -> str: ...
    @property
    def why(self) -> str: ...


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
    devices = units.many(len(measuring), "device")
    text = devices if ready == len(measuring) else f"{ready} of {devices}"
    return text if trials_per_s is None else f"{text}, {trials_per_s:.3g} trials/s"


def failures_text(failures: int, workers: Sequence[WorkerState]) -> str:
    """Return how many trials have no time, and on which machines: "3 failed (gpu2 2, gpu1 1)"."""
    failed = sorted((worker for worker in workers if worker.failed), key=lambda worker: -worker.failed)
    named = [f"{worker.name} {worker.failed}" for worker in failed[:_MOST_NAMED]]
    rest = len(failed) - len(named)
    named += [f"{rest} more {sum(worker.failed for worker in failed[_MOST_NAMED:])}"] if rest else []
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
    times = [None if share.best is None else share.best.measurement.time_s for share in shares]
    cells: Cells = [
        ("worker", [share.worker.name or "this machine" for share in shares]),
        ("trials", [str(share.worker.trials) for share in shares]),
        ("failed", [str(share.worker.failed) for share in shares]),
        ("best", [units.or_dash(time_s) for time_s in times]),
        ("state", [share.worker.state for share in shares]),
        ("device", [share.worker.device or "-" for share in shares]),
    ]
    if not any(share.best for share in shares):
        cells = [column for column in cells if column[0] != "best"]
    return table_with_reasons(cells, ("worker", "state", "device"), [share.worker for share in shares], width)


def table_with_reasons(cells: Cells, left: Sequence[str], workers: Sequence[_Reasoned], width: int) -> list[Line]:
    """Return a table of workers, and below those that are not ready why."""
    heading, *rows = table(cells, left, width=width)
    lines = [heading]
    for worker, row in zip(workers, rows, strict=True):
        lines += [row if worker.state == "ready" else row._replace(style="yellow")]
        lines += paragraph(worker.why, width, indent="  ")
    return lines


def _joined(workers: Sequence[WorkerState]) -> list[str]:
    """Return a line for the workers that came at once; of many only how many of which device."""
    lines = []
    for device in dict.fromkeys(worker.device for worker in workers):
        names = [worker.name for worker in workers if worker.device == device]
        told = ", ".join(names[:_MOST_NAMED])
        told += f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        lines.append(f"worker{'s' * (len(names) > 1)} {told} joined{device and f': {device}'}")
    return lines
