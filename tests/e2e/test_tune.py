"""``anatune tune`` from the shell: real kernels on this machine, killed, interrupted and resumed."""

import json
import signal
import subprocess
import time

import pytest

pytest.importorskip("tvm")

WORDS = ("tune", "--hw", "host", "matmul", "32x48x24", "--threads", "1")


@pytest.fixture
def records(tmp_path):
    return tmp_path / "tuning.sqlite"


@pytest.fixture
def tune(anatune, records, tmp_path):
    def run(*words, **variables):
        place = ("--records", records, "--output", tmp_path / "best.json")
        return anatune(*(WORDS if not words or words[0] != "tune" else ()), *words, *place, **variables)

    return run


def trials(anatune, records):
    done = anatune("records", "list", records, "--json")
    if done.returncode:
        return []
    return [one for one in json.loads(done.stdout) if one["source"] != "compare"]


def test_tune(anatune, tune, records, tmp_path):
    done = tune(*WORDS[:-2], "--trials", 5, "--json", TVM_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert tree["threads"] == 1  # of the environment
    assert [one["number"] for one in tree["trials"]] == [0, 1, 2, 3, 4]
    assert tree["trials"][0]["source"] == "plan"
    assert tree["outcomes"] == {"ok": 5}
    assert all(one["measurement"]["max_rel_error"] < 1e-4 for one in tree["trials"])
    assert tree["compare"]["best"] == tree["best"]
    assert len(trials(anatune, records)) == 5
    written = json.loads((tmp_path / "best.json").read_text())
    assert written == tree["best_schedule"]
    assert "trial 5/5" in done.stderr
    assert "\x1b" not in done.stderr

    more = tune("--trials", 7, "--resume")
    assert more.returncode == 0, more.stderr
    assert "7 trials (5 of them resumed)" in more.stdout
    assert "best: trial" in more.stdout
    assert "plan's first choice" in " ".join(more.stdout.split())
    assert max(map(len, more.stdout.splitlines())) <= 80 + len(str(tmp_path))
    assert [one["number"] for one in trials(anatune, records)] == list(range(7))


def start(script, environment, records, tmp_path, *words):
    """Start tuning and wait until some trials are recorded."""
    command = [script, *WORDS, "--records", records, "--output", tmp_path / "best.json", *words]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("trial "):
            break
    time.sleep(1.0)
    assert process.poll() is None, "".join(lines)
    return process


def test_killed_and_resumed(anatune, script, environment, records, tmp_path, tune):
    process = start(script, environment, records, tmp_path, "--trials", "400", "--strategy", "grid")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = trials(anatune, records)
    assert before
    wanted = len(before) + 3
    done = tune("--trials", wanted, "--strategy", "grid", "--resume")
    assert done.returncode == 0, done.stderr
    after = trials(anatune, records)
    assert after[: len(before)] == before
    assert [one["number"] for one in after] == list(range(wanted))
    assert len({one["schedule_key"] for one in after}) == wanted
    assert len(json.loads(anatune("records", "list", records, "--sessions", "--json").stdout)) == 1


@pytest.mark.usefixtures("interruptible")
def test_interrupted_and_resumed(anatune, script, environment, records, tmp_path, tune):
    page = tmp_path / "page.html"
    process = start(script, environment, records, tmp_path, "--trials", "400", "--strategy", "random", "--html", page)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    last = err.splitlines()[-1]
    assert last.startswith("error: interrupted after ")
    assert "--resume" in last
    assert "Traceback" not in err
    assert "best: trial" in out
    assert (tmp_path / "best.json").exists()
    assert "How the best was found" in page.read_text()
    before = trials(anatune, records)
    assert f"interrupted after {len(before)} of 400 trials" in last
    done = tune("--trials", len(before) + 1, "--strategy", "random", "--resume")
    assert done.returncode == 0, done.stderr
    assert trials(anatune, records)[: len(before)] == before


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("tune", "--hw", "k20", "matmul", "8x8x8"), 1, "k20"),
        (("tune", "--hw", "graviton3", "matmul", "8x8x8"), 1, "--hw host"),
        (("--strategy", "magic"), 1, "expected one of model, "),
        (("--trials", "0"), 2, "a number >= 1, got '0'"),
        (("--seed", "-1"), 2, "expected a number >= 0, got '-1'"),
        (("--threads", "100000"), 1, "threads is 100000, expected an integer from 1 to"),
        (("tune", "--hw", "host"), 2, "the workload is missing"),
        (("tune",), 2, "Missing option '--hw'"),
        (("--l2", "warm"), 2, "--l2 is for GPUs"),
        (("--build-only", "x"), 1, "is for GPUs"),
        (("--build-only", "x", "--manifest", "y"), 2, "--manifest"),
        (("tune", "--manifest", "nothing"), 1, "expected a folder that `anatune tune --build-only` wrote"),
        (("tune", "--hw", "host", "matmul", "512xabc"), 1, "512xabc"),
    ],
)
def test_wrong_words_are_one_line(tune, records, words, status, text):
    done = tune(*words)
    assert done.returncode == status, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: ")
    assert text in done.stderr
    assert done.stdout == ""
    assert not records.exists()


def test_kernels_for_another_machine(anatune, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    folder, words = tmp_path / "kernels", ("matmul", "64x64x64")
    done = anatune("tune", "--hw", "h200", *words, "--build-only", folder, "--trials", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kernels"] == 2
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    assert len(list(folder.glob("*.cubin"))) == 1 + len({one["artifact"]["image"] for one in manifest["entries"]})
    there = anatune("tune", "--manifest", folder, "--records", tmp_path / "r.sqlite")
    if there.returncode:  # no such GPU
        assert there.returncode == 1
        assert there.stderr.startswith("error: ")
        assert there.stderr.count("\n") == 1
    other = anatune("tune", "--hw", "amd_mi50", *words, "--build-only", folder)
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "gfx906" in other.stderr


def test_other_problems_are_one_line(anatune, tmp_path):
    words = ("tune", "--hw", "host", "matmul", "8x8x8")
    done = anatune(*words, TVM_NUM_THREADS="many")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "TVM_NUM_THREADS is 'many'" in done.stderr
    done = anatune(*words, "--output", tmp_path / "nowhere" / "best.json")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    done = anatune(*words, "--output", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is a folder" in done.stderr
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_text("no database at all, but long enough to look like one" * 100)
    done = anatune(*words, "--records", damaged, "--output", tmp_path / "best.json")
    assert done.returncode == 1
    assert "damaged.sqlite" in done.stderr.splitlines()[-1]
    assert damaged.read_text().startswith("no database")
