"""What every record store promises: nothing acknowledged is lost, nothing is rewritten, order is that of recording."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from anatune.core.trial import Outcome
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.errors import RecordError
from anatune.records.store import RecordStore
from tests.unit.records.making import CONV, CPU, MATMUL, failed, ok, schedule, session_of, trial
from tests.wording import refuses

ROOT = Path(__file__).resolve().parents[2]
STORES = ["sqlite", "postgresql"]

WRITER = """
import sys
from anatune.records.store import RecordStore
from tests.unit.records.making import ok, session_of, trial
path, start, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with RecordStore(path) as store:
    session = session_of(store)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(start, start + count):
        store.append(session, trial(number, ok(times=tuple(1e-3 + i * 1e-9 for i in range(number % 50 + 1)))))
        print(number, flush=True)
"""


class Make:
    """Opens the stores of one test, each made where it is first named."""

    def __init__(self, kind, folder, request):
        self.kind, self._folder, self._request = kind, folder, request
        self._places = {}

    def place(self, name="tuning"):
        if name not in self._places:
            server = self._request.getfixturevalue("postgres") if self.kind == "postgresql" else None
            self._places[name] = str(self._folder / f"{name}.sqlite") if server is None else server.database()
        return self._places[name]

    def __call__(self, name="tuning", **options):
        return RecordStore(self.place(name), **options)


@pytest.fixture(params=STORES)
def make(request, tmp_path):
    """Return a function that opens a store by its name."""
    return Make(request.param, tmp_path, request)


def writer(place, start, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, place, str(start), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def test_what_is_appended_comes_back(make):
    trials = [
        trial(0, ok(references=(1e-3, 2e-3, 1.5e-3), build_s=0.25, run_s=0.5)),
        trial(1, failed(Outcome.WRONG_RESULT, "differs at (3, 4)\nand elsewhere"), source="dgd", predicted_s=None),
        trial(2, ok(times=(0.1,), stopped_early=True), threads=2),
        *(trial(3 + at, failed(outcome, "é ü 漢")) for at, outcome in enumerate(Outcome) if outcome is not Outcome.OK),
    ]
    with make() as store:
        session = session_of(store, trials=32, options={"a": [1, 2.5, None]})
        ids = [store.append(session, one) for one in trials]
        assert ids == sorted(set(ids))
        written = store.trials()
    with make(read_only=True) as store:
        found = store.trials()
        assert found == written
        assert [record.trial for record in found] == trials
        assert [record.trial.schedule.key for record in found] == [one.schedule.key for one in trials]
        assert [record.id for record in found] == ids
        assert store.sessions() == [session]
        assert all(record.session == session and record.environment == session.environment for record in found)
        assert store.counts(session)[Outcome.OK] == 2


def test_what_a_trial_ran_under(make):
    with make() as store:
        session = session_of(store)
        elsewhere = msgspec.structs.replace(session.environment, cpu="another", cores=3)
        store.append(session, trial(0), ran_under=elsewhere)
        store.append(session, trial(1))
        assert [record.environment for record in store.trials()] == [elsewhere, session.environment]


def test_filters(make):
    other = CPU.__class__(**{name: getattr(CPU, name) for name in CPU.__struct_fields__} | {"name": "elsewhere"})
    with make() as store:
        first = session_of(store)
        second = session_of(store, workload=CONV, threads=2, strategy="random")
        third = session_of(store, hardware=other)
        for number in range(600):
            store.append(first, trial(number, ok() if number % 2 else failed()))
        store.append(second, trial(0, schedule=schedule(1, CONV), threads=2))
        store.append(third, trial(0))
        assert len(store.trials()) == 602
        assert len(store.trials(MATMUL)) == 601
        assert [record.session for record in store.trials(CONV)] == [second]
        assert store.trials(CONSTRUCTORS["matmul"](8, 8, 8)) == []
        assert [record.trial.number for record in store.trials(session=first, outcome="ok", limit=2)] == [597, 599]
        assert len(store.trials(limit=1000)) == 602
        assert store.trials(limit=0) == []
        assert len(store.trials(hardware=CPU)) == 601
        assert [record.session for record in store.trials(hardware="elsewhere")] == [third]
        assert [record.session for record in store.trials(hardware=other)] == [third]
        assert len(store.trials(threads=2)) == len(store.trials(session=second.id)) == 1
        assert len(store.trials(outcome=Outcome.BUILD_ERROR)) == 300
        assert store.sessions(MATMUL) == [first, third]
        assert store.sessions(strategy="random") == store.sessions(threads=2) == [second]
        with refuses(RecordError):
            store.trials(outcome="fine")


def test_sessions_by_their_ids(make):
    with make() as store:
        session_of(store)
        last = session_of(store, seed=9)
        assert store.session(last.id) == last
        with refuses(RecordError):
            store.session("0" * 32)


def test_best_of_each_group(make):
    with make() as store:
        session = session_of(store)
        assert store.best(MATMUL) is None
        store.append(session, trial(0, ok(times=(4e-3, 4e-3), references=(4e-3, 4e-3))))  # a slow minute: ratio 1
        best = store.append(session, trial(1, ok(times=(5e-3, 5e-3), references=(8e-3, 8e-3))))  # ratio 0.63
        store.append(session, trial(2, failed()))
        both = session_of(store, threads=2)
        assert store.best(MATMUL).id == best
        faster = store.append(both, trial(0, ok(times=(1e-3,)), threads=2))
        assert store.best(MATMUL).id == faster
        assert store.best(MATMUL, CPU, 1).id == best
        assert store.best(MATMUL, "elsewhere") is None
        assert [record.id for record in store.bests()] == [best, faster]
        assert [record.id for record in store.bests(session=both)] == [faster]


def test_trials_of_another_workload_or_file_are_refused(make):
    with make() as store, make("other") as other:
        session = session_of(store)
        with refuses(RecordError):
            store.append(session, trial(0, schedule=schedule(1, CONV)))
        with refuses(RecordError):
            other.append(session, trial(0))
        assert store.trials() == other.trials() == []


def test_times_that_are_no_numbers(make):
    with make() as store:
        session = session_of(store)
        with refuses(RecordError):
            store.append(session, trial(3, ok(times=(float("inf"),))))
        wrong = failed(Outcome.WRONG_RESULT, "NaN in the result \udc80")
        wrong = type(wrong)(wrong.outcome, wrong.message, max_rel_error=float("nan"))
        store.append(session, trial(4, wrong, predicted_s=float("inf")))
        kept = store.trials()[0].trial
        assert kept.measurement == type(wrong)(wrong.outcome, "NaN in the result ?")
        assert kept.predicted_s is None


def test_settings_and_seeds_that_cannot_be_kept(make):
    with make() as store:
        for settings, seed in (({"a": object()}, 0), ({}, -1), ({}, 1 << 63)):
            with refuses(RecordError):
                store.new_session(MATMUL, CPU, 1, "dgd", seed, settings)
        assert store.sessions() == []


def test_closed(make):
    store = make()
    session = session_of(store)
    store.close()
    store.close()
    with refuses(RecordError):
        store.append(session, trial())
    with make(read_only=True) as store, refuses(RecordError):
        store.append(session, trial())


def test_two_processes_write_at_once(make):
    processes = [writer(make.place(), start, 100) for start in (0, 1000)]  # both make the tables, too
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    with make(read_only=True) as store:
        for start, output in zip((0, 1000), outputs, strict=True):
            assert list(map(int, output.split())) == list(range(start, start + 100))
        by_session = [[record.trial.number for record in store.trials(session=one)] for one in store.sessions()]
        assert sorted(by_session) == [list(range(100)), list(range(1000, 1100))]
        ids = [record.id for record in store.trials()]
        assert ids == sorted(set(ids))
        assert len(ids) == 200


def test_threads_of_one_process_write_at_once(make):
    with make() as store:
        session = session_of(store)
        threads = [
            threading.Thread(target=lambda first=first: [store.append(session, trial(first + at)) for at in range(20)])
            for first in (0, 100, 200)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(record.trial.number for record in store.trials()) == [
            first + at for first in (0, 100, 200) for at in range(20)
        ]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_processes_write_too(make):
    with make() as store:
        session = session_of(store)
        store.append(session, trial(0))
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=store.append, args=(session, trial(number))) for number in (1, 2)]
        for child in children:
            child.start()
        for child in children:
            child.join(30)
        assert [child.exitcode for child in children] == [0, 0]
        store.append(session, trial(3))
        assert sorted(record.trial.number for record in store.trials()) == [0, 1, 2, 3]


def test_killed_between_and_during_writes(make):
    """kill -9 at random moments, seven times on the same store: every acknowledged trial is there and whole."""
    chance = random.Random(5)
    acknowledged = set()
    for round_number in range(7):
        start = 10_000 * round_number
        process = writer(make.place(), start, 10_000)
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(chance.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        assert process.returncode == -signal.SIGKILL
        acknowledged |= {int(word) for word in output[: output.rfind("\n") + 1].split()}
        with make() as store:
            found = store.trials()
            numbers = [record.trial.number for record in found]
            assert acknowledged <= set(numbers)
            assert len(numbers) <= len(acknowledged) + round_number + 1  # the one that nobody heard of
            for record in found[-3:]:
                assert record.trial == trial(record.trial.number, record.trial.measurement)
                assert len(record.trial.measurement.times_s) == record.trial.number % 50 + 1
            session = store.sessions(MATMUL, CPU, 1, "dgd")[-1]
            mine = [record.trial.number for record in store.trials(session=session)]
            assert mine == list(range(start, start + len(mine)))
    assert len(acknowledged) > 20
