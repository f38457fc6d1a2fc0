"""What sessions and measurers agree on."""

import msgspec

import anatune
from anatune.measure.place import WorkerState, add_earlier_trials, asking

WORKLOAD, HOST = anatune.matmul(8, 8, 8), anatune.hardware("xeon_gold_6230r")


def test_schedules_are_asked_in_order_and_then_none():
    made = list(anatune.space(WORKLOAD, HOST).sample(3, 0))
    ask = asking(made)
    assert [ask() for _ in range(5)] == [*made, None, None]


def test_a_worker_is_json_both_ways():
    state = WorkerState("box-1", "rtx3090", "refused", "another device", 3, 1)
    assert msgspec.json.decode(msgspec.json.encode(state), type=WorkerState) == state


def test_workers_of_several_sessions_are_added_up():
    first = (WorkerState("a", trials=3, failed=1), WorkerState("b", trials=2))
    now = (WorkerState("b", state="lost", why="gone", trials=1, failed=1), WorkerState("c", trials=4))
    assert add_earlier_trials((), first) == first
    assert add_earlier_trials(first, ()) == first
    assert add_earlier_trials(first, now) == (
        WorkerState("a", trials=3, failed=1),
        WorkerState("b", state="lost", why="gone", trials=3, failed=1),
        WorkerState("c", trials=4),
    )
