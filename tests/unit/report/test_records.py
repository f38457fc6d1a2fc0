"""Tables of records."""

import math

import pytest

import anatune
from anatune.cli import main
from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.errors import SpaceError
from anatune.records.store import RecordStore
from anatune.report.records import best_lines, peak_of_threads, session_lines, trial_lines
from anatune.report.roofline import peak_flop_per_s
from tests.unit.records.making import CPU, MATMUL, failed, ok, session_of, trial
from tests.wording import refuses


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
    assert "as measured" in lines[-1].text
    assert "98.3" in lines[4].text
    assert " 2.00 " in lines[4].text
    assert lines[5].text.strip() == store.trials()[1].trial.schedule.describe()


def test_trials_of_a_template_that_is_gone_are_listed_without_a_share(tmp_path, capsys):
    """A file of a former version: no peak is known for its unit, and no schedule of it is planned or built."""
    sizes = {"m": (4, 1, 1, 16), "n": (4, 1, 2, 8), "k": (4, 1, 16)}
    device, half = anatune.hardware("a100_sxm"), anatune.matmul(64, 64, 64, dtype="float16")
    gone = Schedule(half, device, "tensorcore", sizes, 0, {"A": 8, "B": 8}, {"stages": 3, "group": 1})
    kept = anatune.space(half, device).sample(1, 0)[0]
    path = tmp_path / "old.sqlite"
    with RecordStore(path) as made:
        session = made.new_session(half, device, 1, "model", 0)
        made.append(session, Trial(gone, ok(times=(1e-6,)), 0))
        made.append(session, Trial(kept, ok(times=(2e-6,)), 1))
    assert math.isnan(peak_of_threads(device, "float16", 1, "tensorcore"))
    for words in ("list", "best", "list --json", "best --json", "report", "export --format csv", "export"):
        command, *options = words.split()
        status = main.main(["records", command, str(path), *options])
        captured = capsys.readouterr()
        noted = "note: trials of the template tensorcore are left out: this version of anatune does not have it"
        assert status == 0, words
        assert captured.err.startswith(noted) if command == "report" else captured.err == "", words
        assert "m=4x1x1x16" in captured.out or "tensorcore" in captured.out or command == "report", words
    assert main.main(["plan", "--hw", "a100_sxm", "matmul", "64x64x64", "--template", "tensorcore"]) == 2
    assert "amx; triton serves matrix units" in capsys.readouterr().err
    words = f"export --records {path} matmul 64x64x64 --dtype float16 --output {tmp_path / 'out'}"
    assert main.main(words.split()) == 1
    assert capsys.readouterr().err.endswith("for a100_sxm; triton serves matrix units\n")
    with refuses(SpaceError):
        Schedule.from_json(gone.to_json())


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
