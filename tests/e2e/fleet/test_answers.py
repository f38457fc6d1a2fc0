"""A worker that answers wrongly, rubbish, too late, twice or not at all, beside one that works."""

import re

import pytest

from anatune.core.trial import Outcome
from anatune.errors import DeviceError
from anatune.fleet.cluster import requests
from anatune.measure.run.build_processes import Limits
from tests.e2e.fleet.lab import LIMITS, check_records, recorded
from tests.e2e.fleet.pretended import time_of

pytestmark = pytest.mark.slow

TRIALS = 12


def check_answers(trials):
    assert {one.measurement.outcome for one in trials} == {Outcome.OK}
    assert all(one.measurement.time_s == time_of(one.schedule.key) for one in trials)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("rubbish", r"valid \w*Answer"),
        ("no bytes", r"dict, expected \w*Answer"),
        ("another number", "another request"),
        ("too many", "2 measurements, expected 1"),
        ("nan", "positive number of seconds"),
        ("full disk", "No space left on device"),
        ("wrong", r"\b3 of its failures\b.*\bon near"),
        ("builds nothing", r"\b3 of its failures\b.*\bon near"),
        ("another key", "schedule '0000000000000000', expected "),
        ("wrong digest", "damaged: .*digest"),
        ("mute", "did not answer within"),
    ],
)
def test_who_answers_badly_is_asked_for_nothing_more(lab, records, monkeypatch, fault, why):
    limits = LIMITS
    if fault == "mute":  # the others answer, however slow the machine is
        monkeypatch.setattr(requests, "_SLACK_S", 1.0)
        limits = Limits(build_s=2.0, run_s=2.0, start_s=2.0)
    lab.say("far", fault=fault)
    session = lab.session(records, TRIALS, limits=limits)
    session.finish()
    states = session.states()
    assert (states["far"].state, states["near"].state) == ("quarantined", "ready"), states
    assert re.search(why, states["far"].why)
    assert "\n" not in states["far"].why
    trials = check_records(records, TRIALS)
    check_answers(trials)
    if fault not in ("builds nothing", "another key", "wrong digest"):  # such a one may measure what others built
        assert {one.measurement.worker for one in trials} == {"near"}


def test_who_answers_twice_is_heard_once(lab, records):
    lab.say("far", fault="twice")
    session = lab.session(records, TRIALS)
    session.finish()
    assert {one.state for one in session.states().values()} == {"ready"}
    trials = check_records(records, TRIALS)
    check_answers(trials)
    assert {one.measurement.worker for one in trials} == {"near", "far"}


def test_a_worker_that_failed_in_one_session_serves_the_next(lab, records, tmp_path):
    lab.say("far", fault="rubbish")
    lab.session(records, TRIALS).finish()
    lab.say("far", fault="")
    session = lab.session(tmp_path / "next.sqlite", TRIALS)
    session.finish()
    assert session.states()["far"].trials > 0


def test_where_nobody_answers_well_the_session_ends_in_one_line(lab, records):
    lab.say("far", fault="nan")
    lab.say("near", fault="rubbish")
    session = lab.session(records, TRIALS, wait_s=1.0)
    with pytest.raises(DeviceError) as raised:
        session.finish()
    text = str(raised.value)
    assert "\n" not in text
    assert re.search(r"\bfar quarantined: [^;]*positive number of seconds", text)
    assert re.search(r"\bnear quarantined: [^;]*valid \w*Answer", text)
    assert text.endswith(f" {len(recorded(records))} trials are kept in {records}, --resume continues")
    lab.two_workers()
    lab.session(records, TRIALS, resume=True).finish()
    check_records(records, TRIALS)
