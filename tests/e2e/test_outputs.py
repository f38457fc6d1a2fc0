"""Whatever a command writes because an option names it takes no other file's place, and never waits for a reader.

Each option and argument of the command line that names a file is in one of two tables: a new one has to be put there.
"""

import os
import re
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from anatune.cli.main import load_all_commands
from tests.unit.tuning.fakes import session

CPU = ("--hw", "xeon_gold_6230r", "matmul", "8x8x8")
HOST = ("--hw", "host", "matmul", "8x8x8", "--threads", 1)
EXPERTS = ("--hw", "h100", "--experts", 8, "--intermediate", 2048, "--hidden", 2048, "--top-k", 2, "--rows", 1)
FILES = {
    "plan --html": ("plan", *CPU, "--top-k", 1, "--html"),
    "prune --html": ("prune", *CPU, "--keep", 2, "--html"),
    "tune --html": ("tune", *HOST, "--trials", 1, "--records", "{new}", "--html"),
    "tune --output": ("tune", *HOST, "--trials", 1, "--records", "{new}", "--output"),
    **{
        f"configs {server} --html": ("configs", server, *version, *EXPERTS, "--output", "{new}", "--html")
        for server, version in (("vllm", ()), ("sglang", ("--triton-version", "3.4.0")))
    },
    "compile --html": ("compile", "none.onnx", "-o", "{new}", "--html"),
    "run --output": ("run", "none", "--output"),
    "serving --html": ("serving", "none.json", "--hw", "h100", "--html"),
    "records export --output": ("records", "export", "{records}", "--output"),
    "records report --html": ("records", "report", "{records}", "--html"),
}
"""What writes one file, and the words before its name."""
MORE_FILES = {"records export --format csv": ("records", "export", "{records}", "--format", "csv", "--output")}
FOLDERS = {
    "compile --output": (("compile", "none.onnx", "-o"), "notes.txt"),
    "records train --output": (("records", "train", "--records", "{records}", "--output"), "card.json"),
    "export --output": (("export", *CPU, "--name", "f", "--output"), "f.json"),
    "tune --build-only": (("tune", "--hw", "h200", "matmul", "64x64x64", "--build-only"), "manifest.json"),
    "configs vllm --output": (("configs", "vllm", *EXPERTS, "--output"), "anatune-configs.json"),
    "configs sglang --output": (
        ("configs", "sglang", "--triton-version", "3.4.0", *EXPERTS, "--output"),
        "anatune-configs.json",
    ),
}
"""What writes a folder, or several files into one, and the name of a file that may be somebody else's."""
RECORDS = {
    **{
        f"configs {server} --records": ("configs", server, *version, *EXPERTS, "-o", "{new}", "--measure", "--records")
        for server, version in (("vllm", ()), ("sglang", ("--triton-version", "3.4.0")))
    },
    "tune --records": ("tune", *HOST, "--trials", 1, "--records"),
    "compile --records": ("compile", "none.onnx", "-o", "{new}", "--trials", 1, "--resume", "--records"),
    "records import --records": ("records", "import", "{export}", "--records"),
    "records merge SOURCE... INTO": ("records", "merge", "{records}"),
}
READ = {
    *(f"{command} --hw" for command in ("plan", "prune", "tune", "compile", "records import")),
    *(f"{command} --records" for command in ("plan", "export")),
    *(f"records {command} --records" for command in ("list", "best", "export", "report", "train")),
    *(f"{command} --tls" for command in ("tune", "compile", "worker", "cluster scheduler", "cluster status")),
    *(f"{command} --model" for command in ("plan", "prune")),
    *("export FILE|WORKLOAD...", "compile MODEL", "run DIR", "run --input", "tune --manifest"),
    *(f"configs {command} {option}" for command in ("vllm", "sglang", "check") for option in ("--hw", "--model")),
    *("configs check FILE", "serving FILE|FOLDER", "serving --hw"),
    *(f"configs {server} --against" for server in ("vllm", "sglang")),
    *("hw show NAME|FILE", "hw check FILE", "records import FILE"),
}


def named(command, called=""):
    """Yield the options and arguments of a command, and of those below it, whose values are files or folders."""
    for name, below in getattr(command, "commands", {}).items():
        yield from named(below, f"{called} {name}".strip())
    for one in () if hasattr(command, "commands") else command.params:
        metavar = one.metavar or ""
        if re.search(r"FILE|DIR|FOLDER|PATH|URL|MODEL|SOURCE", metavar):
            yield f"{called} {metavar if one.param_type_name == 'argument' else max(one.opts, key=len)}"


def test_every_option_that_names_a_file_is_known():
    assert set(named(load_all_commands())) == {*FILES, *FOLDERS, *RECORDS, *READ}


@pytest.fixture
def places(tmp_path, anatune):
    records = tmp_path / "records.sqlite"
    session(3, records=records).run()
    export = tmp_path / "records.jsonl"
    assert anatune("records", "export", records, "--output", export).returncode == 0
    return {"records": records, "export": export, "new": tmp_path / "new"}


@pytest.fixture
def written(anatune, places):
    """Run a command with the place that it is to write to; a command that waits is ended."""

    def run(words, place):
        signal.alarm(120)
        try:
            return anatune(*(str(word).format(**places) for word in words), place)
        finally:
            signal.alarm(0)

    return run


def refused(done):
    *_, last = done.stderr.splitlines()
    assert done.returncode in (1, 2), done
    assert last.startswith("error: "), done
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [*FILES.values(), *MORE_FILES.values()], ids=[*FILES, *MORE_FILES])
def test_a_file_takes_the_place_of_nothing_else(written, places, tmp_path, words):
    pytest.importorskip("plotly", reason="pip install '.[report]'")
    before = places["records"].read_bytes()
    (tmp_path / "link").symlink_to(places["records"])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place in ("records.sqlite", "link", "folder", "pipe", Path("none", "file")):
        refused(written(words, tmp_path / place))
    assert places["records"].read_bytes() == before
    assert (tmp_path / "link").is_symlink()
    assert not any((tmp_path / "folder").iterdir())
    assert sorted(one.name for one in tmp_path.iterdir() if not one.name.startswith("records")) == [
        "folder", "link", "pipe",
    ]  # fmt: skip


@pytest.mark.parametrize(("words", "name"), FOLDERS.values(), ids=FOLDERS)
def test_a_folder_takes_the_place_of_nothing_else(written, places, tmp_path, words, name):
    if "--build-only" in words or words[0] == "export":
        pytest.importorskip("tvm")
        pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / name).write_text('{"mine": 1}')
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    for place in ("folder", "link", "pipe", "records.sqlite", Path("none", "folder"), "/dev/full"):
        refused(written(words, tmp_path / place))
    assert [one.name for one in (tmp_path / "folder").iterdir()] == [name]
    assert (tmp_path / "folder" / name).read_text() == '{"mine": 1}'
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("words", RECORDS.values(), ids=RECORDS)
def test_records_take_the_place_of_nothing_else(written, tmp_path, words):
    (tmp_path / "text").write_text("a text that is long enough to look like something" * 40)
    with sqlite3.connect(tmp_path / "other.sqlite") as other:
        other.execute("create table mine (x)")
    other.close()
    before = (tmp_path / "other.sqlite").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for place in ("text", "other.sqlite", "pipe", "none/records.sqlite", "/dev/full"):
        done = written(words, tmp_path / place)
        refused(done)
    assert (tmp_path / "text").read_text().startswith("a text")
    assert (tmp_path / "other.sqlite").read_bytes() == before


@pytest.mark.parametrize("option", ["plan --html", "prune --html", "records export --output", "records report --html"])
def test_a_file_of_its_own_is_replaced_as_a_whole(written, places, tmp_path, option):
    if "html" in option:
        pytest.importorskip("plotly", reason="pip install '.[report]'")
    (tmp_path / "link").symlink_to("file")
    for place in ("file", "file", "link"):
        before = (tmp_path / "file").stat().st_ino if (tmp_path / "file").exists() else None
        done = written(FILES[option], tmp_path / place)
        assert done.returncode == 0, done
        assert (tmp_path / "file").stat().st_ino != before
        assert (tmp_path / "link").is_symlink()
        assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
    refused(written(FILES[option], "/dev/full"))


def test_a_reader_that_goes_away_is_no_error(script, environment, places):
    words = ["records", "export", "--records", places["records"], "--output", "/dev/stdout"]
    with subprocess.Popen([script, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        running.stdout.close()
        assert (running.stderr.read(), running.wait(60)) == (b"", 141)


def test_a_table_of_records_is_replaced_by_its_like_only(written, tmp_path):
    lines, table = FILES["records export --output"], MORE_FILES["records export --format csv"]
    for _ in range(2):
        assert written(table, tmp_path / "file").returncode == 0
    refused(written(lines, tmp_path / "file"))


@pytest.mark.slow
def test_files_of_tuning_are_replaced_by_their_like(written, tmp_path):
    pytest.importorskip("tvm")
    schedules, page = tmp_path / "schedules.json", tmp_path / "page.html"
    for _ in range(2):
        assert written((*FILES["tune --output"], schedules, "--html"), page).returncode == 0
    for option, place in (
        ("--output", page),
        ("--html", schedules),
        ("--output", "/dev/full"),
        ("--html", "/dev/full"),
    ):
        refused(written(FILES[f"tune {option}"], place))


def test_an_export_replaces_the_files_of_its_name_in_every_form(anatune, tmp_path):
    pytest.importorskip("tvm")
    words = ("export", "--hw", "host", "matmul", "8x8x8", "--threads", 1, "--name", "f", "--output", tmp_path / "lib")
    for form in ("a", "tvm", "a"):
        done = anatune(*words, "--format", form)
        assert done.returncode == 0, done
    assert sorted(one.name for one in (tmp_path / "lib").iterdir()) == ["f.h", "f.json", "f.tvm.json", "libf.a"]
    (tmp_path / "lib" / "f.o").write_text("mine")
    refused(anatune(*words, "--format", "o"))
    assert (tmp_path / "lib" / "f.o").read_text() == "mine"


def test_a_database_of_tvm_is_replaced_by_its_like_only(anatune, places, tmp_path):
    pytest.importorskip("tvm")
    words = ("records", "export", places["records"], "--format", "tvm", "--output", tmp_path / "database")
    for _ in range(2):
        done = anatune(*words)
        assert done.returncode == 0, done
    (tmp_path / "database" / "database_tuning_record.json").write_text("[0, [[], [1.0], {}, []]]\n")
    refused(anatune(*words))
    assert (tmp_path / "database" / "database_tuning_record.json").read_text().startswith("[0, [[]")


@pytest.mark.parametrize("words", [("hw", "detect"), ("hw", "detect", "--force"), ("hw", "calibrate")])
def test_a_spec_takes_no_other_spec_s_place(anatune, tmp_path, words):
    variables = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert anatune("hw", "detect", **variables).returncode == 0
    assert anatune("hw", "detect", **variables).returncode == 0
    path = tmp_path / "anatune" / "hwspecs" / "host.toml"
    marked = path.read_text()
    path.write_text(marked.split("\n", 1)[1])
    mine = path.read_bytes()
    refused(anatune(*words, **variables))
    assert path.read_bytes() == mine


def test_commands_leave_nothing_where_they_are_started(anatune, places, tmp_path, monkeypatch):
    """Records go to tuning.sqlite, as is said; whatever else is written is asked for."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    silent = [
        ("plan", *CPU, "--explain"), ("prune", *CPU), ("prune", *CPU, "--for", "csv"), ("hw", "list"),
        ("hw", "show", "host"), ("hw", "detect", "--print"), ("doctor", "--quick"), ("completion", "bash"),
        *(("records", name, "--records", places["records"]) for name in ("list", "best", "report", "export")),
    ]  # fmt: skip
    for words in silent:
        done = anatune(*words)
        assert (done.returncode, os.listdir()) == (0, []), (words, done)
    pytest.importorskip("tvm")
    done = anatune("tune", *HOST, "--trials", 1)
    assert (done.returncode, os.listdir()) == (0, ["tuning.sqlite"]), done
