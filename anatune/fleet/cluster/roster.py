"""Who serves a session: who is accepted, who is not and why, what each is at, what its answers were worth."""

from __future__ import annotations

import logging
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from anatune.core.hardware.changed import difference
from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.errors import DeviceError
from anatune.fleet.cluster.fleet import Kind, Seen, Snapshot
from anatune.fleet.cluster.messages import WorkerDescription, code_digest
from anatune.measure.cpu.host_files import CALIBRATED
from anatune.measure.place import WorkerState
from anatune.records.environment import environment

_LOG = logging.getLogger(__name__)

State = Literal["ready", "lost", "refused", "quarantined"]

QUEUED = 1
"""Kernels that wait at each device beside the one that runs: it never waits for the session."""
_MOST_REFUTED = 3
"""Answers that another worker refuted, after which a worker is asked for nothing more."""
_SILENT_S = 30.0
"""A worker that gives no sign of life for so long is taken for lost; signs come every 0.5 to 5 s."""
_STRANGER = "no anatune worker: start it with `anatune worker`, of the same version"
MOST_OFF = {"gpu": 1.1, "cpu": 2.5}
"""Kind of device -> times as slow or fast as expected that its arithmetic may be to be taken for the same. Of a CPU
much of that is the machine's own: its clock goes from one minute to the next with what its neighbours do, by a factor
of 1.3 on a quiet host and of 2 on a busy one, and trials are compared by the reference kernel beside them."""


class Member:
    """A worker as a session knows it.

    Attributes
    ----------
    address : str
        Of the process; one that starts again has another.
    description : WorkerDescription or None
    state, why : str
        As `WorkerState` has them.
    trials, failed, refuted : int
        Answers that counted; those without a time; those that another worker refuted.
    building : set of int
        Builds that it has.
    measuring : dict of int to None
        What it has to measure, in order.
    lease : int or None
        The lease that it has.
    seen : Seen
        Last sign of life.
    """

    def __init__(self, address: str, seen: Seen) -> None:
        self.address, self.seen = address, seen
        self.description: WorkerDescription | None = seen.description
        self.state: State = "ready"
        self.why = ""
        self.trials = self.failed = self.refuted = 0
        self.building: set[int] = set()
        self.measuring: dict[int, None] = {}
        self.lease: int | None = None

    @property
    def name(self) -> str:
        """As records have it."""
        return self.address if self.description is None else self.description.name

    @property
    def is_ready(self) -> bool:
        """Whether it is asked."""
        return self.state == "ready"

    @property
    def builders(self) -> int:
        """How many builds it takes at once."""
        return 0 if self.description is None else self.description.builders

    @property
    def measures(self) -> bool:
        """Whether it has a device."""
        return self.description is not None and self.description.device is not None

    def has_room(self, kind: Kind) -> bool:
        """Whether it can be given another build, or another kernel to measure."""
        return len(self.building) < self.builders if kind == "build" else len(self.measuring) <= QUEUED

    def load(self, kind: Kind) -> float:
        """Return how much it has of what it can have."""
        return len(self.building) / self.builders if kind == "build" else len(self.measuring)

    def report(self) -> WorkerState:
        """Return its state for people and records."""
        told = self.description
        device, there = ("", None) if told is None else (told.words, told.environment)
        return WorkerState(self.name, device, self.state, self.why, self.trials, self.failed, there, self.measures)


class Roster:
    """All workers of a cluster that a session has seen.

    Parameters
    ----------
    hardware, threads
        Of the session.
    """

    def __init__(self, hardware: CpuSpec | GpuSpec, threads: int) -> None:
        self._hardware, self._threads = hardware, threads
        self._members: dict[str, Member] = {}
        self._gone: dict[str, Member] = {}
        self._wanted: Wanted | None = None
        self._alone_since: float | None = None

    def update(self, snapshot: Snapshot) -> list[Member]:
        """Take note of who is there; return who was asked and is lost."""
        lost = []
        for address, member in [*self._members.items()]:
            seen = snapshot.workers.get(address)
            if seen is not None:
                member.seen = seen
            if seen is None:
                del self._members[address]
                self._gone[member.name] = member
                if member.is_ready:
                    member.state, member.why = "lost", "it left the cluster"
                lost.append(member)
            elif seen.silent_s > _SILENT_S and member.is_ready:
                member.state, member.why = "lost", f"no sign of life for {_SILENT_S:g} s"
                lost.append(member)
            elif seen.silent_s <= _SILENT_S and member.state == "lost":
                member.state, member.why = "ready", ""
        again = [member for member in self._members.values() if self._reached_more(member)]
        new = [self._join(address, seen) for address, seen in snapshot.workers.items() if address not in self._members]
        self._judge([*again, *(member for member in new if member.is_ready)])
        return lost

    def _reached_more(self, member: Member) -> bool:
        """Note that a worker's device has reached more since than when it joined; return whether it was refused."""
        told, peak = member.description, member.seen.standing.peak_flop_per_s
        if told is None or peak is None or told.peak_flop_per_s is None or peak <= told.peak_flop_per_s:
            return False
        member.description = msgspec.structs.replace(told, peak_flop_per_s=peak)
        return member.state == "refused"

    def _join(self, address: str, seen: Seen) -> Member:
        member = self._members[address] = Member(address, seen)
        if seen.description is None:
            member.state, member.why = "refused", _STRANGER
        before = self._gone.pop(member.name, None)
        if before is not None:  # the same machine, started again
            member.trials, member.failed, member.refuted = before.trials, before.failed, before.refuted
            if before.state == "quarantined":
                member.state, member.why = before.state, before.why
        return member

    def _judge(self, members: list[Member]) -> None:
        """Refuse those that are not what the session needs.

        The first that join say what is usual; until one of them is accepted, all are judged together.
        """
        if not members:
            return
        wanted = self._wanted
        if not any(member.is_ready and member.measures for member in self._members.values() if member not in members):
            judged = (member for member in self._members.values() if member.description is not None)
            members += [member for member in judged if member.state == "refused" and member not in members]
            wanted = None
        if wanted is None or wanted.peak_flop_per_s is None or wanted.tvm is None:
            told = [member.description for member in self._members.values() if member.description is not None]
            wanted = self._wanted = wanted_of(self._hardware, self._threads, told)
        for member in members:
            why = None if member.description is None else refusal(member.description, wanted)
            member.state, member.why = ("ready", "") if why is None else ("refused", why)

    def quarantine(self, member: Member, why: str) -> None:
        """Ask a worker for nothing more."""
        member.state, member.why = "quarantined", why

    def refuted(self, member: Member, by: str) -> bool:
        """Note that another worker refuted an answer; return whether that was once too often."""
        member.refuted += 1
        if member.refuted < _MOST_REFUTED or not member.is_ready:
            return False
        self.quarantine(member, f"{member.refuted} of its failures were none elsewhere, the last one on {by}")
        return True

    def get(self, address: str) -> Member | None:
        """Return a worker that is there."""
        return self._members.get(address)

    def ready(self) -> list[Member]:
        """Return those that are asked."""
        return [member for member in self._members.values() if member.is_ready]

    def states(self) -> tuple[WorkerState, ...]:
        """Return all that were seen, by name."""
        everyone = {**self._gone, **{member.name: member for member in self._members.values()}}
        return tuple(everyone[name].report() for name in sorted(everyone))

    def check_alone(self, now: float, wait_s: float) -> None:
        """Say so where nobody serves, and give up after some time.

        Parameters
        ----------
        now, wait_s : float
            The present second; how long one waits.

        Raises
        ------
        DeviceError
            Nobody came.
        """
        ready = self.ready()
        if any(member.measures for member in ready) and any(member.builders for member in ready):
            self._alone_since = None
            return
        states = self.states()
        told = "; ".join(f"{worker.name} {worker.state}: {worker.why}" for worker in states if worker.state != "ready")
        told = told or ("no worker has what is needed" if states else "no worker joined")
        if self._alone_since is None:
            self._alone_since = now
            _LOG.warning("the cluster has no worker for this session (%s); waiting %g s for one", told, wait_s)
        elif now - self._alone_since > wait_s:
            raise DeviceError(f"the cluster has no worker for this session, and none came in {wait_s:g} s: {told}")


class Wanted(msgspec.Struct, frozen=True):
    """What a session asks of workers.

    Attributes
    ----------
    hardware : CpuSpec or GpuSpec
        Its device.
    threads : int
        That kernels run with.
    code : str
        Digest of its own source.
    tvm : str or None
        Version that builds; None: any.
    peak_flop_per_s : float or None
        As `WorkerDescription`; None: any.
    cpu : str or None
        Name of the processor that measures, where one does; None: any.
    """

    hardware: CpuSpec | GpuSpec
    threads: int
    code: str
    tvm: str | None
    peak_flop_per_s: float | None
    cpu: str | None = None


def wanted_of(hardware: CpuSpec | GpuSpec, threads: int, joined: Iterable[WorkerDescription]) -> Wanted:
    """Return what a session asks, the peak measured by its spec's calibration, else the median of who has joined.

    Of CPUs that only their names tell apart, those of the spec's name count, else those that most have.

    Parameters
    ----------
    joined : iterable of WorkerDescription
        All that are there; those that are refused for other reasons do not count.
    """
    joined = list(joined)
    versions = Counter(worker.environment.tvm for worker in joined if worker.environment.tvm is not None)
    wanted = Wanted(hardware, threads, code_digest(), environment().tvm or _most(versions), None)
    if hardware.kind == "cpu":
        cpus = Counter(worker.environment.cpu for worker in _fitting(joined, wanted) if worker.device is not None)
        wanted = msgspec.structs.replace(wanted, cpu=hardware.model if hardware.model in cpus else _most(cpus))
    peak = _calibrated_peak(hardware)
    if peak is None:
        peaks = [worker.peak_flop_per_s for worker in _fitting(joined, wanted) if worker.peak_flop_per_s]
        peak = statistics.median(peaks) if peaks else None
    return msgspec.structs.replace(wanted, peak_flop_per_s=peak)


def _fitting(joined: list[WorkerDescription], wanted: Wanted) -> list[WorkerDescription]:
    return [worker for worker in joined if refusal(worker, wanted) is None]


def _most(words: Counter[str]) -> str | None:
    return next((word for word, _ in words.most_common(1)), None)


def _calibrated_peak(hardware: CpuSpec | GpuSpec) -> float | None:
    """Return the measured peak in a spec, as workers measure theirs; None where nobody measured."""
    return hardware.multiply_add_flop_per_s if CALIBRATED in hardware.compute.source else None


def refusal(worker: WorkerDescription, wanted: Wanted) -> str | None:
    """Return in one line why a session does without a worker; None if it takes it."""
    theirs, own = worker.environment.anatune, environment().anatune
    if theirs != own:
        return f"anatune {theirs}, the session runs {own}; install the same version"
    if worker.code != wanted.code:
        return f"other source of anatune ({worker.code}, the session's is {wanted.code}); install the same on both"
    if worker.environment.tvm not in (None, wanted.tvm):
        return f"TVM {worker.environment.tvm}, expected {wanted.tvm}; install the same version"
    if worker.device is None:
        return None if worker.builders else "has neither a device nor builders"
    differs = difference(wanted.hardware, worker.device)
    if differs is not None:
        return f"{differs[1]}, the session tunes for {differs[0]}"
    if worker.device.kind == "cpu" and wanted.hardware.kind == "cpu":
        if worker.environment.cpu != (wanted.cpu or worker.environment.cpu):
            return f"{worker.environment.cpu}, the session measures on {wanted.cpu}"
        cores = min(worker.device.compute.num_cores, worker.environment.cores)
        if cores < wanted.threads:
            return f"{cores} cores, kernels of the session run with {wanted.threads} threads"
        missing = sorted(set(worker.device.hidden_features or ()) - set(wanted.hardware.hidden_features or ()))
        if missing:
            return f"does not offer {', '.join(missing)}, which the session's {wanted.hardware.name} has"
    if wanted.peak_flop_per_s is not None and worker.peak_flop_per_s is not None:
        share = worker.peak_flop_per_s / wanted.peak_flop_per_s
        most = MOST_OFF[wanted.hardware.kind]
        if not 1.0 / most <= share <= most:
            return (
                f"multiply-adds reach {worker.peak_flop_per_s / 1e9:.1f} GFLOP/s, {share:.0%} of the expected "
                f"{wanted.peak_flop_per_s / 1e9:.1f}; start it again when the machine is quiet"
            )
    return None
