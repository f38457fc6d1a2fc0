"""The quick form of the droplet experiment, whose results are those of the equations that it searches."""

import json
import shutil
from pathlib import Path

import pytest

from bench.experiments import droplet

PAGE = Path(__file__).parents[4] / "docs" / "experiments" / "droplet.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("droplet")
    shutil.copy(PAGE, folder / "droplet.md")
    droplet.main(["--quick", "--out", str(folder / "out.json"), "--page", str(folder / "droplet.md")])
    return folder


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "out.json").read_text())


def test_convex_equations_and_those_with_remainders_are_told_apart(result):
    shapes = {one["surface"]: one for one in result["shapes"]}
    smooth, jagged, dividing = shapes["LRW"], shapes["any tile"], shapes["divisors"]
    assert set(smooth["convex"].values()) == {1.0}
    assert smooth["num_minima"] == 1
    assert smooth["from_origin"] == smooth["chain"] == 1.0
    assert jagged["num_minima"] > 10
    assert jagged["from_origin"] >= jagged["chain"] > 1.1  # no way down from the origin leads to the optimum
    assert dividing["chain"] == 1.0


def test_searches_get_better_only_and_count_different_points(result):
    names = {one["contender"] for one in result["searches"]}
    assert names == {one.name for one in droplet.CONTENDERS}
    for one in result["searches"]:
        numbers, ratios = zip(*one["steps"], strict=True)
        assert list(numbers) == sorted(set(numbers))
        assert list(ratios) == sorted(set(ratios), reverse=True)
        assert ratios[-1] >= 1.0 - 1e-9
        assert numbers[-1] <= one["num_trials"] <= 60
    ends = {
        one["steps"][-1][1] for one in result["searches"] if one["surface"] == "LRW" and "droplet" in one["contender"]
    }
    assert ends == {1.0}


def test_the_page_gets_every_table_and_picture(folder):
    text = (folder / "droplet.md").read_text()
    assert "| LRW | 400 | 2 | 100 % | 100 % | 1 | 1.000 (2 steps)" in text
    assert "| annealing |" in text
    for name in ("droplet_planes.svg", "droplet_kernels.svg"):
        assert f"({name})" in text
        assert 0 < (folder / name).stat().st_size < 200_000


def test_an_earlier_run_gives_the_same_page(folder, tmp_path):
    shutil.copy(PAGE, tmp_path / "again.md")
    droplet.main(["--again", str(folder / "out.json"), "--page", str(tmp_path / "again.md")])
    assert (tmp_path / "again.md").read_text() == (folder / "droplet.md").read_text()
