"""The quick form of the droplet experiment, whose results are those of the equations that it searches."""

import json

import pytest

from bench.experiments import droplet


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    path = tmp_path_factory.mktemp("droplet") / "out.json"
    droplet.main(["--quick", "--out", str(path)])
    return json.loads(path.read_text())


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
