"""Bayesian optimisation: the acquisition functions, the memory, the ranges."""

import numpy as np
import pytest
from scipy import stats

from anatune.search.base import make_strategy
from anatune.search.strategies.bayes import BayesOptions, BayesStrategy, Bounds, acquisition
from tests.unit.search.worlds import GPU, RANKED, search

MEAN, STD, BEST = np.array([0.2, 0.9, 0.5]), np.array([0.3, 0.1, 0.0]), 0.8


def test_upper_confidence_bound():
    assert acquisition(MEAN, STD, BEST, BayesOptions(kappa=0.5)) == pytest.approx(MEAN + 0.5 * STD)


def test_expected_improvement_is_an_expectation():
    found = acquisition(MEAN, STD, BEST, BayesOptions(acquisition="ei", xi=0.01))
    for mean, std, value in zip(MEAN[:2], STD[:2], found[:2], strict=True):
        drawn = stats.norm(mean, std)
        wanted = drawn.expect(lambda x: max(x - BEST - 0.01, 0.0), lb=BEST + 0.01, ub=mean + 10 * std)
        assert value == pytest.approx(wanted, rel=1e-4)
    assert found[2] == pytest.approx(0.0)


def test_probability_of_improvement():
    found = acquisition(MEAN, STD, BEST, BayesOptions(acquisition="poi"))
    assert found[:2] == pytest.approx([1 - stats.norm(m, s).cdf(BEST) for m, s in zip(MEAN[:2], STD[:2], strict=True)])
    assert found[2] == pytest.approx(0.0)


@pytest.mark.parametrize("eviction", ["reset", "lru"])
def test_the_memory_is_limited(eviction):
    options = {"memory": 40, "eviction": eviction, "num_random": 16, "round_trials": 8, "suggestions": 5}
    strategy = BayesStrategy(GPU, start="paper", options=options)
    search(strategy, 60)
    assert 0 < len(strategy._memory) <= 40


def test_the_best_points_come_back_into_a_forgetful_memory():
    strategy = BayesStrategy(GPU, start="paper", options={"memory": 8, "num_random": 16, "round_trials": 4})
    points, _ = search(strategy, 40)
    assert len(points) == 40


@pytest.mark.parametrize("options", [{"selection": "naive"}, {"domain_reduction": True, "acquisition": "ei"}])
def test_it_is_ahead_of_random_search(options):
    _, found = search(BayesStrategy(GPU, start="paper", options=options), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


def test_from_the_ranking():
    strategy = BayesStrategy(GPU, ranked=RANKED)
    assert strategy.ask(16) == [GPU.space.schedule_of(point) for point in RANKED]


def test_ranges_shrink_around_the_best():
    bounds = Bounds(2)
    for _ in range(10):
        bounds.shrink(np.array([0.9, 0.2]))
    width = bounds.high - bounds.low
    assert (width < 0.6).all()
    assert (bounds.low <= [0.9, 0.2]).all()
    assert (bounds.high >= [0.9, 0.2]).all()
    assert np.array_equal(bounds.clip(np.array([0.0, 1.0])), [bounds.low[0], bounds.high[1]])


def test_a_share_of_every_later_round_is_random():
    options = {"num_random": 16, "round_trials": 8, "random_share": 0.5}
    strategy = BayesStrategy(GPU, start="paper", options=options)
    search(strategy, 16)
    asked = [schedule.key for schedule in strategy.ask(8)]
    drawn = {GPU.space.schedule_of(point).key for point in strategy.draw_new(4, 3, 1)}
    assert len(set(asked)) == 8
    assert drawn == set(asked[4:])
