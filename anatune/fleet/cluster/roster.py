"""The workers of a session: their states, the reasons of refusals, their work, and the quality of their answers."""

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
from anatune.fleet.cluster.fleet import Kind, SeenWorker, Snapshot
from anatune.fleet.cluster.messages import WorkerDescription, code_digest
from anatune.measure.cpu.host_files import CALIBRATED
from anatune.measure.place import WorkerState
from anatune.records.environment import environment

_LOG = logging.getLogger(__name__)

State = Literal["ready", "lost", "refused", "quarantined"]

QUEUED = 1
"""The kernels that wait at each device besides the running one, so that the device never waits for the session."""
_MOST_REFUTED = 3
"""The number of answers, refuted by other workers, after which a worker gets no more work."""
_SILENT_S = 30.0
"""The seconds after which a silent worker counts as lost; workers report every 0.5 to 5 s."""
_STRANGER = "it is not an anatune worker of the same version; start it with `anatune worker`"
MOST_OFF = {"gpu": 1.1, "cpu": 2.5}
"""The largest factor between the measured and the expected peak of the same device, by kind of device. A CPU's clock
changes from one minute to the next with the load of the machine, by a factor of 1.3 on a quiet host and of 2 on a busy
one. Trials are compared by the reference kernel next to them."""


class ClusterWorker:
    """A session's data about a worker.

    Attributes
    ----------
    address : str
        The address of the process; a restarted worker has another one.
    description : WorkerDescription or None
        The worker's description.
    state, why : str
        The state and its reason, see `WorkerState`.
    trials, failed, refuted : int
        The numbers of accepted answers, of failures among them, and of failures that another worker refuted.
    building : set of int
        The numbers of its open builds.
    measuring : dict of int to None
        The numbers of its open measurements, in order.
    lease : int or None
        The number of its lease.
    seen : SeenWorker
        The last report.
    """

    def __init__(self, address: str, seen: SeenWorker) -> None:
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
        """The name in records."""
        return self.address if self.description is None else self.description.name

    @property
    def is_ready(self) -> bool:
        """True if the worker gets work."""
        return self.state == "ready"

    @property
    def builders(self) -> int:
        """The number of simultaneous builds."""
        return 0 if self.description is None else self.description.builders

    @property
    def measures(self) -> bool:
        """True if the worker has a device."""
        return self.description is not None and self.description.device is not None

    def has_capacity(self, kind: Kind) -> bool:
        """Return whether the worker can get another build, or another kernel to measure."""
        return len(self.building) < self.builders if kind == "build" else len(self.measuring) <= QUEUED

    def load(self, kind: Kind) -> float:
        """Return the open builds over the simultaneous ones, or the number of open measurements."""
        return len(self.building) / self.builders if kind == "build" else len(self.measuring)

    def report(self) -> WorkerState:
        """Return the state for output and records."""
        description = self.description
        device, where = ("", None) if description is None else (description.words, description.environment)
        return WorkerState(self.name, device, self.state, self.why, self.trials, self.failed, where, self.measures)


class Roster:
    """All workers of a cluster that a session has seen.

    Parameters
    ----------
    hardware, threads
        The device and the threads of the session.
    """

    def __init__(self, hardware: CpuSpec | GpuSpec, threads: int) -> None:
        self._hardware, self._threads = hardware, threads
        self._members: dict[str, ClusterWorker] = {}
        self._gone: dict[str, ClusterWorker] = {}
        self._wanted: WorkerRequirements | None = None
        self._alone_since: float | None = None

    def update(self, snapshot: Snapshot) -> list[ClusterWorker]:
        """Update the workers from a snapshot, and return those that were lost."""
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
                member.state, member.why = "lost", f"it did not report for {_SILENT_S:g} s"
                lost.append(member)
            elif seen.silent_s <= _SILENT_S and member.state == "lost":
                member.state, member.why = "ready", ""
        improved = [member for member in self._members.values() if self._update_peak(member)]
        new = [self._join(address, seen) for address, seen in snapshot.workers.items() if address not in self._members]
        self._judge([*improved, *(member for member in new if member.is_ready)])
        return lost

    def _update_peak(self, member: ClusterWorker) -> bool:
        """Store a worker's peak if it is higher than at joining, and return whether the worker was refused before."""
        description, peak = member.description, member.seen.standing.peak_flop_per_s
        before = None if description is None else description.peak_flop_per_s
        if description is None or before is None or peak is None or peak <= before:
            return False
        member.description = msgspec.structs.replace(description, peak_flop_per_s=peak)
        return member.state == "refused"

    def _join(self, address: str, seen: SeenWorker) -> ClusterWorker:
        member = self._members[address] = ClusterWorker(address, seen)
        if seen.description is None:
            member.state, member.why = "refused", _STRANGER
        earlier = self._gone.pop(member.name, None)
        if earlier is not None:  # the same worker was restarted
            member.trials, member.failed, member.refuted = earlier.trials, earlier.failed, earlier.refuted
            if earlier.state == "quarantined":
                member.state, member.why = earlier.state, earlier.why
        return member

    def _judge(self, members: list[ClusterWorker]) -> None:
        """Refuse workers that do not fit the session.

        The requirements follow from the first workers. Until one of them is accepted, all are judged together.
        """
        if not members:
            return
        requirements = self._wanted
        if not any(member.is_ready and member.measures for member in self._members.values() if member not in members):
            described_members = (member for member in self._members.values() if member.description is not None)
            members += [member for member in described_members if member.state == "refused" and member not in members]
            requirements = None
        if requirements is None or requirements.peak_flop_per_s is None or requirements.tvm is None:
            descriptions = [member.description for member in self._members.values() if member.description is not None]
            requirements = self._wanted = requirements_of(self._hardware, self._threads, descriptions)
        for member in members:
            why = None if member.description is None else refusal(member.description, requirements)
            member.state, member.why = ("ready", "") if why is None else ("refused", why)

    def quarantine(self, member: ClusterWorker, why: str) -> None:
        """Give a worker no more work."""
        member.state, member.why = "quarantined", why

    def note_refutation(self, member: ClusterWorker, by: str) -> bool:
        """Count an answer that another worker refuted; return whether the worker was quarantined for it."""
        member.refuted += 1
        if member.refuted < _MOST_REFUTED or not member.is_ready:
            return False
        self.quarantine(member, f"{member.refuted} of its failures did not occur elsewhere, the last one on {by}")
        return True

    def get(self, address: str) -> ClusterWorker | None:
        """Return the connected worker with this address, or None."""
        return self._members.get(address)

    def ready(self) -> list[ClusterWorker]:
        """Return the workers that get work."""
        return [member for member in self._members.values() if member.is_ready]

    def states(self) -> tuple[WorkerState, ...]:
        """Return the states of all workers, sorted by name."""
        everyone = {**self._gone, **{member.name: member for member in self._members.values()}}
        return tuple(everyone[name].report() for name in sorted(everyone))

    def check_alone(self, now: float, wait_s: float) -> None:
        """Warn if no worker can serve the session, and raise an error after some time.

        Parameters
        ----------
        now, wait_s : float
            The current time, and the seconds to wait.

        Raises
        ------
        DeviceError
            No worker came within `wait_s`.
        """
        ready = self.ready()
        if any(member.measures for member in ready) and any(member.builders for member in ready):
            self._alone_since = None
            return
        states = self.states()
        reasons = "; ".join(
            f"{worker.name} {worker.state}: {worker.why}" for worker in states if worker.state != "ready"
        )
        reasons = reasons or ("no worker has a device and builders" if states else "no worker joined")
        if self._alone_since is None:
            self._alone_since = now
            _LOG.warning("the cluster has no worker for this session (%s); waiting %g s for one", reasons, wait_s)
        elif now - self._alone_since > wait_s:
            raise DeviceError(f"the cluster has no worker for this session after {wait_s:g} s: {reasons}")


class WorkerRequirements(msgspec.Struct, frozen=True):
    """The requirements of a session on workers.

    Attributes
    ----------
    hardware : CpuSpec or GpuSpec
        The device.
    threads : int
        The threads of kernels.
    code : str
        The digest of the session's sources.
    tvm : str or None
        The version of TVM that builds; None allows any.
    peak_flop_per_s : float or None
        The expected peak, see `WorkerDescription`; None allows any.
    cpu : str or None
        The name of the processor if a CPU measures; None allows any.
    """

    hardware: CpuSpec | GpuSpec
    threads: int
    code: str
    tvm: str | None
    peak_flop_per_s: float | None
    cpu: str | None = None


def requirements_of(
    hardware: CpuSpec | GpuSpec, threads: int, joined: Iterable[WorkerDescription]
) -> WorkerRequirements:
    """Return the requirements of a session.

    The peak is that of the spec's calibration, otherwise the median of the workers. If CPUs differ only in their names,
    the spec's name is required, otherwise the most frequent one.

    Parameters
    ----------
    joined : iterable of WorkerDescription
        All connected workers; those that are refused for other reasons do not count.
    """
    joined = list(joined)
    versions = Counter(worker.environment.tvm for worker in joined if worker.environment.tvm is not None)
    requirements = WorkerRequirements(
        hardware, threads, code_digest(), environment().tvm or _most_common(versions), None
    )
    if hardware.kind == "cpu":
        cpus = Counter(worker.environment.cpu for worker in _filter(joined, requirements) if worker.device is not None)
        requirements = msgspec.structs.replace(
            requirements, cpu=hardware.model if hardware.model in cpus else _most_common(cpus)
        )
    peak = _calibrated_peak(hardware)
    if peak is None:
        peaks = [worker.peak_flop_per_s for worker in _filter(joined, requirements) if worker.peak_flop_per_s]
        peak = statistics.median(peaks) if peaks else None
    return msgspec.structs.replace(requirements, peak_flop_per_s=peak)


def _filter(joined: list[WorkerDescription], requirements: WorkerRequirements) -> list[WorkerDescription]:
    return [worker for worker in joined if refusal(worker, requirements) is None]


def _most_common(words: Counter[str]) -> str | None:
    return next((word for word, _ in words.most_common(1)), None)


def _calibrated_peak(hardware: CpuSpec | GpuSpec) -> float | None:
    """Return the peak in a calibrated spec, or None if the spec is not calibrated."""
    return hardware.multiply_add_flop_per_s if CALIBRATED in hardware.compute.source else None


def refusal(worker: WorkerDescription, requirements: WorkerRequirements) -> str | None:
    """Return the reason in one line why a session refuses a worker, or None if it accepts it."""
    theirs, session_version = worker.environment.anatune, environment().anatune
    if theirs != session_version:
        return f"it has anatune {theirs}, the session has {session_version}; install the same version"
    if worker.code != requirements.code:
        return f"it has other sources ({worker.code}, the session has {requirements.code}); install the same version"
    if worker.environment.tvm not in (None, requirements.tvm):
        return f"it has TVM {worker.environment.tvm}, expected {requirements.tvm}; install the same version"
    if worker.device is None:
        return None if worker.builders else "it has neither a device nor builders"
    differs = difference(requirements.hardware, worker.device)
    if differs is not None:
        return f"it has {differs[1]}, the session tunes for {differs[0]}"
    if worker.device.kind == "cpu" and requirements.hardware.kind == "cpu":
        if worker.environment.cpu != (requirements.cpu or worker.environment.cpu):
            return f"it has {worker.environment.cpu}, the session measures on {requirements.cpu}"
        cores = min(worker.device.compute.num_cores, worker.environment.cores)
        if cores < requirements.threads:
            return f"it has {cores} cores, but kernels of the session run with {requirements.threads} threads"
        missing = sorted(set(worker.device.hidden_features or ()) - set(requirements.hardware.hidden_features or ()))
        if missing:
            return f"it does not have {', '.join(missing)}, which the session's {requirements.hardware.name} has"
    if requirements.peak_flop_per_s is not None and worker.peak_flop_per_s is not None:
        share = worker.peak_flop_per_s / requirements.peak_flop_per_s
        most = MOST_OFF[requirements.hardware.kind]
        if not 1.0 / most <= share <= most:
            return (
                f"its multiply-adds reach {worker.peak_flop_per_s / 1e9:.1f} GFLOP/s, {share:.0%} of the expected "
                f"{requirements.peak_flop_per_s / 1e9:.1f}; restart it when its machine is idle"
            )
    return None
