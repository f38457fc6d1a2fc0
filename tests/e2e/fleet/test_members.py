"""Who is in a fleet: strangers that are refused, workers that join and leave, sessions side by side, Ctrl-C."""

import re

import pytest

from anatune.core.trial import Outcome
from tests.e2e.fleet.lab import alive, check_records, descendants, recorded, wait_until

pytestmark = pytest.mark.slow

TRIALS = 12
STRANGERS = {
    "device": ({"device": "graviton3"}, r"neoverse-v1\b.*\bskylake-avx512\b"),
    "version": ({"anatune": "0.0.1"}, r"anatune 0\.0\.1\b"),
    "tvm": ({"tvm": "0.1.0"}, r"TVM 0\.1\.0, expected "),
    "code": ({"code": "0123456789abcdef"}, "sources .*0123456789abcdef"),
    "slow": ({"peak": 3.9e10}, r"\b39\.0 GFLOP/s, 39% of the expected 100\.0\b"),
    "fast": ({"peak": 2.6e11}, r"\b260\.0 GFLOP/s, 260% of the expected 100\.0\b"),
    "close": ({"peak": 1.05e11}, ""),
}


def check_ok(records, count=TRIALS):
    trials = check_records(records, count)
    assert {one.measurement.outcome for one in trials} == {Outcome.OK}
    return trials


def test_who_is_not_the_session_s_device_is_refused_in_one_line(lab, records):
    for name, (settings, _) in STRANGERS.items():
        lab.say(name, **settings)
    crowd = lab.crowd(*STRANGERS, "plain")
    try:
        session = lab.session(records, TRIALS)
        session.finish()
    finally:
        crowd.end()
    trials = check_ok(records)
    states = session.states()
    for name, (_, why) in STRANGERS.items():
        assert states[name].state == ("refused" if why else "ready"), states[name]
        assert re.search(why, states[name].why)
        assert "\n" not in states[name].why
    assert any("anatune worker" in one.why for one in states.values())
    assert {one.measurement.worker for one in trials} <= {"near", "far", "close"}


def test_workers_join_and_leave_in_the_middle(lab, records):
    session = lab.held_session(records, 40)
    lab.say("near", fault="mute")
    third = lab.worker("third", fault="mute")
    wait_until("a trial on the third", lambda: lab.is_measuring("third"))
    assert third.interrupt() == 0
    for name in ("near", "far"):
        lab.say(name)
    session.finish()
    check_ok(records, 40)
    states = session.states()
    assert states["third"].state == "lost"
    assert states["near"].trials + states["far"].trials == 40


def test_two_sessions_take_turns_on_the_same_workers(lab, records, tmp_path):
    for name in ("near", "far"):
        lab.say(name, run_s=0.03)
    sessions = [lab.session(one, TRIALS) for one in (records, tmp_path / "other.sqlite")]
    for session in sessions:
        session.finish()
    for one in (records, tmp_path / "other.sqlite"):
        check_ok(one)


def test_two_sessions_write_one_store(lab, records):
    sessions = [lab.session(records, TRIALS, strategy=strategy) for strategy in ("random", "grid")]
    for session in sessions:
        session.finish()
    trials = recorded(records)
    assert len(trials) == 2 * TRIALS
    assert sorted(one.number for one in trials) == sorted([*range(TRIALS)] * 2)


def test_ctrl_c_of_a_session_keeps_everything_and_frees_the_workers(lab, records):
    at = len(lab.log("far"))
    lab.say("far", fault="mute")
    program = lab.session_process(records, TRIALS)
    wait_until("three trials", lambda: "reported 3" in program.printed and lab.is_measuring("far", at))
    processes = [program.pid, *descendants(program.pid)]
    assert program.interrupt() == 1, program.said
    assert not any(map(alive, processes))
    assert program.said == f"interrupted after {len(recorded(records))} trials\n"
    lab.say("far")
    (session,) = {words[1] for words in lab.log("far")[at:] if words[0] == "open"}
    for name in ("near", "far"):
        wait_until(f"{name} is free", lambda name=name: ["forget", session] in lab.log(name))
    before = recorded(records)
    lab.session(records, TRIALS, resume=True).finish()
    assert check_ok(records)[: len(before)] == before


def test_ctrl_c_of_a_worker_in_the_middle_of_a_trial(lab, records):
    session = lab.held_session(records, TRIALS)
    worker = lab.named["far"]
    processes = [worker.pid, *descendants(worker.pid)]
    assert worker.interrupt() == 0
    assert worker.said.splitlines()[-1] == "the worker ended"
    assert not any(map(alive, processes))
    session.finish()
    check_ok(records)
    assert session.states()["far"].state == "lost"
