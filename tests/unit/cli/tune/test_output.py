"""``anatune tune``'s answer where its file cannot be written, and files that are none."""

import errno
import json
import os
import stat
import threading

import pytest

from anatune.cli import output
from anatune.cli.tune import output as tune_output
from anatune.errors import RecordError
from anatune.tuning.result import TuningInterrupted
from tests.unit.tuning.fakes import failed, session


def test_what_was_found_is_said_though_it_cannot_be_written(monkeypatch, capsys, tmp_path):
    def write_text(target, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    monkeypatch.setattr(tune_output, "write_text", write_text)
    records = tmp_path / "r.sqlite"
    result = session(3, records=records).run()
    with pytest.raises(RecordError, match=r"best\.json: no space left on device, .*r\.sqlite") as caught:
        tune_output.show_result(result, tmp_path / "best.json", as_json=True)
    assert "\n" not in str(caught.value)
    tree = json.loads(capsys.readouterr().out)
    assert (tree["output"], len(tree["trials"])) == (None, 3)


def test_a_pipe_is_written_to_not_replaced(tmp_path):
    path, found = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: found.append(path.read_text()), daemon=True)
    reader.start()
    output.write_text(path, ["a", "b"])
    reader.join(10)
    assert found == ["ab"]
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_what_happens_to_machines_is_said_once(capsys):
    from anatune.cli.tune.output import Display
    from anatune.measure.place import WorkerState
    from anatune.tuning.result import TuningProgress

    ready = (WorkerState("gpu1", "NVIDIA H200"), WorkerState("gpu2", "NVIDIA H200"))
    lost = (ready[0], WorkerState("gpu2", "NVIDIA H200", "lost", "its connection closed"))
    with Display() as display:
        for number, workers in enumerate((ready, ready, lost, lost), 1):
            display(TuningProgress("measure", number, 9, workers=workers))
    said = capsys.readouterr().err.splitlines()
    assert said.count("workers gpu1, gpu2 joined: NVIDIA H200") == 1
    assert said.count("worker gpu2 is lost: its connection closed") == 1


def test_who_measured_for_a_model_is_said_at_the_end(capsys):
    from anatune.cli.tune.output import ModelDisplay
    from anatune.measure.place import WorkerState
    from anatune.tuning.result import ModelProgress

    workers = (WorkerState("gpu1", "NVIDIA H200", trials=5), WorkerState("gpu2", "NVIDIA H200", "lost", "gone", 3, 1))
    with ModelDisplay() as display:
        display(ModelProgress("matmul 8x8x8", 8, 8, 0.002, 0.003, 6.0, 0.0, workers, 1.25))
    lines = capsys.readouterr().err.splitlines()
    assert "; 1 of 2 devices, 1.25 trials/s; " in lines[2]
    assert lines[3].split() == ["worker", "trials", "failed", "state", "device"]
    assert lines[4].split()[:4] == ["gpu1", "5", "0", "ready"]
    assert lines[6] == "  gone"
    with ModelDisplay() as display:
        display(ModelProgress("matmul 8x8x8", 8, 8, 0.002, 0.003, 6.0, 0.0))
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("stopped", [False, True], ids=["to its end", "interrupted"])
def test_a_session_is_a_page(tmp_path, capsys, stopped):
    script = {1: failed(message="<script>no</script>"), **({3: KeyboardInterrupt()} if stopped else {})}
    tuning = session(4, records=tmp_path / "r.sqlite", script=script)
    try:
        result = tuning.run()
    except TuningInterrupted as stop:
        result = stop.result
    assert (len(result.trials) == 3) == stopped
    tune_output.write_session(result, None, tmp_path / "r.sqlite")
    tune_output.write_session(result, tmp_path / "page.html", tmp_path / "r.sqlite")
    assert capsys.readouterr().err.startswith(f"page: {tmp_path / 'page.html'}, ")
    text = (tmp_path / "page.html").read_text()
    assert ("Final comparison" in text) != stopped
    assert ("interrupted" in text.partition("</main>")[0]) == stopped
    assert "&lt;script&gt;no&lt;/script&gt;" in text
    assert "Seconds count from the beginning of the session" in text  # of the records, not of building and running
    (tmp_path / "r.sqlite").write_bytes(b"damaged")
    tune_output.write_session(result, tmp_path / "other.html", tmp_path / "r.sqlite")
    assert "note: the page has no seconds of the trials: " in capsys.readouterr().err
    assert "&lt;script&gt;no&lt;/script&gt;" in (tmp_path / "other.html").read_text()
