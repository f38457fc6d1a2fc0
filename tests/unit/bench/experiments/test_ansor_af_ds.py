"""The bench of Ansor-AF-DS: its benchmarks, its quick form, and what it joins of earlier runs."""

import json

import pytest

from bench.experiments import ansor_af_ds


def test_there_are_thirty_benchmarks():
    assert len(ansor_af_ds.BENCHMARKS) == 30


@pytest.mark.slow
def test_the_quick_form_is_read_again(tmp_path, capsys):
    out = tmp_path / "out.json"
    ansor_af_ds.main(["--quick", "--out", str(out)])
    result = json.loads(out.read_text())
    contenders = {one.name for one in (*ansor_af_ds.UNINFORMED, *ansor_af_ds.INFORMED)}
    assert {one["contender"] for one in result["searches"]} == contenders
    assert {one["guarantee"] for one in result["truths"]} == {"certified"}
    assert all(ratio >= 1.0 for one in result["searches"] for _, ratio in one["steps"])
    assert all(one["widest_s"] <= one["best_s"] for one in result["truths"])
    first = capsys.readouterr().out
    ansor_af_ds.main(["--read", str(out), "--out", str(tmp_path / "again.json")])
    assert capsys.readouterr().out == first
