"""Learned corrections through the installed command: import, train, plan with what was trained, refusals."""

import json
import re

import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

from tests.unit.adapters.logs.making import ansor, autotvm, target_of, written
from tests.unit.tuning.test_training import fill

PLAN = ("plan", "--hw", "rtx3090", "matmul", "256x256x256", "--top-k", "2")


def bad(done, status, *parts):
    assert done.returncode == status, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    for part in parts:
        assert part in done.stderr


def test_what_was_trained_is_used_by_plan_unless_told_not_to(anatune, tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    records = fill(tmp_path / "tuning.sqlite")
    done = anatune("records", "train", records, "--json", **home)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["name"], result["helps"]) == ("rtx3090_cuda", True)
    assert result["saved"] == str(tmp_path / "config" / "anatune" / "models" / "rtx3090_cuda")
    judged = result["judgement"]
    assert judged["by_workload"]["spearman"] > judged["plain"]["spearman"]
    plan = json.loads(anatune(*PLAN, "--json", **home).stdout)
    assert plan["correction"]["name"] == "rtx3090_cuda"
    assert "corrected by rtx3090_cuda" in anatune(*PLAN, **home).stdout.replace("\n  ", " ")
    assert anatune(*PLAN, "--explain", **home).returncode == 0
    plain = json.loads(anatune(*PLAN, "--json", "--plain", **home).stdout)
    assert "correction" not in plain
    assert plain == json.loads(anatune(*PLAN, "--json", XDG_CONFIG_HOME=str(tmp_path / "nothing")).stdout)


def test_where_it_does_not_help_it_is_not_saved_and_says_so(anatune, tmp_path):
    records = fill(tmp_path / "tuning.sqlite", slow=0.0)
    done = anatune("records", "train", records, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("; not saved\n")
    assert not (tmp_path / "config").exists()
    done = anatune("records", "train", records, "--output", tmp_path / "out", XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert f"saved in {tmp_path / 'out'}" in done.stdout
    assert json.loads(anatune(*PLAN, "--json", "--model", tmp_path / "out").stdout)["correction"]


def test_logs_of_other_tuners_are_imported(anatune, tmp_path):
    records = tmp_path / "tuning.sqlite"
    log = written(tmp_path / "log.json", autotvm(), autotvm(error=4, times=(1e10,)), autotvm(tile_f=[3, 1, 4, 2]))
    done = anatune("records", "import", log, "--hw", "rtx3080", "--records", records)
    assert done.returncode == 0, done.stderr
    assert "2 new trials of the autotvm log" in done.stdout
    assert re.search(r"rtx3080 +2 +1 +0 +conv2d 4x8x14x14 16x8x3x3 --padding 1", done.stdout)
    assert "left out: 1 entries\n1  tiles do not multiply" in done.stdout
    done = anatune("records", "import", log, "--hw", "rtx3080", "--records", records)
    assert re.search(r"rtx3080 +0 +0 +2 +conv2d", done.stdout)
    log = written(tmp_path / "ansor.json", ansor())
    words = ("matmul", "64x64x64")
    done = anatune("records", "import", log, *words, "--hw", "rtx3080", "--records", records, "--json")
    task = {"hardware": "rtx3080", "workload": "matmul 64x64x64", "trials": 1, "failed": 0, "known": 0}
    assert json.loads(done.stdout) == {"kind": "ansor", "trials": 1, "tasks": [task], "left_out": {}}
    listed = json.loads(anatune("records", "list", records, "--json").stdout)
    assert [row["outcome"] for row in listed] == ["ok", "run_error", "ok"]
    bad(anatune("records", "import", log, "--hw", "rtx3080", "--records", records), 1, "does not say which workload")
    bad(anatune("records", "import", log, *words, "--records", records), 1, "with --hw NAME")


def test_a_log_says_itself_what_it_is_of(anatune, tmp_path):
    records = tmp_path / "tuning.sqlite"
    named = [target_of(autotvm(), f"cuda -model={name}") for name in ("1080ti", "tx2", "mystery")]
    log = written(tmp_path / "tophub.log", *named)
    done = anatune("records", "import", log, "--records", records)
    assert done.returncode == 0, done.stderr
    assert "2 new trials of the autotvm log: 1 on gtx1080ti, 1 on tx2" in done.stdout
    assert re.search(r"gtx1080ti +1 .*\ntx2 +1 .*\nleft out: 1 entries\n1  device 'mystery' has no spec", done.stdout)
    bad(anatune("records", "import", log, "--hw", "v100_sxm2"), 1, "measured on '1080ti', not on --hw v100_sxm2")
    export = tmp_path / "export.jsonl"
    assert anatune("records", "export", records, "--output", export).returncode == 0
    other = tmp_path / "other.sqlite"
    bad(anatune("records", "import", export, "--hw", "tx2", "--records", other), 2, "--hw", "export.jsonl")
    assert "added 2 sessions and 2 trials" in anatune("records", "import", export, "--records", other).stdout


def test_refusals_are_one_line(anatune, tmp_path):
    bad(anatune("records", "train", tmp_path / "none.sqlite"), 1, "none.sqlite")
    few = fill(tmp_path / "few.sqlite", shapes=((64, 64, 64),))
    bad(anatune("records", "train", few, "--output", tmp_path / "out"), 1, "expected at least 2")
    assert not (tmp_path / "out").exists()
    bad(anatune(*PLAN, "--model", "no_such"), 1, "no_such", "ansor_k80")
    bad(anatune(*PLAN, "--model", "ansor_k80", "--plain"), 2, "--plain")
    (tmp_path / "card.json").write_text("{}")
    bad(anatune(*PLAN, "--model", tmp_path), 1, "card.json", "expected the card of a correction")
