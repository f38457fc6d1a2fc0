"""Connections that drop, stall or crawl: between a worker and the scheduler, between a session and the scheduler."""

import contextlib

import pytest

from anatune.core.trial import Outcome
from anatune.errors import DeviceError
from anatune.fleet.cluster import dask_fleet, roster
from tests.e2e.fleet.lab import check_records, recorded, wait_until
from tests.e2e.fleet.proxy import Proxy

pytestmark = pytest.mark.slow

TRIALS = 12


@pytest.fixture
def session_line(lab):
    """The line of a session."""
    with contextlib.closing(Proxy(lab.port)) as proxy:
        yield proxy


def check_ok(records):
    assert {one.measurement.outcome for one in check_records(records, TRIALS)} == {Outcome.OK}


def test_a_line_that_drops_comes_back(lab, records):
    joined = lab.named["far"].said.count("far joined")
    session = lab.held_session(records, TRIALS)
    lab.line.cut()
    lab.say("far")
    session.finish()
    check_ok(records)
    lab.has_joined("far", lab.named["far"], times=joined + 1)


def test_a_line_that_drops_again_and_again(lab, records):
    lab.say("near", run_s=0.1)
    session = lab.session(records, TRIALS)
    for count in (2, 5, 8):
        session.has_reported(count)
        lab.line.cut()
    session.finish()
    check_ok(records)


def test_a_silent_line_stalls_nobody_else(lab, records, monkeypatch):
    monkeypatch.setattr(roster, "_SILENT_S", 4.0)
    session = lab.held_session(records, TRIALS)
    lab.line.hold()
    try:
        session.finish()
    finally:
        lab.line.release()
        lab.say("far")
    check_ok(records)
    far = session.states()["far"]
    assert far.state == "lost"
    assert "4 s" in far.why


def test_after_the_silence_the_worker_serves_again(lab, records, monkeypatch):
    monkeypatch.setattr(roster, "_SILENT_S", 4.0)
    session = lab.held_session(records, TRIALS)
    lab.line.hold()
    wait_until("silence", lambda: session.done == TRIALS - 1 or not session.is_alive())
    lab.line.release()
    lab.say("far")
    session.finish()
    check_ok(records)
    session = lab.session(records.with_suffix(".again"), TRIALS)
    session.finish()
    assert session.states()["far"].trials > 0


def test_a_slow_line_only_takes_longer(lab, records):
    lab.line.delay_s = 0.05
    try:
        session = lab.session(records, TRIALS)
        session.finish()
    finally:
        lab.line.delay_s = 0.0
    check_ok(records)
    assert {one.state for one in session.states().values()} == {"ready"}


@pytest.mark.parametrize("fault", [Proxy.cut, Proxy.hold, Proxy.close])
def test_a_session_cut_off_ends_in_one_line_and_resume_goes_on(lab, session_line, records, monkeypatch, fault):
    monkeypatch.setattr(dask_fleet, "_SCHEDULER_S", 4.0)
    session = lab.held_session(records, TRIALS, address=session_line.address)
    fault(session_line)
    with pytest.raises(DeviceError) as raised:
        session.finish()
    before = recorded(records)
    text = str(raised.value)
    assert "\n" not in text
    assert text.startswith(session_line.address)
    assert text.endswith(f"; {len(before)} trials are kept in {records}, --resume continues")
    lab.say("far")
    lab.session(records, TRIALS, resume=True).finish()
    check_ok(records)
    assert recorded(records)[: len(before)] == before
