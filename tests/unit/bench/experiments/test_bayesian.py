"""The quick form of the Bayesian experiment, on a model and on an excerpt of recorded tables."""

import json
from pathlib import Path

import pytest

from bench.experiments import bayesian

ROOT = Path(__file__).parents[4]


@pytest.mark.slow
def test_every_variant_searches_every_surface(tmp_path):
    bayesian.main([
        str(ROOT / "tests" / "golden" / "recorded"), "--table", "ansor_matmul", "--device", "k80", "--quick",
        "--out", str(tmp_path / "out.json"),
    ])  # fmt: skip
    result = json.loads((tmp_path / "out.json").read_text())
    assert [one["group"] for one in result["grounds"]] == ["model of a100_sxm", "recorded on GPUs"]
    for ground in result["grounds"]:
        own = [one for one in result["searches"] if one["surface"] == ground["name"]]
        assert [one["contender"] for one in own] == [one.name for one in bayesian.VARIANTS]
        assert all(one["num_trials"] == 72 and one["steps"][-1][1] >= 0.999 for one in own)
        # all but random search begin with the same random programs; of a small table some are drawn twice
        first = {str([step for step in one["steps"] if step[0] <= 32]) for one in own if one["contender"] != "random"}
        assert len(first) == 1
