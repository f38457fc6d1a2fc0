"""kill -9 of a worker, of the scheduler, of the session and of PostgreSQL, each in the middle of a trial."""

import pytest

from anatune.core.trial import Outcome
from anatune.errors import DeviceError
from tests.e2e.fleet.lab import check_records, recorded, wait_until

pytestmark = pytest.mark.slow

TRIALS = 12


def check_ok(trials):
    assert {one.measurement.outcome for one in trials} == {Outcome.OK}


def test_a_worker_killed_in_the_middle_of_a_trial(lab, records):
    session = lab.held_session(records, TRIALS)
    lab.named["far"].kill()
    lab.worker("far", address=lab.line.address)  # again, under the same name, in the middle of the session
    session.finish()
    check_ok(check_records(records, TRIALS))
    states = session.states()
    assert states["near"].state == "ready"
    assert sum(one.trials for one in states.values()) == TRIALS


def test_a_killed_scheduler_ends_the_session_and_resume_goes_on(lab, records):
    session = lab.held_session(records, TRIALS)
    lab.scheduler.kill()
    with pytest.raises(DeviceError) as raised:
        session.finish()
    before = recorded(records)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(f"{lab.address}: the ")
    assert text.endswith(f"; {len(before)} trials are kept in {records}, --resume continues")
    assert len(before) == session.done
    joined = {name: lab.named[name].said.count(f"{name} joined") for name in ("near", "far")}
    lab.start_scheduler()
    lab.say("far")
    for name, times in joined.items():  # they come by themselves
        lab.has_joined(name, lab.named[name], times=times + 1)
    lab.session(records, TRIALS, resume=True).finish()
    trials = check_records(records, TRIALS)
    assert trials[: len(before)] == before
    check_ok(trials)


def test_a_killed_session_leaves_the_workers_free_and_resume_goes_on(lab, records):
    at = len(lab.log("far"))
    lab.say("far", fault="mute")
    program = lab.session_process(records, TRIALS)
    wait_until("three trials", lambda: "reported 3" in program.printed and lab.is_measuring("far", at))
    program.kill()
    lab.say("far")
    (session,) = {words[1] for words in lab.log("far")[at:] if words[0] == "open"}
    for name in ("near", "far"):  # its lease ends with its connection
        wait_until(f"{name} is free", lambda name=name: ["forget", session] in lab.log(name))
    before = recorded(records)
    assert len(before) >= 3
    lab.session(records, TRIALS, resume=True).finish()
    trials = check_records(records, TRIALS)
    assert trials[: len(before)] == before
    check_ok(trials)


def test_postgresql_killed_and_restarted_in_the_middle(lab, postgres):
    url = postgres.database()
    session = lab.held_session(url, TRIALS)
    postgres.kill()
    lab.say("far")
    postgres.start()
    session.finish()
    check_ok(check_records(url, TRIALS))
