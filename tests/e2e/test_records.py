"""``anatune records`` from the shell."""

import csv
import io
import json
import sqlite3

import pytest

from anatune.records.store import RecordStore
from tests.unit.records.making import CONV, failed, ok, schedule, session_of, trial


@pytest.fixture
def path(tmp_path):
    """Return a record file: matmul on one thread, conv2d on two."""
    with RecordStore(tmp_path / "tuning.sqlite") as store:
        first, second = session_of(store), session_of(store, workload=CONV, threads=2, strategy="random")
        store.append(first, trial(0, failed()))
        store.append(first, trial(1, ok(times=(2e-6,) * 3, references=(1e-6,) * 3)))
        store.append(first, trial(2, ok(times=(4e-6,), stopped_early=True)))
        store.append(second, trial(0, ok(times=(3e-5,)), schedule=schedule(1, CONV), threads=2))
    return tmp_path / "tuning.sqlite"


def bad(done, status, *parts):
    assert done.returncode == status, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_list(anatune, path):
    done = anatune("records", "list", "--records", path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    told = [line for line in lines if not line.startswith("    ")]  # schedules and messages are indented
    assert told[1].startswith("matmul 64x48x32 on xeon_8124m, 1 thread: session ")
    assert lines[lines.index(told[3]) + 1].strip() == "LLVM said no"
    assert "2.000 us" in told[4]
    assert "98.3" in told[4]
    assert " 1* " in " ".join(told)
    assert any(line.startswith("conv2d 1x8x14x14 16x8x3x3 --padding 1 on xeon_8124m, 2 threads") for line in told)
    assert anatune("records", "list", path).stdout == done.stdout


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        ("", [0, 1, 2, 0]),
        ("matmul 64x48x32", [0, 1, 2]),
        ("conv2d 1x8x14x14 16x8x3x3 --padding 1", [0]),
        ("conv2d 1x8x14x14 16x8x3x3", []),
        ("--outcome ok --limit 2", [2, 0]),
        ("--outcome build_error", [0]),
        ("--threads 2", [0]),
        ("--hw xeon_8124m", [0, 1, 2, 0]),
        ("--hw rtx3090", []),
    ],
)
def test_list_json(anatune, path, words, numbers):
    done = anatune("records", "list", *words.split(), "--records", path, "--json")
    assert done.returncode == 0, done.stderr
    assert [one["number"] for one in json.loads(done.stdout)] == numbers
    if not numbers:
        assert anatune("records", "list", *words.split(), "--records", path).stdout.startswith("no trials in ")


def test_sessions(anatune, path):
    found = json.loads(anatune("records", "list", path, "--sessions", "--json").stdout)
    assert [one["trials"] for one in found] == [{"ok": 2, "build_error": 1}, {"ok": 1}]
    lines = anatune("records", "list", path, "--sessions").stdout.splitlines()
    assert len(lines) == 3
    assert lines[1].startswith(found[0]["id"][:8])
    only = anatune("records", "list", path, "--session", found[1]["id"][:12], "--json")
    assert [one["workload"] for one in json.loads(only.stdout)] == ["conv2d 1x8x14x14 16x8x3x3 --padding 1"]
    bad(anatune("records", "list", path, "--session", "zz"), 1, str(path), "no session id begins with 'zz'")


def test_best(anatune, path):
    lines = anatune("records", "best", path).stdout.splitlines()
    assert len([line for line in lines if "xeon_8124m" in line]) == 2
    assert [word for word in ("peak: ", "time: ") if not any(line.startswith(word) for line in lines)] == []
    assert max(len(line) for line in lines if line.startswith("    ")) <= 80
    assert lines[1].split()[:2] == ["2.000", "us"]
    first, second = json.loads(anatune("records", "best", "--records", path, "--json").stdout)
    assert (first["number"], first["threads"], second["threads"]) == (1, 1, 2)
    assert first["schedule"]["unroll"] == 2
    assert 0 < first["peak_fraction"] < 1
    assert first["relative"] == 2.0


def test_export_and_import(anatune, path, tmp_path):
    text = anatune("records", "export", path).stdout
    assert len(text.splitlines()) == 6
    file = tmp_path / "out.jsonl"
    assert anatune("records", "export", path, "--output", file).stdout == ""
    assert file.read_text() == text
    other = tmp_path / "other.sqlite"
    assert "added 2 sessions and 4 trials" in anatune("records", "import", file, "--records", other).stdout
    assert anatune("records", "export", other).stdout == text
    rows = list(csv.DictReader(io.StringIO(anatune("records", "export", path, "--format", "csv").stdout)))
    assert [row["outcome"] for row in rows] == ["build_error", "ok", "ok", "ok"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other.sqlite", "out.jsonl", "tuning.sqlite"]


def test_bad_input(anatune, path, tmp_path):
    before = path.read_bytes()
    bad(anatune("records", "list", tmp_path / "none.sqlite"), 1, "none.sqlite: no such file", "anatune tune")
    bad(anatune("records", "list", path, "matmul", "8x8"), 1, "MxNxK")
    bad(anatune("records", "list", path, "--nonsense"), 2, "--nonsense")
    bad(anatune("records", "list", path, "--stride", "2"), 2, "--stride")
    bad(anatune("records", "list", path, "--records", path), 2, "two record files")
    bad(anatune("records", "list", path, "--limit", "0"), 2, "--limit")
    bad(anatune("records", "list", path, "--outcome", "fine"), 2, "build_timeout")
    bad(anatune("records", "list", path, "--sessions", "--limit", "3"), 2, "--sessions")
    bad(anatune("records", "export", path, "--format", "xml"), 2, "'xml'", "'jsonl', 'csv', 'tvm'")
    bad(anatune("records", "export", path, "--format", "tvm"), 2, "--output FOLDER")
    bad(anatune("records", "export", path, "--output", path), 1, "tuning.sqlite: is something else")
    bad(anatune("records", "export", path, "--output", tmp_path / "no" / "x"), 1, "does not exist")
    bad(anatune("records", "export", path, "--output", "/dev/full"), 1, "no space left")
    bad(anatune("records"), 2, "command")
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_damaged_file(anatune, path, tmp_path):
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"number":1,', b'"number":x,', 1))
    done = anatune("records", "list", path, "--json")
    assert (done.returncode, [row["number"] for row in json.loads(done.stdout)]) == (0, [0, 2, 0])
    assert done.stderr.count("\n") == 1
    assert "note: " in done.stderr
    assert "trial with id 2 is damaged" in done.stderr
    assert "export --format jsonl" in done.stderr
    for words in (["best", path], ["best", path, "matmul", "64x48x32"], ["list", path, "--sessions"]):
        done = anatune("records", *words)
        assert done.returncode == 0
        assert "4.000 us" in done.stdout  # the next best
        assert done.stderr.count("trial with id 2 is damaged") == 1
    done = anatune("records", "export", path)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 5
    assert "left out" in done.stderr
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER sessions_UPDATE")
    connection.execute("UPDATE sessions SET seed = seed + 1 WHERE number = 1")
    connection.commit()
    connection.close()
    done = anatune("records", "export", path)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2  # the other session and its trial
    assert "session" in done.stderr
    path.write_bytes(data[:5000])
    bad(anatune("records", "list", path), 1, str(path), "damaged")
    path.write_text("no database at all " * 100)
    bad(anatune("records", "best", path), 1, str(path), "no SQLite file")
