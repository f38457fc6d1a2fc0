"""Reports about workers: changes of their state in a session, and the trials of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from anatune.measure.place import WorkerState
from anatune.report import units
from anatune.report.text import Cells, Line, paragraph, table
from anatune.tuning.result import WorkerShare


class _Reasoned(Protocol):
    """A worker with a state and its reason."""

    @property
    def state(self) -> str: ...
    @property
    def why(self) -> str: ...


_MOST_NAMED = 3
"""Number of workers that one line names."""


def news(before: Sequence[WorkerState], now: Sequence[WorkerState]) -> list[str]:
    """Return a line for each worker that joined, was lost, refused or quarantined, or is ready again.

    Parameters
    ----------
    before, now : sequence of WorkerState
        The states at the last report, and now.
    """
    last_states = {worker.name: worker for worker in before}
    lines, joined = [], []
    for worker in now:
        last = last_states.get(worker.name)
        if worker.state == "ready":
            if last is None:
                joined.append(worker)
            elif last.state != "ready":
                lines.append(f"worker {worker.name} is ready again")
        elif last is None or (last.state, last.why) != (worker.state, worker.why):
            lines.append(f"worker {worker.name} is {worker.state}{worker.why and f': {worker.why}'}")
    return [*_joined_lines(joined), *lines]


def fleet_text(workers: Sequence[WorkerState], trials_per_s: float | None) -> str:
    """Return the number of measuring devices and their rate: "2 of 3 devices, 1.5 trials/s"; "" without workers."""
    if not workers:
        return ""
    measuring = [worker for worker in workers if worker.measures]
    ready = sum(worker.state == "ready" for worker in measuring)
    devices = units.many(len(measuring), "device")
    text = devices if ready == len(measuring) else f"{ready} of {devices}"
    return text if trials_per_s is None else f"{text}, {trials_per_s:.3g} trials/s"


def failures_text(failures: int, workers: Sequence[WorkerState]) -> str:
    """Return the number of failed trials, and of those of each machine: "3 failed (gpu2 2, gpu1 1)"."""
    failed = sorted((worker for worker in workers if worker.failed), key=lambda worker: -worker.failed)
    named = [f"{worker.name} {worker.failed}" for worker in failed[:_MOST_NAMED]]
    rest = len(failed) - len(named)
    named += [f"{rest} more {sum(worker.failed for worker in failed[_MOST_NAMED:])}"] if rest else []
    return f"{failures} failed" + (f" ({', '.join(named)})" if named else "")


def share_lines(shares: Sequence[WorkerShare], width: int) -> list[Line]:
    """Return a table with the trials of each worker, and below it why a worker did not measure to the end.

    Parameters
    ----------
    shares : sequence of WorkerShare
        The trials of each worker; without any, there are no lines.
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
    """Return a table of workers, with the reason under each that is not ready."""
    heading, *rows = table(cells, left, width=width)
    lines = [heading]
    for worker, row in zip(workers, rows, strict=True):
        lines += [row if worker.state == "ready" else row._replace(style="yellow")]
        lines += paragraph(worker.why, width, indent="  ")
    return lines


def _joined_lines(workers: Sequence[WorkerState]) -> list[str]:
    """Return a line for the workers of each device that joined; it names only some of many workers."""
    lines = []
    for device in dict.fromkeys(worker.device for worker in workers):
        names = [worker.name for worker in workers if worker.device == device]
        names_text = ", ".join(names[:_MOST_NAMED])
        names_text += f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        lines.append(f"worker{'s' * (len(names) > 1)} {names_text} joined{device and f': {device}'}")
    return lines
