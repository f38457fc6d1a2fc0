"""The search harness on the committed excerpts: recorded points only, random always there, numbers that add up."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bench.replay import recorded_points
from bench.replay import search as replay_search

RECORDED = Path(__file__).parents[3] / "golden" / "recorded"


@pytest.fixture(scope="module")
def tables():
    return list(recorded_points.load_tables(RECORDED, []))


def test_every_recorded_point_is_there_once(tables):
    for one in tables:
        assert len(np.unique(one.points, axis=0)) == len(one.points) == len(one.time_s)
        assert np.nanmin(one.time_s) >= np.nanmin(one.group.time_s)


def test_parameters_that_the_template_lacks_tell_points_apart(tables):
    gemm = next(one for one in tables if one.group.kind == "clblast")
    table = gemm.table()
    assert "MDIMA" in table.space.columns
    for row in (0, len(gemm.points) // 2):
        schedule = table.space.schedule_of(table.space.points[row])
        assert table.row_of(schedule) == row


def test_a_search_measures_recorded_points_only(tables):
    for kind in ("clblast", "ansor", "autotvm"):
        recorded = next(one for one in tables if one.group.kind == kind)
        run = replay_search.run_one(recorded, replay_search.Setting("model"), 0, 12)
        assert len(run.curve) == 12
        assert all(a >= b >= 1.0 for a, b in zip(run.curve, run.curve[1:], strict=False))
        assert run.trials_to(run.curve[-1]) <= 12
        assert run.trials_to(0.5) == math.inf


def test_the_command_writes_runs_summaries_and_plots(tmp_path, capsys):
    replay_search.main([
        str(RECORDED), "--table", "ansor_matmul", "--device", "k80", "--workloads", "1", "--strategy", "model",
        "--seeds", "2", "--trials", "10", "--json", str(tmp_path / "out.json"), "--plots", str(tmp_path / "plots"),
    ])  # fmt: skip
    result = json.loads((tmp_path / "out.json").read_text())
    assert {run["strategy"] for run in result["runs"]} == {"model", "random"}
    assert len([run for run in result["runs"] if run["strategy"] == "random"]) == 2
    assert {row["strategy"] for row in result["summary"]} == {"model", "random"}
    assert (tmp_path / "plots" / "ansor_matmul_gpu__mit.svg").read_text().startswith("<svg")
    assert "random" in capsys.readouterr().out
