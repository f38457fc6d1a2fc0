"""A real scheduler and real workers in processes of their own on the loopback; the stations pretend."""

import collections
import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("distributed", reason="pip install '.[cluster]'")

from anatune.errors import DeviceError
from anatune.fleet.cluster.dask_fleet import DaskFleet
from anatune.fleet.cluster.fleet import Snapshot, TaskEnd
from anatune.fleet.cluster.measurer import ClusterMeasurer
from anatune.fleet.cluster.security import connect
from anatune.measure.place import asking
from tests.unit.fleet.cluster.pretended import HARDWARE, WORKLOAD, schedule, time_of
from tests.wording import refuses

_MOST_S = 120.0


@contextlib.contextmanager
def process(*words):
    """Run a process of a cluster; yields it and the line that it said."""
    command = [sys.executable, "-m", "tests.unit.fleet.cluster.serve", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        try:
            yield one, one.stdout.readline().strip()
        finally:
            one.kill()


@pytest.fixture(scope="module")
def cluster():
    with process("scheduler", 0) as (_, address), process("workers", address, 3) as (_, count):
        assert count == "3"
        yield address


@pytest.fixture
def client(cluster):
    with connect(cluster) as one:
        yield one


def measurer(client, **more):
    return ClusterMeasurer(WORKLOAD, HARDWARE, connect=lambda session: DaskFleet(client, session), **more)


def served(one, count):
    answers = list(one.serve(asking(schedule(number) for number in range(count))))
    assert sorted(asked.unroll for asked, _ in answers) == list(range(count))
    assert all(measurement.time_s == time_of(asked.unroll) for asked, measurement in answers)
    return answers


def sessions_held(client):
    fleet = DaskFleet(client, "")
    return [seen.standing.sessions for seen in fleet.look().workers.values()]


def wait_until(condition):
    until = time.monotonic() + _MOST_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_session_on_three_workers(client):
    with measurer(client) as one:
        answers = served(one, 30)
        assert {measurement.worker for _, measurement in answers} == {"w0", "w1", "w2"}
        compared = one.compare([schedule(number) for number in (1, 2, 50)], 1.0)
        assert [measurement.time_s for measurement in compared] == [time_of(number) for number in (1, 2, 50)]
        assert [(state.name, state.state) for state in one.workers()] == [(f"w{n}", "ready") for n in range(3)]
        wait_until(lambda: max(sessions_held(client)) == 1)
    wait_until(lambda: sessions_held(client) == [0, 0, 0])


def test_sessions_share_the_workers(cluster):
    done = []

    def run():
        with connect(cluster) as client, measurer(client) as one:
            done.append(len(served(one, 25)))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_MOST_S)
    assert done == [25, 25, 25]


def test_a_session_that_is_killed_holds_nothing(cluster, client, tmp_path):
    code = (
        "import sys\n"
        "from tests.unit.fleet.cluster.test_worker import *\n"
        "with connect(sys.argv[1]) as client, measurer(client) as one:\n"
        "    for answer in one.serve(lambda: schedule(1)):\n"
        "        print(answer, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, cluster], stdout=subprocess.PIPE, text=True) as session:
        assert "ms" in session.stdout.readline()
        wait_until(lambda: max(sessions_held(client)) == 1)
        session.send_signal(signal.SIGKILL)
    wait_until(lambda: sessions_held(client) == [0, 0, 0])
    with measurer(client) as one:
        served(one, 6)
    wait_until(lambda: not any(client.has_what().values()))


def test_a_worker_comes_back_when_the_scheduler_does():
    with process("scheduler", 0) as (first, address), process("worker", address) as (worker, said):
        assert said.startswith(f"w joined {address}")
        first.send_signal(signal.SIGKILL)
        first.wait(_MOST_S)
        assert "the scheduler is gone" in worker.stdout.readline()
        with process("scheduler", address.rpartition(":")[2]) as (_, again):
            assert again == address
            lines = iter(worker.stdout.readline, "")
            assert any(line.startswith("w joined") for line in lines)
            with connect(address) as client, measurer(client) as one:
                served(one, 3)


def test_a_scheduler_that_is_killed_ends_the_session_in_one_line():
    with (
        process("scheduler", 0) as (scheduler, address),
        process("workers", address, 1),
        connect(address) as client,
        measurer(client) as one,
    ):
        serving = one.serve(lambda: schedule(1))
        next(serving)
        scheduler.send_signal(signal.SIGKILL)
        with pytest.raises(DeviceError) as caught:
            collections.deque(serving, 0)
        assert address in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_cluster_without_workers_is_told_apart_from_one_that_refuses(tmp_path):
    with (
        process("scheduler", 0) as (_, address),
        connect(address) as client,
        measurer(client, wait_s=1) as one,
        refuses(DeviceError),
    ):
        served(one, 1)


class LateFleet(DaskFleet):
    """One that hears of an end only when it is let."""

    let = threading.Event()

    def _report_end(self, number, future, fetched):
        self.let.wait(_MOST_S)
        super()._report_end(number, future, fetched)


@pytest.mark.slow
def test_what_was_built_by_a_worker_that_left_is_no_lost_connection():
    with (
        process("scheduler", 0) as (_, address),
        process("workers", address, 1),
        process("worker", address) as (leaving, _),
        connect(address) as client,
    ):
        fleet = LateFleet(client, "s")
        addresses = {seen.description.name: at for at, seen in fleet.look().workers.items()}
        fleet.submit("build", addresses["w"], 1, b"")
        built = client.futures["anatune-build-s-1"]
        wait_until(lambda: built.status == "finished")
        leaving.send_signal(signal.SIGKILL)
        wait_until(lambda: built.status == "lost")
        fleet.let.set()
        who, done = fleet.events.get(timeout=_MOST_S), fleet.events.get(timeout=_MOST_S)
        assert done == TaskEnd(1, error="its answer is lost")
        assert isinstance(who, Snapshot), "who is there is told first"
        assert [*who.workers] == [addresses["w0"]]
        fleet.close()
