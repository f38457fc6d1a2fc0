"""Parts of a pretended fleet, each a process of its own: a Dask scheduler, and workers whose devices only sleep.

    python -m bench.fleet_parts scheduler
    python -m bench.fleet_parts workers ADDRESS SETTING.json

`bench.simulate_fleet` starts them. A line on standard output says that they are there, SIGTERM ends them; then the last
line is the processor time that they used, s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import resource
import signal
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.errors import AnatuneError
from anatune.measure.cluster.description import WorkerDescription, code_digest
from anatune.measure.cluster.messages import (
    BuildRequest,
    Built,
    CompareRequest,
    MeasureRequest,
    SessionSetting,
    Standing,
)
from anatune.measure.cluster.packing import Packed
from anatune.measure.cluster.scheduler import run_scheduler
from anatune.measure.cluster.worker import join
from anatune.records.environment import environment

__all__ = ["PretendedStation", "Setting"]

REFERENCE_S = 1e-3


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

    def build(self, request: BuildRequest) -> Built:
        """Sleep; return bytes."""
        time.sleep(self._setting.build_s)
        digest = hashlib.sha256(self._image).hexdigest()
        return Built(Packed("cpu", b"{}", digest, self._image), build_s=self._setting.build_s)

    def open(self, setting: SessionSetting, reference: Packed) -> None:
        """Take any session."""

    def measure(self, request: MeasureRequest, built: Built) -> Measurement:
        """Sleep; return a time that depends on the schedule."""
        draw = zlib.crc32(request.schedule.key.encode())
        run_s = self._setting.run_s[draw % len(self._setting.run_s)]
        time.sleep(run_s)
        times = (REFERENCE_S * (1.0 + draw / 2**32),) * 5
        return Measurement(
            Outcome.OK, times_s=times, reference_times_s=(REFERENCE_S,) * 5, build_s=self._setting.build_s, run_s=run_s
        )

    def compare(self, request: CompareRequest, built: Sequence[Built]) -> list[Measurement]:
        """Return the times as they were."""
        return [
            self.measure(MeasureRequest(request.session, request.number, one), part)
            for one, part in zip(request.schedules, built, strict=True)
        ]

    def forget(self, session: str) -> None:
        """Hold nothing."""

    def standing(self) -> Standing:
        """Be at nothing."""
        return Standing()

    def close(self) -> None:
        """End nothing."""


async def serve(address: str, setting: Setting) -> None:
    """Join with all workers, and serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    workers = [await join(address, None, PretendedStation(name, setting)) for name in setting.names]
    print(len(workers), flush=True)
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
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(used.ru_utime + used.ru_stime, flush=True)
    os._exit(0)  # threads of tasks may sleep still


if __name__ == "__main__":
    sys.exit(main())
