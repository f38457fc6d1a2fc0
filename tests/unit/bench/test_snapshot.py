"""Snapshots: the same rows each time, parts of the same numbering, and what differs is named."""

import json
import shutil

import pytest

from anatune.resources import data_folder
from bench import snapshot
from tests.wording import refuses


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_tree_does_not_differ_from_itself(tmp_path, capsys):
    (tmp_path / "specs").mkdir()
    for name in ("nvidia_t4", "amd_ryzen_7950x"):
        shutil.copy(data_folder("hwspecs") / f"{name}.toml", tmp_path / "specs")
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    for path in (first, second):
        assert snapshot.main(["write", str(path), "--part", "0/5", "--specs", str(tmp_path / "specs")]) == 0
    keys = [row["key"] for row in rows_of(first)]
    assert keys == [one.key for one in list(snapshot.combinations(tmp_path / "specs"))[0::5]]
    assert {key.split()[1] for key in keys} == {
        "cpu",
        "cuda",
        "fp16_accumulation",
        "amx",
        "pipelined",
        "thin",
        "triton",
        "winograd",
    }
    assert all(
        {"plan", "predictions", "counts", "sample", "predict"} <= {*row} or "error" in row for row in rows_of(first)
    )
    assert snapshot.main(["compare", str(first), str(second)]) == 0
    assert capsys.readouterr().out == f"{len(keys)} combinations compared, 0 differ\n"


def test_what_differs_is_named(tmp_path, capsys):
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    same = {"key": "t4 cuda bert:M1", "plan": "12"}
    write = lambda path, *rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # noqa: E731
    write(before, same, {"key": "t4 cuda bert:M2", "plan": "12", "code": "34"}, {"key": "only before", "plan": "1"})
    write(after, {"key": "t4 cuda bert:M2", "error": "no such layer"}, same, {"key": "only after", "plan": "1"})
    assert snapshot.main(["compare", str(before), str(after)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "t4 cuda bert:M2: plan, code, error; after: no such layer", "2 combinations compared, 1 differ",
    ]  # fmt: skip
    after.write_text('{"key":')
    with refuses(SystemExit):
        snapshot.main(["compare", str(before), str(after)])
    with refuses(SystemExit):
        snapshot.main(["write", str(after), "--part", "4/4"])
