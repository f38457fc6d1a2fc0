"""Who serves a session: who is accepted, who is not and why, what each is at, what its answers were worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from anatune.core.hardware.spec import CpuSpec, GpuSpec
from anatune.measure.cluster.description import Wanted, WorkerDescription, refusal, wanted_of
from anatune.measure.cluster.fleet import Seen, Snapshot
from anatune.measure.place import WorkerState

__all__ = ["Member", "Roster"]

State = Literal["ready", "lost", "refused", "quarantined"]

_MOST_REFUTED = 3
"""Answers that another worker refuted, after which a worker is asked for nothing more."""
_SILENT_S = 30.0
"""A worker that gives no sign of life for so long is taken for lost; signs come every 0.5 to 5 s."""
_STRANGER = "no anatune worker: start it with `anatune worker`, of the same version"


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

    def report(self) -> WorkerState:
        """Return its state for people and records."""
        one = self.description
        return WorkerState(
            self.name,
            "" if one is None else one.words,
            self.state,
            self.why,
            self.trials,
            self.failed,
            None if one is None else one.environment,
            self.measures,
        )


class Roster:
    """All workers of a cluster that a session has seen.

    Parameters
    ----------
    hardware, threads
        Of the session.
    clock : callable
        Seconds.
    """

    def __init__(self, hardware: CpuSpec | GpuSpec, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._hardware, self._threads, self._clock = hardware, threads, clock
        self._members: dict[str, Member] = {}
        self._gone: dict[str, Member] = {}
        self._wanted: Wanted | None = None

    def update(self, snapshot: Snapshot) -> tuple[list[Member], list[Member]]:
        """Take note of who is there; return who was accepted now, and who was asked and is lost."""
        lost = []
        for address, member in [*self._members.items()]:
            seen = snapshot.workers.get(address)
            if seen is not None:
                member.seen = seen
            if seen is None:
                self._leave(member, "it left the cluster")
                lost.append(member)
            elif seen.silent_s > _SILENT_S and member.is_ready:
                member.state, member.why = "lost", f"no sign of life for {_SILENT_S:g} s"
                lost.append(member)
            elif seen.silent_s <= _SILENT_S and member.state == "lost":
                member.state, member.why = "ready", ""
        again = [member for member in self._members.values() if self._reached_more(member)]
        new = [self._join(address, seen) for address, seen in snapshot.workers.items() if address not in self._members]
        judged = self._judge([*again, *(member for member in new if member.is_ready)])
        return [member for member in judged if member.is_ready], lost

    def _reached_more(self, member: Member) -> bool:
        """Note that a worker's device has reached more since than when it joined; return whether it was refused."""
        one, peak = member.description, member.seen.standing.peak_flop_per_s
        if one is None or peak is None or one.peak_flop_per_s is None or peak <= one.peak_flop_per_s:
            return False
        member.description = msgspec.structs.replace(one, peak_flop_per_s=peak)
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

    def _leave(self, member: Member, why: str) -> None:
        del self._members[member.address]
        if member.state == "ready":
            member.state, member.why = "lost", why
        self._gone[member.name] = member

    def _judge(self, members: list[Member]) -> list[Member]:
        """Refuse those that are not what the session needs; return who was judged.

        The first that join say what is usual; until one of them is accepted, all are judged together.
        """
        if not members:
            return []
        wanted = self._wanted
        if not any(member.is_ready and member.measures for member in self._members.values() if member not in members):
            refused = (one for one in self._members.values() if one.state == "refused" and one.description is not None)
            members = [*members, *(one for one in refused if one not in members)]
            wanted = None
        if wanted is None or wanted.peak_flop_per_s is None or wanted.tvm is None:
            told = [member.description for member in self._members.values() if member.description is not None]
            wanted = self._wanted = wanted_of(self._hardware, self._threads, told)
        for member in members:
            why = None if member.description is None else refusal(member.description, wanted)
            member.state, member.why = ("ready", "") if why is None else ("refused", why)
        return members

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

    def ready(self) -> Iterator[Member]:
        """Yield those that are asked."""
        return (member for member in self._members.values() if member.is_ready)

    def states(self) -> tuple[WorkerState, ...]:
        """Return all that were seen, by name."""
        everyone = {**self._gone, **{member.name: member for member in self._members.values()}}
        return tuple(everyone[name].report() for name in sorted(everyone))

    def complaint(self) -> str:
        """Return in one line why nobody serves."""
        states = self.states()
        told = "; ".join(f"{one.name} {one.state}: {one.why}" for one in states if one.state != "ready")
        return told or ("no worker joined" if not states else "no worker has what is needed")
