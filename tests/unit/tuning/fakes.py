"""Stand-ins for sessions: a measurer that computes times instead of taking them."""

import functools
import math
import zlib

import anatune
from anatune.core.trial import Measurement, Outcome
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings

HOST = anatune.hardware("xeon_gold_6230r")
WORKLOAD = anatune.matmul(48, 64, 36)


class FakeMeasurer:
    """Asks a few schedules ahead, as the real one does; `script` maps the number of a measurement to what happens."""

    def __init__(
        self, workload, hardware, *, threads=1, limits=None, seed=0, least_samples=1, ahead=3, script=None, cold=None
    ):
        self.least_samples = least_samples
        self.workload, self.hardware, self.threads, self.limits, self.seed = workload, hardware, threads, limits, seed
        self.cold = cold
        self.incumbent = None
        self.first_incumbent = None
        self.measured = []
        self.compared = []
        self.is_open = False
        self.ahead, self.script = ahead, script or {}

    def __enter__(self):
        self.is_open = True
        return self

    def __exit__(self, *_):
        self.is_open = False

    def serve(self, ask):
        assert self.is_open
        if not self.measured:
            self.first_incumbent = self.incumbent
        waiting, may_ask = [], True
        while True:
            while may_ask and len(waiting) < self.ahead:
                schedule = ask()
                if schedule is None:
                    may_ask = False
                else:
                    waiting.append(schedule)
            if not waiting:
                return
            schedule = waiting.pop(0)
            what = self.script.get(len(self.measured), None)
            if isinstance(what, BaseException):
                raise what
            self.measured.append(schedule)
            yield schedule, what or self.answer(schedule)
            may_ask = True

    def workers(self):
        return ()

    def answer(self, schedule):
        value = zlib.crc32(repr((sorted(schedule.tiles.items()), schedule.options)).encode()) / 2**32
        return ran(1e-3 * (1 + value))

    def compare(self, schedules, budget_s):
        assert self.is_open
        self.compared.append(list(schedules))
        answers = []
        for schedule in schedules:
            time_s = self.answer(schedule).times_s[0]
            times = tuple(time_s * math.exp(0.001 * (-1) ** i) for i in range(6))
            answers.append(Measurement(Outcome.OK, times_s=times, reference_times_s=(1e-3,) * 6))
        return answers


def ran(seconds):
    times = {"times_s": (seconds,) * 3, "reference_times_s": (1e-3,) * 3}
    return Measurement(Outcome.OK, **times, max_rel_error=1e-7, build_s=0.1, run_s=0.1)


def failed(outcome=Outcome.BUILD_ERROR, message="LLVM said no"):
    return Measurement(outcome, message)


def key_of(schedule):
    return schedule.key


def session(trials=8, made=None, script=None, ahead=3, progress=None, compare=None, **given):
    """Return a session on fakes; `made` collects its measurers."""

    def measurer(*arguments, **keywords):
        one = FakeMeasurer(*arguments, script=script, ahead=ahead, **keywords)
        one.compare = functools.partial(compare, one) if compare else one.compare
        if made is not None:
            made.append(one)
        return one

    replaced = {name: given.pop(name) for name in ("program_key", "clock", "costs", "counters") if name in given}
    stand_ins = StandIns(host=HOST, measurer=measurer, **{"program_key": key_of, **replaced})
    return TuningSession(WORKLOAD, HOST, TuningSettings(trials=trials, **{"threads": 1, **given}), progress, stand_ins)
