import threading

import pytest

from anatune.fleet.cluster import builder
from anatune.fleet.cluster.builder import BuildSlots


@pytest.fixture
def slots():
    made = []

    def make(*cores):
        made.append(BuildSlots(cores))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.join(10)


def test_every_core_builds_and_errors_come_back(slots):
    both = threading.Barrier(2)
    pool = slots((0,), (1,))
    numbers = [pool.submit(lambda slot: (both.wait(10) and slot) or slot) for _ in range(2)]
    assert sorted(one.result(10) for one in numbers) == [0, 1]

    def fails(slot):
        raise KeyError("oops")

    with pytest.raises(KeyError):
        pool.submit(fails).result(10)
    assert pool.submit(lambda slot: "again").result(10) == "again"


def test_a_core_that_times_a_kernel_builds_nothing_and_others_do(slots):
    pool = slots((0,), (1,))
    with pool.keep_free((1,)):
        assert [pool.submit(lambda slot: slot).result(10) for _ in range(5)] == [0] * 5


def test_where_all_cores_time_builds_wait_and_a_kernel_waits_for_builds(slots):
    pool = slots((0, 2), (1,))
    begun, may_end, order = threading.Event(), threading.Event(), []

    def build(slot):
        begun.set()
        may_end.wait(10)
        order.append("built")

    building = pool.submit(build)
    begun.wait(10)

    def time_it():
        with pool.keep_free((0, 1, 2)):
            order.append("timed")
            late.append(pool.submit(lambda slot: order.append("late")))
            assert not late[0].done()

    late = []
    timing = threading.Thread(target=time_it)
    timing.start()
    may_end.set()
    timing.join(10)
    building.result(10)
    late[0].result(10)
    assert order == ["built", "timed", "late"]


def test_a_build_that_waited_long_goes_before_the_next_kernel(slots, monkeypatch):
    monkeypatch.setattr(builder, "_PATIENCE_S", 0.0)
    pool = slots((0,))
    order, stop = [], threading.Event()

    def time_them():
        while not stop.is_set():
            with pool.keep_free((0,)):
                order.append("timed")

    timing = threading.Thread(target=time_them)
    timing.start()
    try:
        pool.submit(lambda slot: order.append("built")).result(10)
    finally:
        stop.set()
        timing.join(10)
    assert "built" in order


def test_what_waits_at_the_end_is_cancelled(slots):
    pool = slots((0,))
    may_end = threading.Event()
    first = pool.submit(lambda slot: may_end.wait(10))
    while not first.running():
        pass
    second = pool.submit(lambda slot: "never")
    pool.close()
    assert second.cancelled()
    may_end.set()
    assert first.result(10)
