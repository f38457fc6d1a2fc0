"""A station for real workers: its device is a table, and what it does wrong a file says, also while it runs.

The folder named by FLEET_FOLDER has for a worker NAME: ``NAME.json``, what it is and does wrong; ``NAME.log``, a line
for each thing that it began or ended. What it builds are artifacts as real ones are, packed and checked as those.
"""

import errno
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import msgspec

from anatune.codegen.cpu.artifact import CpuArtifact
from anatune.core.hardware.files import hardware
from anatune.core.trial import Measurement, Outcome
from anatune.errors import RunError
from anatune.fleet.cluster import tasks
from anatune.fleet.cluster.builder import trouble_of
from anatune.fleet.cluster.messages import BuildResult, Packed, Running, WorkerAnswer, WorkerStanding, unpack
from tests.unit.fleet.cluster.pretended import HARDWARE, REFERENCE_S, describe

FOLDER = "FLEET_FOLDER"


def time_of(schedule_key):
    """Seconds that a pretended kernel takes: from its schedule, whoever measures it."""
    return REFERENCE_S * (1 + int(schedule_key[:4], 16) / 0xFFFF)


def packed(key, content=b"a library"):
    digest = hashlib.sha256(content).hexdigest()
    return Packed("cpu", msgspec.json.encode(CpuArtifact(key, digest, ())), digest, content)


class PretendedStation:
    """A `Station`; its settings are "run_s", "build_s", "fault", a saved "device", and what else descriptions have."""

    def __init__(self, name, builders):
        self._place = Path(os.environ[FOLDER])
        self._name = name
        told = self._settings()
        device = hardware(told["device"]) if "device" in told else HARDWARE
        more = {"peak": told["peak"]} if "peak" in told else {}
        self.description = describe(name, told.get("builders", builders or 1), device, **more)
        for field in ("anatune", "tvm"):
            if field in told:
                environment = msgspec.structs.replace(self.description.environment, **{field: told[field]})
                self.description = msgspec.structs.replace(self.description, environment=environment)
        if "code" in told:
            self.description = msgspec.structs.replace(self.description, code=told["code"])
        self._folder = Path(tempfile.mkdtemp(prefix="pretended-"))
        self._device = threading.Lock()
        self._numbers = itertools.count()
        self._running, self._sessions, self._built, self._measured = {}, set(), 0, 0
        self._end = threading.Event()
        _falsify_answers(self)

    def _settings(self):
        try:
            return json.loads((self._place / f"{self._name}.json").read_text())
        except FileNotFoundError:
            return {}

    @property
    def fault(self):
        return self._settings().get("fault", "")

    def _log(self, *words):
        with (self._place / f"{self._name}.log").open("a") as log:
            log.write(" ".join(map(str, words)) + "\n")

    def build(self, request):
        mine = self._begin(request, "build")
        try:
            self._end.wait(self._settings().get("build_s", 0.0))
            self._built += 1
            key = "" if request.schedule is None else request.schedule.key
            made = packed(key)
            if key and self.fault == "another key":
                made = packed("0" * 16)
            elif key and self.fault == "wrong digest":
                made = msgspec.structs.replace(made, content=b"another library")
            elif key and self.fault == "builds nothing":
                return BuildResult(failure=Measurement(Outcome.BUILD_ERROR, "LLVM says no"))
            return BuildResult(made, build_s=0.001)
        finally:
            self._running.pop(mine)

    def _begin(self, request, stage):
        mine = next(self._numbers)
        self._running[mine] = request.session, request.number, stage, time.monotonic()
        return mine

    def open(self, setting, reference):
        self._unpacked(reference, "")
        self._sessions.add(setting.session)
        self._log("open", setting.session)

    def _unpacked(self, one, key):
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            if self.fault == "full disk":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            unpack(one, folder, key)
        except OSError as error:
            raise RunError(trouble_of(error)) from None
        finally:
            shutil.rmtree(folder)

    def measure(self, request, built):
        for schedule, kernel in zip(request.schedules, built, strict=True):
            self._unpacked(kernel.packed, schedule.key)
        if request.budget_s is not None:
            self._log("compare")
            return [self._measurement(schedule.key) for schedule in request.schedules]
        key = request.schedules[0].key
        with self._device:
            mine = self._begin(request, "run")
            self._log("begin", key)
            try:
                told = self._settings()
                while told.get("fault") == "mute" and told == self._settings() and not self._end.wait(0.02):
                    pass  # until the test says something else, or the same once more
                self._end.wait(self._settings().get("run_s", 0.0))
                self._measured += 1
                self._log("end", key)
                return [self._measurement(key)]
            finally:
                self._running.pop(mine)

    def _measurement(self, key):
        if self.fault == "wrong":
            return Measurement(Outcome.WRONG_RESULT, "the result is wrong", build_s=0.001, run_s=0.001)
        seconds = float("nan") if self.fault == "nan" else time_of(key)
        return Measurement(Outcome.OK, "", (seconds,) * 3, (REFERENCE_S,) * 3, 0.0, 0.001, 0.001)

    def forget(self, session):
        self._sessions.discard(session)
        self._log("forget", session)

    def standing(self):
        now = time.monotonic()
        running = tuple(Running(*one[:3], now - one[3]) for one in [*self._running.values()])
        return WorkerStanding(running, len(self._sessions), self._built, self._measured)

    def close(self):
        self._end.set()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log("close")


def _falsify_answers(station):
    """Have answers travel as the station's fault says."""
    encode = tasks.encode

    def falsified(message):
        if isinstance(message, WorkerAnswer) and message.number:
            if station.fault == "rubbish":
                return b"\x93rubbish"
            if station.fault == "no bytes":
                return {"measurements": [1.0]}
            if station.fault == "another number":
                message = msgspec.structs.replace(message, number=message.number + 1)
            if station.fault == "too many":
                message = msgspec.structs.replace(message, measurements=message.measurements * 2)
        return encode(message)

    tasks.encode = falsified
    from distributed.batched import BatchedSend

    send = BatchedSend.send

    def send_twice(self, *messages):
        twice = station.fault == "twice"
        send(self, *(one for one in messages for _ in range(1 + (twice and one.get("op") == "task-finished"))))

    BatchedSend.send = send_twice


def make(name, builders):
    """What ``anatune worker --device tests.e2e.fleet.pretended:make`` finds."""
    return PretendedStation(name, builders)
