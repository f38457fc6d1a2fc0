"""Boards that die, stall or come back, and a tracker that goes: no trial is lost or told twice, and it is said."""

import os
import re
import shutil
import signal
import threading

import pytest

pytest.importorskip("tvm")
pytest.importorskip("tornado", reason="TVM's tracker needs tornado")

import anatune
from anatune.core.trial import Outcome
from anatune.errors import DeviceError
from anatune.measure.run.build_processes import Limits
from anatune.records.choice import COMPARED
from anatune.records.store import RecordStore
from tests.board_lab import Lab

pytestmark = pytest.mark.slow

WORKLOAD = anatune.matmul(24, 48, 32)
LIMITS = Limits(build_s=60, run_s=3)
TRIALS = 8
NEEDS_COMPILER = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def lab(tmp_path, monkeypatch):
    monkeypatch.setattr("anatune.fleet.boards.measurer.SILENCE_S", 1.0)
    monkeypatch.setattr("anatune.fleet.boards.measurer.WAIT_S", 2.0)
    place = tmp_path / "lab"
    place.mkdir()
    with Lab(place) as started:
        yield started


def tune(lab, path, *, on=None, trials=TRIALS, resume=False):
    """Tune on the boards of key "k"; `on`: {trials done: what to do then}."""
    states = []

    def progress(now):
        if now.stage == "measure":
            states[:] = now.workers
        if now.stage == "measure" and on and now.done in on:
            on.pop(now.done)()

    found = anatune.tune(
        WORKLOAD, "host", trials, tracker=lab.tracker, key="k", records=path, threads=1, limits=LIMITS, template="cpu",
        progress=progress, resume=resume, strategy="random", reuse=False,
    )  # fmt: skip
    return found, {state.name: state for state in states}


def recorded(path):
    with RecordStore(path) as store:
        return [record.trial for record in store.trials() if record.trial.source != COMPARED]


def check_whole(path):
    """Every trial is in the records, once."""
    found = recorded(path)
    assert [trial.number for trial in found] == list(range(TRIALS))
    assert len({trial.schedule.key for trial in found}) == TRIALS


@NEEDS_COMPILER
def test_a_server_killed_in_the_middle_of_a_trial(lab, tmp_path):
    doomed, other = lab.python_board("k"), lab.small_board("k")
    result, states = tune(lab, tmp_path / "r.sqlite", on={3: lambda: lab.end(doomed)})
    assert len(result.trials) == TRIALS
    assert all(trial.measurement.outcome is Outcome.OK for trial in result.trials)
    check_whole(tmp_path / "r.sqlite")
    gone = [state for state in states.values() if state.state == "lost"]
    assert len(states) == 2
    assert len(gone) == 1
    assert re.search(r"\bboard\b.*\bk\b.*\b2 s\b", gone[0].why)
    assert sum(state.trials for state in states.values()) == TRIALS
    assert lab.processes[other].poll() is None


@NEEDS_COMPILER
def test_a_server_that_stalls(lab, tmp_path):
    stalled = lab.small_board("k")
    lab.small_board("k")
    result, states = tune(lab, tmp_path / "r.sqlite", on={2: lambda: lab.signal(stalled, signal.SIGSTOP)})
    lab.signal(stalled, signal.SIGCONT)
    assert len(result.trials) == TRIALS
    assert all(trial.measurement.outcome is Outcome.OK for trial in result.trials)
    check_whole(tmp_path / "r.sqlite")
    assert [state.state for state in states.values()].count("lost") == 1


@NEEDS_COMPILER
def test_a_board_comes_back_under_a_session(lab, tmp_path):
    """With one board its server is killed, and started again while the session looks for a board."""
    first = lab.small_board("k")
    again = threading.Timer(0.5, lambda: lab.small_board("k"))

    def restart():
        lab.end(first)
        again.start()

    result, _ = tune(lab, tmp_path / "r.sqlite", on={3: restart})
    again.join()
    assert len(result.trials) == TRIALS
    assert all(trial.measurement.outcome is Outcome.OK for trial in result.trials)
    assert len({trial.measurement.worker for trial in result.trials}) == 2
    check_whole(tmp_path / "r.sqlite")


@NEEDS_COMPILER
def test_a_tracker_that_goes_takes_no_session_with_it_and_a_board_does(lab, tmp_path):
    """Boards are found through the tracker, not reached through it; ours come back to the next one."""
    path = tmp_path / "r.sqlite"
    board = lab.small_board("k")
    with pytest.raises(DeviceError) as caught:
        tune(lab, path, on={2: lambda: lab.end("tracker"), 5: lambda: lab.end(board)})
    said = str(caught.value)
    assert f"the tracker {lab.tracker} cannot be reached: connection refused" in said
    assert f"trials are kept in {path}, --resume continues" in said
    assert "\n" not in said
    kept = len(recorded(path))
    assert 5 <= kept < TRIALS
    lab.start_tracker()
    lab.small_board("k")
    result, _ = tune(lab, path, resume=True)
    assert result.num_resumed == kept
    assert len(result.trials) == TRIALS
    check_whole(path)
    assert {name for name in os.listdir(tmp_path) if not name.startswith("r.sqlite")} == {"lab"}  # nothing stays behind
