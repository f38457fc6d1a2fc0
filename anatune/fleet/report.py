"""The status of a cluster as text."""

from __future__ import annotations

from anatune.fleet.cluster.status import ClusterStatus, WorkerStatus
from anatune.report import units
from anatune.report.text import Cells, Line
from anatune.report.workers import table_with_reasons


def status_lines(status: ClusterStatus, *, width: int = 80) -> list[Line]:
    """Return a table of the workers of a cluster, with the reasons why a session would refuse them."""
    workers = status.workers
    devices, builders = sum(worker.measures for worker in workers), sum(worker.builds for worker in workers)
    counted = f"{units.many(len(workers), 'worker')}, {units.many(devices, 'device')}, {builders} builds at once"
    title = Line(f"scheduler {status.address}: {counted if workers else 'no worker has joined'}", "bold")
    if not workers:
        return [title]
    cells: Cells = [
        ("worker", [worker.name for worker in workers]),
        ("state", [worker.state for worker in workers]),
        ("builds", [str(worker.builds) for worker in workers]),
        ("measured", [str(worker.measured) for worker in workers]),
        ("sessions", [str(worker.sessions) for worker in workers]),
        ("device", [worker.device or ("-" if worker.state == "foreign" else "builds only") for worker in workers]),
        ("now", [_describe_work(worker) for worker in workers]),
    ]
    return [title, *table_with_reasons(cells, ("worker", "state", "device", "now"), workers, width)]


def _describe_work(worker: WorkerStatus) -> str:
    """Return a worker's current work as text, such as "2 builds, run for 3 s"."""
    builds = sum(task.stage == "build" for task in worker.running)
    words = [units.many(builds, "build")] if builds else []
    words += [f"{task.stage} for {task.seconds:.0f} s" for task in worker.running if task.stage != "build"]
    return ", ".join(words) or "idle"
