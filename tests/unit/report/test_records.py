"""Tables of records."""

import pytest

import anatune
from anatune.core.trial import Outcome
from anatune.records.store import RecordStore
from anatune.report.records import best_lines, peak_of_threads, session_lines, trial_lines
from anatune.report.roofline import peak_flop_per_s
from tests.unit.records.making import CPU, MATMUL, failed, ok, session_of, trial


@pytest.fixture
def store(tmp_path):
    with RecordStore(tmp_path / "a.sqlite") as made:
        session = session_of(made)
        made.append(session, trial(0, failed(Outcome.RUN_ERROR, "signal 11\nin main")))
        made.append(session, trial(1, ok(times=(2e-6, 2e-6), references=(1e-6, 1e-6))))
        session_of(made, strategy="random")
        yield made


def test_peak_of_threads():
    peak = peak_flop_per_s(CPU, "float32")
    assert peak_of_threads(CPU, "float32", 1) == peak / CPU.compute.num_cores
    assert peak_of_threads(CPU, "float32", 10_000) == peak
    gpu = anatune.hardware("rtx3090")
    assert peak_of_threads(gpu, "float32", 1) == peak_flop_per_s(gpu, "float32")
    assert peak_of_threads(gpu, "float16", 1, "triton") == gpu.tensor_cores.float16_flop_per_s


def test_trials(store):
    lines = trial_lines(store.trials(), 400)
    assert [line.style for line in lines] == ["bold", "bold", "yellow", "dim", "", "dim", "dim"]
    assert lines[3].text.strip() == "signal 11 in main"
    assert "as measured then" in lines[-1].text
    assert "98.3" in lines[4].text
    assert " 2.00 " in lines[4].text
    assert lines[5].text.strip() == store.trials()[1].trial.schedule.describe()


def test_lines_are_no_wider_than_the_terminal(store):
    for width in (80, 100):
        lines = [*trial_lines(store.trials(), width), *best_lines(store.bests(), width)]
        assert max(len(line.text) for line in lines) <= width
    schedule = store.trials()[1].trial.schedule.describe()
    assert len(schedule) > 60
    narrow = [line.text.strip() for line in trial_lines(store.trials(), 60)]
    assert schedule in " ".join(narrow)


def test_sessions(store):
    sessions = store.sessions()
    counts = {one.id: store.counts(one) for one in sessions}
    lines = session_lines(sessions, counts, {one.id: store.best(MATMUL, session=one) for one in sessions})
    assert len(lines) == 3
    assert "2.000 us" in lines[1].text
    assert lines[2].text.split()[6:9] == ["0", "-", "-"]


def test_best(store):
    lines = best_lines(store.bests(), 400)
    assert len(lines) == 5
    assert lines[2].text.strip() == store.bests()[0].trial.schedule.describe()
