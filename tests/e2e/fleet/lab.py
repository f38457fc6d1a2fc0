"""A scheduler, workers and sessions on the loopback, each in a process of its own, and what may happen to them."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from anatune.core.workload.operators import matmul
from anatune.errors import AnatuneError
from anatune.fleet.cluster.security import connect
from anatune.fleet.places.cluster import ClusterPlace
from anatune.measure.run.build_processes import Limits
from anatune.records.store import RecordStore
from anatune.tuning.result import TuningInterrupted
from anatune.tuning.session import StandIns, TuningSession
from anatune.tuning.settings import TuningSettings
from tests.e2e.fleet.pretended import FOLDER
from tests.e2e.fleet.proxy import Proxy
from tests.e2e.fleet.quick import CONSTANTS
from tests.unit.fleet.cluster.pretended import HARDWARE

ROOT = Path(__file__).parents[3]
WORKLOAD = matmul(64, 64, 64)
PATIENCE_S = 180.0
"""How long a test waits for what has to happen; generous, for machines that do much else."""
LIMITS = Limits(build_s=60.0, run_s=60.0, start_s=60.0)
"""Of kernels that a test may hold for as long as it likes."""
PRETENDED = "tests.e2e.fleet.pretended:make"


def wait_until(what, call, seconds=PATIENCE_S):
    """Return the first true answer of `call`."""
    until = time.monotonic() + seconds
    while not (answer := call()):
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
    return answer


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid):
    """Return the processes that a process started, and those that these did."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, todo = [], [pid]
    while todo:
        todo += (more := parents.get(todo.pop(), []))
        found += more
    return found


class Program:
    """``anatune WORDS...`` in a process of its own, its output in files."""

    def __init__(self, folder, name, words, *, constants=None, module="tests.e2e.fleet.quick", **variables):
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        variables = {name: str(value) for name, value in variables.items()}
        environment = {
            **os.environ, FOLDER: str(folder), CONSTANTS: json.dumps(constants or {}), "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **variables,
        }  # fmt: skip
        command = [sys.executable, "-m", module, *map(str, words)]
        with self.out.open("ab") as out, self.err.open("ab") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, cwd=folder,
                preexec_fn=_foreground,
            )  # fmt: skip
        self.pid = self.process.pid
        self._heard = 0

    @property
    def said(self):
        return self.err.read_text()

    def heard(self):
        """Return what it has said since the last call."""
        before, said = self._heard, self.said
        self._heard = len(said)
        return said[before:]

    @property
    def printed(self):
        return self.out.read_text()

    def kill(self):
        """End it as a crash does; return the processes that it had."""
        had = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        return had

    def interrupt(self):
        """As Ctrl-C; return its exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        self.kill()


def _foreground():
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Lab:
    """A scheduler and its workers; `close` ends them all.

    Attributes
    ----------
    line : Proxy
        Between the scheduler and those workers that are started with its address.
    """

    def __init__(self, folder):
        self.folder = folder
        self.port = 0  # a free one
        self.programs = []
        self.named = {}
        self._said = itertools.count()
        self.scheduler = self.start_scheduler()
        self.address = re.search(r"scheduler at (tcp://\S+:\d+)\n", self.scheduler.printed)[1]
        self.port = int(self.address.rpartition(":")[2])
        self.line = Proxy(self.port)

    def start_scheduler(self):
        """Start one, at the same address as the one before."""
        words = ("cluster", "scheduler", "--port", self.port)
        self.scheduler = self._start("scheduler", words)
        wait_until("the scheduler", lambda: "workers join with" in self.scheduler.printed)
        return self.scheduler

    def _start(self, name, words, **more):
        program = Program(self.folder, f"{name}-{len(self.programs)}", words, **more)
        self.programs.append(program)
        return program

    def say(self, name, **settings):
        """Write what a pretended worker is and does wrong from now on."""
        path = self.folder / f"{name}.json"
        path.with_suffix(".new").write_text(json.dumps({**settings, "said": next(self._said)}))
        path.with_suffix(".new").replace(path)

    def worker(self, name, *, address=None, joined=True, constants=None, device=PRETENDED, variables=None, **settings):
        """Start a worker; wait until it has joined."""
        self.say(name, **settings)
        constants = {"anatune.fleet.cluster.worker:_RETRY_S": 0.2, **(constants or {})}
        command = ("worker", address or self.address, "--device", device, "--name", name)
        worker = self.named[name] = self._start(name, command, constants=constants, **(variables or {}))
        if joined:
            self.has_joined(name, worker)
        return worker

    def two_workers(self):
        """Have the workers "near" and "far", the latter at the end of `line`, with new ones for those that are gone."""
        places = {"near": self.address, "far": self.line.address}
        for name, address in places.items():
            self.say(name)
            one = self.named.get(name)
            if one is None or one.process.poll() is not None:
                self.worker(name, address=address, joined=False)
        for name in places:
            self.has_joined(name, self.named[name])
        return self

    def crowd(self, *names):
        """Start pretended workers in one process; return it when all have joined."""
        program = self._start("crowd", (self.address, *names), module="tests.e2e.fleet.crowd")
        wait_until("a crowd", lambda: "joined" in program.printed or program.process.poll() is not None)
        assert program.process.poll() is None, program.said
        return program

    def is_measuring(self, name, since=0):
        """Whether a pretended worker is at a kernel now, begun after so many lines of its log."""
        log = self.log(name)
        return len(log) > since and log[-1][0] == "begin"

    def has_joined(self, name, worker, times=1):
        """Wait until a worker has joined so often."""
        words = f"{name} joined"
        wait_until(words, lambda: worker.said.count(words) >= times or worker.process.poll() is not None)
        assert worker.process.poll() is None, worker.said

    def log(self, name):
        """Return what a pretended worker did: lists of words."""
        path = self.folder / f"{name}.log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def close(self):
        for program in reversed(self.programs):
            program.end()
        self.line.close()

    def session(self, records, trials=12, address=None, **more):
        return Session(address or self.address, records, trials, **more)

    def held_session(self, records, trials=12, **more):
        """Start a session and return it when "far" is at a trial, which it does not end until it has another fault."""
        at = len(self.log("far"))
        self.say("far", fault="mute")
        session = self.session(records, trials, **more)
        wait_until("a trial on far", lambda: self.is_measuring("far", at) or not session.is_alive())
        session.has_reported(2)
        return session

    def session_process(self, records, trials):
        """Start a session in a process of its own, which prints "reported N" after each trial."""
        return self._start(
            f"session{len(self.programs)}", (self.address, records, trials), module="tests.e2e.fleet.lab"
        )


def session_of(address, records, trials, tell, place, strategy="random", resume=False, limits=LIMITS):
    settings = TuningSettings(
        trials=trials, strategy=strategy, records=records, resume=resume, threads=1, template="cpu", limits=limits,
        cluster=address, reuse=False,
    )  # fmt: skip
    return TuningSession(WORKLOAD, HARDWARE, settings, tell, StandIns(program_key=lambda one: one.key), place)


class Session(threading.Thread):
    """A tuning session in a thread of the test.

    Parameters
    ----------
    wait_s : float
        How long it waits for a worker.
    """

    def __init__(self, address, records, trials, *, strategy="random", resume=False, wait_s=30.0, limits=LIMITS):
        super().__init__(daemon=True)
        self._address, self._wait_s = address, wait_s
        self._what = records, trials
        self._more = {"strategy": strategy, "resume": resume, "limits": limits}
        self.progress, self.result, self.error = [], None, None
        self.start()

    def run(self):
        try:
            with contextlib.closing(
                ClusterPlace(connect(self._address), owns_client=True, wait_s=self._wait_s)
            ) as place:
                self.result = session_of(self._address, *self._what, self.progress.append, place, **self._more).run()
        except AnatuneError as error:
            self.error = error

    @property
    def done(self):
        """How many trials were reported."""
        return self.progress[-1].done if self.progress else 0

    def has_reported(self, count):
        wait_until(f"{count} trials", lambda: self.done >= count or not self.is_alive())
        assert self.done >= count, self.error

    def finish(self):
        """Return the result."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"the session did not end; {self.progress[-1:]}"
        if self.error is not None:
            raise self.error
        assert self.result is not None, "the session's thread ended with another error"
        return self.result

    def states(self):
        return {one.name: one for one in self.result.workers}


def recorded(records):
    """Return the trials of a store; comparisons are left out."""
    with RecordStore(records) as store:
        return [one.trial for one in store.trials() if one.trial.source != "compare"]


def check_records(records, count):
    """Fail unless a store has so many trials, each number and each schedule once; return them."""
    trials = recorded(records)
    numbers, keys = [one.number for one in trials], {one.schedule.key for one in trials}
    assert numbers == list(range(count)), f"expected trials 0 to {count - 1}, there are {numbers}"
    assert len(keys) == count, f"{count} trials have {len(keys)} schedules"
    return trials


def main(address, records, trials):
    """A session in the foreground, that tells what it reported."""

    def tell(progress):
        print(f"reported {progress.done}", flush=True)  # noqa: T201

    try:
        with contextlib.closing(ClusterPlace(connect(address), owns_client=True)) as place:
            session_of(address, records, int(trials), tell, place).run()
    except TuningInterrupted as stop:
        sys.exit(f"interrupted after {len(stop.result.trials)} trials")


if __name__ == "__main__":
    main(*sys.argv[1:])
