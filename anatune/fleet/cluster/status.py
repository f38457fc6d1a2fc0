"""The status of a cluster: its workers, their work, and which of them a session from here would refuse."""

from __future__ import annotations

from typing import Literal

import msgspec

from anatune.core.hardware.changed import difference
from anatune.fleet.cluster.dask_fleet import read_standing, read_worker_description
from anatune.fleet.cluster.messages import Running, WorkerDescription
from anatune.fleet.cluster.roster import refusal, requirements_of
from anatune.fleet.cluster.security import scheduler_identity


class WorkerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The status of a worker; it is immutable and can be written to and read from JSON.

    Attributes
    ----------
    name, address : str
        The name in records, and the address of the process.
    state : str
        "ready", "refused" (a session from here would refuse it), or "foreign" (it is not an anatune worker).
    why : str
        The reason in one line; empty for "ready".
    device : str
        The model of the device; empty if the worker only builds.
    measures, builds : int
        The number of slots for measurements and builds.
    running : tuple of Running
        The requests that it was processing at its last report.
    sessions, built, measured : int
        The number of sessions for which it is set up, and of builds and measurements since it started.
    peak_flop_per_s : float or None
        The best rate of multiply-adds when it joined.
    anatune, tvm : str or None
        The versions.
    """

    name: str
    address: str
    state: Literal["ready", "refused", "foreign"] = "ready"
    why: str = ""
    device: str = ""
    measures: int = 0
    builds: int = 0
    running: tuple[Running, ...] = ()
    sessions: int = 0
    built: int = 0
    measured: int = 0
    peak_flop_per_s: float | None = None
    anatune: str | None = None
    tvm: str | None = None


class ClusterStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The status of a cluster: the scheduler's address, and its workers sorted by name."""

    address: str
    workers: tuple[WorkerStatus, ...] = ()


def cluster_status(address: object, tls: object = None) -> ClusterStatus:
    """Ask a scheduler for the status of its workers, without running anything on them.

    Parameters and errors are those of `connect`.
    """
    identity = scheduler_identity(address, tls)
    workers = {place: (told, read_worker_description(told)) for place, told in identity["workers"].items()}
    descriptions = [description for _, description in workers.values() if description is not None]
    statuses = []
    for url, (worker_data, description) in workers.items():
        if description is None:
            why = "it is not an anatune worker of this version; start it with `anatune worker`"
            statuses.append(WorkerStatus(str(worker_data.get("name", url)), str(url), "foreign", why))
            continue
        why, standing = _refusal(description, descriptions) or "", read_standing(worker_data)
        statuses.append(
            WorkerStatus(
                description.name,
                str(url),
                "refused" if why else "ready",
                why,
                "" if description.device is None else description.words,
                int(description.device is not None),
                description.builders,
                standing.running,
                standing.sessions,
                standing.built,
                standing.measured,
                description.peak_flop_per_s,
                description.environment.anatune,
                description.environment.tvm,
            )
        )
    return ClusterStatus(str(identity["address"]), tuple(sorted(statuses, key=lambda worker: worker.name)))


def _refusal(worker: WorkerDescription, descriptions: list[WorkerDescription]) -> str | None:
    """Return why a session from here for the worker's own device would refuse it, or None."""
    device = worker.device
    hardware = device or next((other.device for other in descriptions if other.device is not None), None)
    if hardware is None:
        return None
    alike = [other for other in descriptions if other.device is not None and difference(hardware, other.device) is None]
    return refusal(worker, requirements_of(hardware, 1, alike))
