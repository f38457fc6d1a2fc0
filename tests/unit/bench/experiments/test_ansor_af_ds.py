"""The bench of Ansor-AF-DS: its benchmarks, its quick form, tables and pictures from what it wrote."""

import json
from pathlib import Path

import pytest

from bench.experiments import ansor_af_ds

PAGE = Path(__file__).parents[4] / "docs" / "experiments" / "ansor_af_ds.md"


def test_there_are_thirty_benchmarks():
    assert len(ansor_af_ds.BENCHMARKS) == 30


def test_the_quick_form_fills_a_page(tmp_path, capsys):
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    ansor_af_ds.main(["--quick", "--out", str(out)])
    result = json.loads(out.read_text())
    contenders = {one.name for one in (*ansor_af_ds.UNINFORMED, *ansor_af_ds.INFORMED)}
    assert {one["contender"] for one in result["searches"]} == contenders
    assert {one["guarantee"] for one in result["truths"]} == {"certified"}
    assert all(ratio >= 1.0 for one in result["searches"] for _, ratio in one["steps"])
    assert all(one["widest_s"] <= one["best_s"] for one in result["truths"])
    first = capsys.readouterr().out
    ansor_af_ds.main(["--read", str(out), "--out", str(tmp_path / "again.json"), "--page", str(page)])
    assert capsys.readouterr().out == first
    assert "| rtx3090 | droplet |" in page.read_text()
    for name in ("page_uninformed.svg", "page_informed.svg"):
        assert (tmp_path / name).read_text().count("<path") > 10


def test_an_unknown_benchmark_is_one_line(tmp_path):
    with pytest.raises(SystemExit, match="no_such"):
        ansor_af_ds.main(["--benchmark", "bert:no_such", "--out", str(tmp_path / "out.json")])
