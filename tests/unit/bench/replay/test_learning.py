"""What a session gains by other workloads' records, on the committed excerpts: known workloads are not tuned."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lightgbm")
pytest.importorskip("sklearn")

from bench.replay import learning

RECORDED = Path(__file__).parents[3] / "golden" / "recorded"


def test_the_workloads_that_were_not_drawn_are_tuned_both_ways(tmp_path, capsys):
    out = tmp_path / "out.json"
    where = [str(RECORDED), "--device", "k80", "--table", "autotvm"]
    learning.main([*where, "--others", "4", "--draws", "2", "--trials", "12", "--json", str(out)])
    told = capsys.readouterr().out
    assert "autotvm_conv2d_gpu_roller__mit, k80" in told
    tables = json.loads(out.read_text())["tables"]
    assert sum(len(one["nothing"]) for one in tables) == 2 * (6 - 4)
    for one in tables:
        assert len(one["nothing"]) == len(one["again"]) == len(one["records"]) == len(one["shares"])
        for trials, best in [*one["nothing"], *one["records"]]:
            assert 1 <= trials <= 12
            assert best >= 1.0


def outcomes(nothing, records):
    return learning.Outcomes("t", "d", "w", nothing, records=records, again=nothing)


def test_a_difference_beyond_noise():
    slow = [learning.Search(trials, 1.0) for trials in (40, 41, 42)]
    fast = [learning.Search(trials, 1.1) for trials in (10, 12, 11)]
    assert outcomes(fast, slow).slower() > learning.CLEARLY
    assert outcomes(slow, fast).slower() < -learning.CLEARLY
    assert outcomes(fast, slow).slower("again") == 0.0
    assert outcomes(slow, slow).slower() == 0.0
    assert outcomes(slow[:1], fast[:1]).slower() == 0.0  # one search says nothing of noise
    np.testing.assert_allclose(outcomes(slow, fast).best("records"), 1.1)
