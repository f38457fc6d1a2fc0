"""A worker's station that only pretends: what it builds is a word, what it measures follows from the schedule.

``options["fault"]`` of a schedule, or the worker's own fault, says what goes wrong.
"""

import hashlib
import threading
import time

import msgspec

from anatune.core.hardware.files import hardware
from anatune.core.schedule import Schedule
from anatune.core.trial import Measurement, Outcome
from anatune.core.workload.operators import matmul
from anatune.errors import RunError
from anatune.fleet.cluster.messages import BuildResult, Packed, Running, WorkerDescription, WorkerStanding, code_digest
from anatune.records.environment import environment

HARDWARE = hardware("xeon_8124m")
WORKLOAD = matmul(16, 32, 24)
REFERENCE_S = 1e-3


def schedule(number=0, fault="", workload=WORKLOAD):
    """A schedule in form only; its time follows from `number`."""
    tiles = {axis: (extent,) for axis, extent in workload.extents.items()}
    return Schedule(workload, HARDWARE, "cpu", tiles, unroll=number, options={"fault": fault})


def time_of(number):
    """Seconds that a pretended kernel takes."""
    return REFERENCE_S * (1 + number % 7)


def describe(name, builders=2, device=HARDWARE, peak=1e11, **more):
    return WorkerDescription(name, code_digest(), environment(), builders, device, peak, **more)


class PretendedStation:
    """A `Station` whose device is a table.

    Parameters
    ----------
    fault : str
        "wrong": every result is; "mute": answers nothing; "trouble": cannot measure.
    run_s : float
        How long a run takes.
    """

    def __init__(self, name="pretended", builders=2, fault="", run_s=0.0, **more):
        self.description = describe(name, builders, **more)
        self.fault, self.run_s = fault, run_s
        self.opened, self.forgotten, self.measured = [], [], []
        self._running = {}
        self._end = threading.Event()

    def build(self, request):
        fault = "" if request.schedule is None else request.schedule.options.get("fault", "")
        if fault == "no program":
            return BuildResult(failure=Measurement(Outcome.INVALID, "no such tile"))
        if fault == "build fails" or self.fault == "builds nothing":
            return BuildResult(failure=Measurement(Outcome.BUILD_ERROR, "LLVM says no"))
        if self.fault == "cannot build":
            return BuildResult(trouble="TVM is not installed")
        text = ("reference" if request.schedule is None else request.schedule.key).encode()
        return BuildResult(Packed("cpu", b"{}", hashlib.sha256(text).hexdigest(), text), build_s=0.01)

    def open(self, setting, reference):
        if self.fault == "no lease":
            raise RunError("the runner process cannot be set up: no device")
        assert reference.content == b"reference"
        self.opened.append(setting.session)

    def measure(self, request, built):
        if request.budget_s is not None:
            return [self._measurement(one) for one in request.schedules]
        ((schedule,), (kernel,)) = request.schedules, built
        assert kernel.packed.content == schedule.key.encode()
        self._running[request.number] = request, time.monotonic()
        try:
            if self.fault == "mute":
                self._end.wait()
            if self.fault == "trouble":
                raise RunError("the GPU has fallen off the bus")
            time.sleep(self.run_s)
            self.measured.append(request.number)
            return [self._measurement(schedule)]
        finally:
            del self._running[request.number]

    def _measurement(self, asked):
        fault = asked.options.get("fault", "")
        if self.fault == "wrong" or fault == "wrong result":
            return Measurement(Outcome.WRONG_RESULT, "the result is wrong", build_s=0.01, run_s=0.01)
        if self.fault == "nonsense":
            return Measurement(Outcome.OK, times_s=(float("nan"),), reference_times_s=(1.0,))
        seconds = time_of(asked.unroll)
        return Measurement(Outcome.OK, "", (seconds,) * 3, (REFERENCE_S,) * 3, 0.0, 0.01, 0.01)

    def forget(self, session):
        self.forgotten.append(session)

    def standing(self):
        now = time.monotonic()
        running = [
            Running(one.session, number, "run", now - since) for number, (one, since) in [*self._running.items()]
        ]
        return WorkerStanding(tuple(running), len(set(self.opened) - set(self.forgotten)), 0, len(self.measured))

    def close(self):
        self._end.set()


def make(name, builders):
    """What ``anatune worker --device tests.unit.fleet.cluster.pretended:make`` finds."""
    return PretendedStation(name, builders or 2)


def other(description, **changes):
    """A description that differs."""
    return msgspec.structs.replace(description, **changes)
