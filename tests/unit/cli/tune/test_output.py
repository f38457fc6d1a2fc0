"""``anatune tune``'s answer where its file cannot be written, and files that are none."""

import json
import re

import pytest

from anatune.cli.main import main
from anatune.cli.outputs import PAGE, SCHEDULE
from anatune.cli.tune import output as tune_output
from anatune.core.schedule import Schedule
from anatune.errors import RecordError
from anatune.files import Output
from anatune.tuning.result import TuningInterrupted
from tests.unit.tuning.fakes import failed, session
from tests.wording import refuses


def test_what_was_found_is_said_though_it_cannot_be_written(capsys, tmp_path):
    records = tmp_path / "r.sqlite"
    result = session(3, records=records).run()
    with refuses(RecordError) as caught:
        tune_output.show_result(result, Output("/dev/full", SCHEDULE), as_json=True)
    assert "\n" not in str(caught.value)
    tree = json.loads(capsys.readouterr().out)
    assert (tree["output"], len(tree["trials"])) == (None, 3)


def test_the_best_schedule_is_exported_from_the_records_or_its_file(capsys, tmp_path):
    result = session(3, records=tmp_path / "r.sqlite").run()
    tune_output.show_result(result, None, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    words = re.search(r"`anatune (export .*?) --format so --output DIR`", said)[1].split()
    assert main([*words, "--format", "tvm", "--output", str(tmp_path / "lib")]) == 0
    exported = Schedule.from_json((tmp_path / "lib" / "matmul_48x64x36.json").read_text())
    assert exported == result.best
    tune_output.show_result(result, Output(tmp_path / "best.json", SCHEDULE), as_json=False)
    assert f"`anatune export {tmp_path / 'best.json'} --format so" in " ".join(capsys.readouterr().out.split())


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
    from anatune.measure.place import WorkerState
    from anatune.network.cli.display import ModelDisplay
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
    tune_output.write_session(result, Output(tmp_path / "page.html", PAGE), tmp_path / "r.sqlite")
    assert capsys.readouterr().err.startswith(f"page: {tmp_path / 'page.html'}, ")
    text = (tmp_path / "page.html").read_text()
    assert ("Final comparison" in text) != stopped
    assert ("interrupted" in text.partition("</main>")[0]) == stopped
    assert "&lt;script&gt;no&lt;/script&gt;" in text
    assert "Seconds count from the beginning of the session" in text  # of the records, not of building and running
    (tmp_path / "r.sqlite").write_bytes(b"damaged")
    tune_output.write_session(result, Output(tmp_path / "other.html", PAGE), tmp_path / "r.sqlite")
    assert "note: the page " in capsys.readouterr().err
    assert "&lt;script&gt;no&lt;/script&gt;" in (tmp_path / "other.html").read_text()
