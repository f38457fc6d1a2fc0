"""Parts of a pretended fleet, each a process of its own: a Dask scheduler, and workers whose devices only sleep.

    python -m bench.fleet_parts scheduler
    python -m bench.fleet_parts workers ADDRESS SETTING.json

`bench.simulate_fleet` starts them. A line on standard output says that they are there, SIGTERM ends them; then the last
line is the processor time that they used since, s. `PretendedFleet` is all of it in one process, without Dask.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import heapq
import itertools
import os
import queue
import resource
import signal
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

import anatune
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.errors import AnatuneError
from anatune.fleet.cluster.fleet import Event, Kind, SeenWorker, Snapshot, TaskEnd
from anatune.fleet.cluster.messages import (
    BuildRequest,
    BuildResult,
    MeasureRequest,
    Packed,
    SessionSetting,
    WorkerAnswer,
    WorkerDescription,
    WorkerStanding,
    code_digest,
    decode,
    encode,
)
from anatune.fleet.cluster.scheduler import run_scheduler
from anatune.fleet.cluster.worker import join
from anatune.records.environment import environment

__all__ = ["PretendedFleet", "PretendedStation", "Setting"]

REFERENCE_S = 1e-3
_joined_s = 0.0
"""Processor time until everything was there."""


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What pretended workers are like.

    Attributes
    ----------
    names : list of str
        One a worker.
    hw : str
        The device that all say they are.
    run_s : list of float
        How long trials take, s: one of them for each schedule.
    build_s : float
        How long a build takes.
    image_bytes : int
        Size of what was built.
    """

    names: list[str]
    hw: str
    run_s: list[float]
    build_s: float
    image_bytes: int


class PretendedStation:
    """A worker that sleeps as long as others measured, and makes up the times; a `measure.cluster.station.Station`."""

    def __init__(self, name: str, setting: Setting) -> None:
        self._setting = setting
        self._image = os.urandom(setting.image_bytes)
        self.description = WorkerDescription(
            name, code_digest(), environment(), 1, anatune.hardware(setting.hw), peak_flop_per_s=1e11
        )

    def build(self, request: BuildRequest) -> BuildResult:
        """Sleep; return bytes."""
        time.sleep(self._setting.build_s)
        digest = hashlib.sha256(self._image).hexdigest()
        return BuildResult(Packed("cpu", b"{}", digest, self._image), build_s=self._setting.build_s)

    def open(self, setting: SessionSetting, reference: Packed) -> None:
        """Take any session."""

    def measure(self, request: MeasureRequest, built: Sequence[BuildResult]) -> list[Measurement]:
        """Sleep; return times that depend on the schedules."""
        measurements = []
        for schedule in request.schedules:
            took, measurement = pretended(schedule, self._setting.run_s, self._setting.build_s)
            time.sleep(took)
            measurements.append(measurement)
        return measurements

    def forget(self, session: str) -> None:
        """Hold nothing."""

    def standing(self) -> WorkerStanding:
        """Be at nothing."""
        return WorkerStanding()

    def close(self) -> None:
        """End nothing."""


class PretendedFleet:
    """A `measure.cluster.fleet.Fleet` whose devices are times to wait for, each with one trial after the other."""

    def __init__(self, session: str, setting: Setting) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._session, self._run_s, self._build_s = session, setting.run_s, setting.build_s
        self._seen = {name: SeenWorker(PretendedStation(name, setting).description) for name in setting.names}
        self._free = dict.fromkeys(setting.names, 0.0)
        self._due: list[tuple[float, int, Event]] = []
        self._numbers = itertools.count()
        self._find_change = threading.Condition()
        self._closed = False
        threading.Thread(target=self._tell, daemon=True).start()

    def look(self) -> Snapshot:
        """Return all devices."""
        return Snapshot(self._seen)

    def watch(self) -> None:
        """Put a snapshot into `events` every second."""
        self._after(1.0, self.look())

    def submit(self, kind: Kind, worker: str, number: int, request: bytes, *needs: int) -> None:
        """Take the time of a build; answer a measurement when the device has done what was before it, others at once.

        What takes turns is answered at once, too.
        """
        if kind == "build":
            self._after(self._build_s, TaskEnd(number))
        elif kind == "lease":
            self._after(0.0, TaskEnd(number, encode(WorkerAnswer(self._session, 0))))
        else:
            asked = decode(request, MeasureRequest)
            trials = [pretended(schedule, self._run_s, self._build_s) for schedule in asked.schedules]
            answer = encode(WorkerAnswer(self._session, number, tuple(measurement for _, measurement in trials)))
            now = time.monotonic()
            if asked.budget_s is None:
                self._free[worker] = max(now, self._free[worker]) + trials[0][0]
            self._after(self._free[worker] - now if asked.budget_s is None else 0.0, TaskEnd(number, answer))

    def drop(self, number: int) -> None:
        """Hold nothing; an answer that comes is not waited for."""

    def close(self) -> None:
        """End the thread that tells."""
        with self._find_change:
            self._closed = True
            self._find_change.notify()

    def _after(self, seconds: float, event: Event) -> None:
        with self._find_change:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), event))
            self._find_change.notify()

    def _tell(self) -> None:
        with self._find_change:
            while not self._closed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0.0:
                    self._find_change.wait(left)
                    continue
                event = heapq.heappop(self._due)[2]
                self.events.put(event)
                if isinstance(event, Snapshot):
                    heapq.heappush(self._due, (time.monotonic() + 1.0, next(self._numbers), event))


def pretended(schedule: Schedule, run_s: Sequence[float], build_s: float) -> tuple[float, Measurement]:
    """Return how long a trial takes, and a measurement; both depend on nothing but the schedule."""
    draw = zlib.crc32(schedule.key.encode())
    took = run_s[draw % len(run_s)]
    times = (REFERENCE_S * (1.0 + draw / 2**32),) * 5
    references = (REFERENCE_S,) * 5
    return took, Measurement(Outcome.OK, times_s=times, reference_times_s=references, build_s=build_s, run_s=took)


def used_s() -> float:
    """Return the processor time of this process, s."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def serve(address: str, setting: Setting) -> None:
    """Join with all workers, and serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    workers = [await join(address, None, PretendedStation(name, setting)) for name in setting.names]
    print(len(workers), flush=True)
    global _joined_s
    _joined_s = used_s()
    await stop.wait()
    for worker in workers:
        with contextlib.suppress(OSError, TimeoutError):
            await worker.close(timeout=1, executor_wait=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("scheduler")
    workers = parts.add_parser("workers")
    workers.add_argument("address")
    workers.add_argument("setting", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.part == "scheduler":
            run_scheduler(port=0, ready=lambda address: print(address, flush=True), tell=lambda _: None)
        else:
            setting = msgspec.json.decode(options.setting.read_bytes(), type=Setting)
            asyncio.run(serve(options.address, setting))
    except AnatuneError as error:
        raise SystemExit(f"bench.fleet_parts: {error}") from None
    print(used_s() - _joined_s, flush=True)
    os._exit(0)  # threads of tasks may sleep still


if __name__ == "__main__":
    sys.exit(main())
