"""``anatune records report`` from the shell, without a page."""

import json

import pytest

from anatune.records.store import RecordStore
from tests.unit.report.recorded import usual


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "tuning.sqlite"
    with RecordStore(path) as store:
        store.insert([*usual("a"), *usual("b", "bayes")])
    return path


def test_sessions_are_told_as_text_and_json(anatune, path):
    done = anatune("records", "report", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("matmul 64x48x32 on xeon_8124m, 1 thread\n  session aaaaaaaa model, begun ")
    assert "trial 2 won with 1.500 ms" in " ".join(done.stdout.split())
    found = json.loads(anatune("records", "report", "--records", path, "--session", "b", "--json").stdout)
    assert [one["session"] for one in found] == ["b" * 32]
    assert (found[0]["best"], found[0]["trials"], found[0]["elapsed_s"]) == (2, 8, 16.0)
    assert found[0]["failures"][0]["trials"] == 2
    assert found[0]["bound_s"] < found[0]["best_s"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "no trials in "),
        (("--html", "page.html"), "no page was written"),
        (("--html", "none/page.html"), "does not exist; make it"),
    ],
)
def test_nothing_to_report_is_one_line(anatune, path, words, text):
    done = anatune("records", "report", path, "--hw", "rtx3090", *words)
    assert done.returncode == (1 if words else 0)
    said = done.stderr if words else done.stdout
    assert text in said
    assert said.count("\n") == 1
