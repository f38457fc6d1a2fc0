"""NoSE beside genetic searches: the quick form on an excerpt of recorded tables, AutoTVM's genetic algorithm."""

import json
from pathlib import Path

import numpy as np
import pytest

from anatune.search.strategies.evolution import EvolutionStrategy
from bench.experiments import nose
from tests.unit.search.worlds import GPU, OTHER, search, varied

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("nose") / "out.json"
    nose.main([
        str(ROOT / "tests" / "golden" / "recorded"), "--table", "ansor_matmul", "--device", "k80", "--quick",
        "--out", str(out),
    ])  # fmt: skip
    return json.loads(out.read_text())


def test_every_contender_searches_every_table(result):
    contenders = [one["contender"] for one in result["searches"]]
    assert set(contenders) == {one.name for one in nose.CONTENDERS}
    assert len(set(map(contenders.count, contenders))) == 1
    for one in result["searches"]:
        assert one["steps"][-1][1] >= 1.0
        assert 0 <= one["num_illegal"] < one["num_trials"]


def test_the_census_of_the_surrogate(result):
    first = [one for one in result["census"] if one["number"] == 1]
    assert len(first) == len([one for one in result["searches"] if one["contender"] == "NoSE"])
    for one in first:
        assert 0.0 < one["rank_correlation"] <= 1.0  # of a smooth surface
        assert one["elite_gain"] > 1.0  # the elite is faster than its brothers
        assert 0.0 <= one["elite_failed"] <= 1.0
        assert one["median_error"] > 0.0


def test_a_census_of_a_surrogate_that_is_right_but_for_one_failure():
    class Surface:
        def times(self, points):
            return OTHER.times(points)[0], np.arange(len(points)) == 0

    settings = {"surface": Surface(), "census": [], "about": ("kind", "name"), "population": 10}
    strategy = type("Watched", (nose._Watched,), settings)(GPU, start="paper")
    points = strategy.draw(15, 0)
    times = OTHER.times(points)[0]
    strategy._predict(points, points, np.where(np.arange(15) == 0, 0.0, 1.0 / times))
    (one,) = strategy.census
    assert (one.number, one.num_known, one.failed) == (1, 15, pytest.approx(1 / 15))
    assert one.rank_correlation == pytest.approx(1.0)
    assert one.median_error == pytest.approx(0.0, abs=1e-6)
    assert one.elite_failed == 0.0


def test_watching_changes_no_question():
    class Surface:
        def times(self, points):
            return OTHER.times(points)[0], np.zeros(len(points), dtype=np.int64)

    settings = {"surface": Surface(), "census": [], "about": ("kind", "name"), "population": 10}
    watched, _ = search(type("Watched", (nose._Watched,), settings)(GPU, start="paper"), 30)
    wanted, _ = search(varied(EvolutionStrategy, population=10)(GPU, start="paper"), 30)
    assert np.array_equal(watched, wanted)


def test_the_genetic_algorithm_measures_every_child():
    kind = varied(nose.GeneticAlgorithm, population=12)
    points, best = search(kind(GPU, start="paper"), 60)
    assert len({GPU.program_key(point) for point in points}) == 60
    assert all(GPU.check(point[None, :])[0] == 0 for point in points)
    again, _ = search(kind(GPU, start="paper"), 60)
    assert np.array_equal(points, again)
    assert best[-1] < best[11]
