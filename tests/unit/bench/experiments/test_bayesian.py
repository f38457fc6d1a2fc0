"""The quick form of the Bayesian experiment, on a model and on an excerpt of recorded tables."""

import json
import shutil
from pathlib import Path

import pytest

from bench.experiments import bayesian

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "experiments" / "bayesian.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bayesian")
    shutil.copy(PAGE, folder / "bayesian.md")
    bayesian.main([
        str(ROOT / "tests" / "golden" / "recorded"), "--table", "ansor_matmul", "--device", "k80", "--quick",
        "--out", str(folder / "out.json"), "--page", str(folder / "bayesian.md"),
    ])  # fmt: skip
    return folder


def test_every_variant_searches_every_surface(folder):
    result = json.loads((folder / "out.json").read_text())
    assert [one["group"] for one in result["grounds"]] == ["model of a100_sxm", "recorded on GPUs"]
    for ground in result["grounds"]:
        own = [one for one in result["searches"] if one["surface"] == ground["name"]]
        assert [one["contender"] for one in own] == [one.name for one in bayesian.VARIANTS]
        assert all(one["num_trials"] == 72 and one["steps"][-1][1] >= 0.999 for one in own)
        # all but random search begin with the same random programs; of a small table some are drawn twice
        first = {str([step for step in one["steps"] if step[0] <= 32]) for one in own if one["contender"] != "random"}
        assert len(first) == 1


def test_the_page_gets_every_table_and_the_picture_again_too(folder, tmp_path):
    text = (folder / "bayesian.md").read_text()
    assert "| evolutionary search | 1 | 1 |" in text
    assert "(bayesian_variants.svg)" in text
    assert 0 < (folder / "bayesian_variants.svg").stat().st_size < 200_000
    shutil.copy(PAGE, tmp_path / "again.md")
    bayesian.main(["--again", str(folder / "out.json"), "--page", str(tmp_path / "again.md")])
    assert (tmp_path / "again.md").read_text() == text
