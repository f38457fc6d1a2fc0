"""``anatune compile`` and ``run`` from the shell: killed and resumed, and all that can be wrong with what is given."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from anatune.records.store import RecordStore
from tests.unit.network.compiling import folders, models

pytest.importorskip("tvm")
pytest.importorskip("onnx")


@pytest.fixture
def path(tmp_path):
    models.onnx_network(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def trials(records):
    with RecordStore(records) as store:
        return [record.trial.schedule.key for record in store.trials() if record.trial.source != "compare"]


# ---- killed ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_and_resumed(script, environment, anatune, path, tmp_path):
    records, folder = tmp_path / "tuning.sqlite", tmp_path / "model"
    words = ["compile", path, "-o", folder, "--threads", "1", "--records", records]
    process = subprocess.Popen(
        [script, *map(str, words), "--trials", "400"], stderr=subprocess.PIPE, text=True, env=environment
    )
    for line in process.stderr:
        if line.startswith("trial ") and not line.startswith("trial 0/"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = trials(records)
    assert before
    left = {entry.name for entry in tmp_path.iterdir() if not entry.name.startswith("tuning.sqlite")}
    assert left == {"model.onnx"}
    done = anatune(*words, "--trials", len(before) + 2, "--resume")
    assert done.returncode == 0, done.stderr
    after = trials(records)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == len(before) + 2
    assert "measured when it was compiled: " in " ".join(done.stdout.split())
    again = anatune(*words, "--trials", len(after))
    assert again.returncode == 0, again.stderr  # its trials are all in the file: none is measured
    assert trials(records) == after


# ---- bad input ---------------------------------------------------------------------------------------------


def refused(done, *parts, status=1):
    """Check that a command failed with one line that says something."""
    assert done.returncode == status, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("note: ", "[", "trial "))]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def compile_file(anatune, tmp_path):
    def run(model, *words):
        before = set(tmp_path.iterdir())
        done = anatune("compile", model, "-o", tmp_path / "out", "--threads", "1", *words)
        assert set(tmp_path.iterdir()) == before  # nothing half-written
        return done

    return run


def test_paths_that_are_no_models(compile_file, tmp_path):
    refused(compile_file(tmp_path / "none.onnx"), "none.onnx does not exist, expected an ONNX file")
    refused(compile_file(tmp_path), "is a folder, expected an ONNX file")
    for name in ("notes.txt", "notes.onnx"):
        (tmp_path / name).write_text("some text\n")
        refused(compile_file(tmp_path / name), f"{name}: ", "expected an ONNX file (or NAME.pt2)")
    (tmp_path / "empty.onnx").write_bytes(b"")
    refused(compile_file(tmp_path / "empty.onnx"), "empty.onnx: ", "ONNX model")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_onnx_files(compile_file, path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    refused(compile_file(path), "model.onnx", "export it again")


def test_onnx_files_without_their_weights(compile_file, path, tmp_path):
    import onnx

    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    refused(compile_file(path), "weights.bin is missing", "model.onnx")


def test_truncated_external_weights(compile_file, path, tmp_path):
    import onnx

    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:100])
    refused(compile_file(path), "weights.bin has 100 bytes, model.onnx expects", "export it again")


def test_external_weights_outside_of_the_folder(compile_file, path, tmp_path):
    import onnx

    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "inner").mkdir()
    model = onnx.load(path, load_external_data=False)
    for location in ("../weights.bin", str(tmp_path / "weights.bin")):
        model.graph.initializer[0].external_data[0].value = location
        onnx.save(model, tmp_path / "inner" / "model.onnx")
        refused(compile_file(tmp_path / "inner" / "model.onnx"), "weights.bin", "same folder")


def test_names_do_not_command_the_terminal(anatune, path, tmp_path):
    import onnx

    model = onnx.load(path)
    for name in (model.graph.input[0], model.graph.node[0]):
        name.name = "data\x1b[31m"
    model.graph.node[0].input[0] = "data\x1b[31m"
    onnx.save(model, path)
    written = anatune("compile", path, "-o", tmp_path / "out", "--threads", "1", "--no-check")
    assert written.returncode == 0, written.stderr
    assert r"inputs: data\x1b[31m 1x4x8x8 float32" in written.stdout
    np.save(tmp_path / "x.npy", np.zeros((1, 4, 8), np.float32))
    run = anatune("run", tmp_path / "out", "--input", tmp_path / "x.npy")
    refused(run, r"input data\x1b[31m is 1x4x8 float32")
    assert "\x1b" not in written.stdout + written.stderr + run.stderr


def test_folders_that_are_damaged(anatune, path, tmp_path):
    folder = tmp_path / "out"
    assert anatune("compile", path, "-o", folder, "--threads", "1", "--no-check").returncode == 0
    assert anatune("run", folder).returncode == 0
    (weights,) = folder.glob("weights-*.bin")
    values = np.fromfile(weights, np.float32)
    values[:128] *= -1
    values.tofile(weights)
    for words in (["run", folder], ["run", folder, "--in-memory"]):
        refused(anatune(*words), weights.name, "is damaged: its content has changed; compile the model again")
    values[:128] *= -1
    values.tofile(weights)
    assert anatune("run", folder).returncode == 0
    summary = (folder / "model.json").read_text()
    (folder / "model.json").write_text(summary.replace('"offset": 0', '"offset": 64'))
    refused(anatune("run", folder), "model.json is damaged: ", "compile the model again")
    (folder / "model.json").write_text("[" * 100_000)
    refused(anatune("run", folder), "model.json: ", "summary", "compile it again")
    (folder / "model.json").write_text('{"format": 1, "version": "0.1.0"}')
    refused(anatune("run", folder), "compile it again")


def test_operators_that_nobody_knows(compile_file, path):
    models.onnx_network(path, operator="Nonsense")
    refused(compile_file(path), "model.onnx: ", "Nonsense", "--fallback onnxruntime")


def test_dynamic_axes(compile_file, path, anatune, tmp_path):
    models.onnx_network(path, batch="batch")
    refused(compile_file(path, "--input-shape", "2x4x8x"), "--input-shape", "1x3x224x224", status=2)
    refused(compile_file(path, *2 * ["--input-shape", "2x4x8x8"]), "model.onnx: ", "2 shapes, expected one", "data")
    refused(compile_file(path, "--size", "rows=1..4"), "no size rows, expected ", "batch")
    for words in (("--input-shape", "2x4x8x8"), ("--size", "batch=1..4")):
        assert anatune("compile", path, "-o", tmp_path / "out", *words, "--threads", "1").returncode == 0
    run = anatune("run", tmp_path / "out", "--size", "batch=3")
    assert (run.returncode, run.stdout.split()[1].startswith("3x")) == (0, True), run.stderr
    refused(anatune("run", tmp_path / "out", "--size", "batch=5"), "size batch is 5, expected 1 to 4")


def test_truncated_programs(compile_file, tmp_path):
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4).eval(), (torch.zeros(1, 4),)), str(path))
    whole = path.read_bytes()
    for share in (0.0, 0.5, 0.95):
        path.write_bytes(whole[: int(share * len(whole))])
        done = compile_file(path)
        refused(done, "model.pt2: ", "export it again")
        assert "model.pt2 and runs code" in done.stderr


def test_places_that_cannot_be_written(anatune, path, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for place, said in (
        (folder, "holds 'notes.txt', expected a new folder"),
        (path, "is not a folder, expected a new one"),
        (tmp_path / "none" / "model", "does not exist; make it"),
    ):
        refused(anatune("compile", path, "-o", place, "--threads", "1", "--no-check"), said)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["mine", "model.onnx"]
    assert [one.name for one in folder.iterdir()] == ["notes.txt"]


def test_a_full_disk(anatune, path, tmp_path, monkeypatch):
    folders.fill_disk(monkeypatch)
    refused(anatune("compile", path, "-o", tmp_path / "out", "--threads", "1"), "no space left on device")
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_a_disk_that_is_full_for_temporary_files(environment, path, tmp_path):
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "from anatune.__main__ import run\n"
        f"sys.argv = ['anatune', 'compile', {str(path)!r}, '-o', {str(tmp_path / 'out')!r}, '--threads', '1']\n"
        "run()\n"
    )
    variables = environment | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["model.onnx"]


def test_inputs_of_a_run(anatune, path, tmp_path):
    folder = tmp_path / "model"
    assert anatune("compile", path, "-o", folder, "--threads", "1").returncode == 0
    right = np.zeros((1, 4, 8, 8), np.float32)
    for name, array, said in (
        ("shape", right[:, :3], "input data is 1x3x8x8 float32, expected 1x4x8x8 float32"),
        ("dtype", right.astype(np.float64), "input data is 1x4x8x8 float64, expected 1x4x8x8 float32"),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        refused(anatune("run", folder, "--input", tmp_path / f"{name}.npy"), said)
    np.save(tmp_path / "x.npy", right)
    refused(anatune("run", folder, *2 * ["--input", tmp_path / "x.npy"]), "1 inputs", "got 2", "data (1x4x8x8 float32)")
    (tmp_path / "text.npy").write_text("text")
    refused(anatune("run", folder, "--input", tmp_path / "text.npy"), "expected a file that numpy.save wrote", status=2)
    refused(anatune("run", folder, "--input", tmp_path / "none.npy"), "none.npy: no such file or directory")
    refused(anatune("run", tmp_path), "expected a folder that anatune compile wrote")
    refused(anatune("run", path), "expected a folder that anatune compile wrote")
    assert anatune("run", folder, "--input", tmp_path / "x.npy", "-o", tmp_path / "y.npz").returncode == 0
    assert np.load(tmp_path / "y.npz")["output0"].shape == (1, 8, 8, 8)
