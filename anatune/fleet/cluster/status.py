"""Who is in a cluster, what each worker is and does, and what a session that began here would say of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from anatune.core.hardware.changed import difference
from anatune.fleet.cluster.dask_fleet import description_in, standing_in
from anatune.fleet.cluster.messages import Running, WorkerDescription
from anatune.fleet.cluster.roster import refusal, wanted_of
from anatune.fleet.cluster.security import scheduler_identity


class WorkerStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker. Immutable; JSON both ways.

    Attributes
    ----------
    name, address : str
        As records have it; of its process.
    state : str
        "ready"; "refused": a session from here would do without it; "foreign": no anatune worker.
    why : str
        In one line; empty for "ready".
    device : str
        What it measures on, in words; empty: it only builds.
    measures, builds : int
        Its slots.
    running : tuple of Running
        What it was at when it last gave a sign of life.
    sessions, built, measured : int
        Sessions that it is set up for; schedules that it built and measured since it started.
    peak_flop_per_s : float or None
        What multiply-adds reached when it joined.
    anatune, tvm : str or None
        Versions.
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
    """A cluster: the scheduler's address, its workers by name. Immutable; JSON both ways."""

    address: str
    workers: tuple[WorkerStatus, ...] = ()


def cluster_status(address: object, tls: object = None) -> ClusterStatus:
    """Ask a scheduler who is there; nothing is run on any worker.

    Parameters and errors as `connect`.
    """
    said = scheduler_identity(address, tls)
    there = {place: (told, description_in(told)) for place, told in said["workers"].items()}
    known = [description for _, description in there.values() if description is not None]
    found = []
    for place, (told, description) in there.items():
        if description is None:
            why = "no anatune worker of this version: start it with `anatune worker`"
            found.append(WorkerStatus(str(told.get("name", place)), str(place), "foreign", why))
            continue
        why, standing = _refusal(description, known) or "", standing_in(told)
        found.append(
            WorkerStatus(
                description.name,
                str(place),
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
    return ClusterStatus(str(said["address"]), tuple(sorted(found, key=lambda worker: worker.name)))


def _refusal(worker: WorkerDescription, known: list[WorkerDescription]) -> str | None:
    """Return why a session from here that tunes for a worker's own kind of device would do without it."""
    device = worker.device
    hardware = device or next((other.device for other in known if other.device is not None), None)
    if hardware is None:
        return None
    alike = [other for other in known if other.device is not None and difference(hardware, other.device) is None]
    return refusal(worker, wanted_of(hardware, 1, alike))
