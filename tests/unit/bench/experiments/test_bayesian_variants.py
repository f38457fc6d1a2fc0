"""The variants of Bayesian optimisation: acquisition functions, memory, ranges, random programs."""

import numpy as np
import pytest
from scipy import stats

from anatune.search.base import make_strategy
from anatune.search.strategies.bayes import BayesStrategy
from bench.experiments.bayesian_variants import BayesVariant, Bounds
from tests.unit.search.worlds import GPU, search, varied

MEAN, STD, BEST = np.array([0.2, 0.9, 0.5]), np.array([0.3, 0.1, 0.0]), 0.8


def worth(**settings):
    strategy = varied(BayesVariant, **settings)(GPU)
    strategy._memory = {b"": BEST}
    return strategy._worth(MEAN, STD)


def test_upper_confidence_bound():
    assert worth(kappa=0.5) == pytest.approx(MEAN + 0.5 * STD)


def test_expected_improvement_is_an_expectation():
    found = worth(acquisition="ei", xi=0.01)
    for mean, std, value in zip(MEAN[:2], STD[:2], found[:2], strict=True):
        drawn = stats.norm(mean, std)
        wanted = drawn.expect(lambda x: max(x - BEST - 0.01, 0.0), lb=BEST + 0.01, ub=mean + 10 * std)
        assert value == pytest.approx(wanted, rel=1e-4)
    assert found[2] == pytest.approx(0.0)


def test_probability_of_improvement():
    found = worth(acquisition="poi")
    assert found[:2] == pytest.approx([1 - stats.norm(m, s).cdf(BEST) for m, s in zip(MEAN[:2], STD[:2], strict=True)])
    assert found[2] == pytest.approx(0.0)


def test_without_other_settings_it_asks_what_the_strategy_asks():
    points, _ = search(varied(BayesVariant, num_random=16)(GPU, start="paper"), 40)
    wanted, _ = search(varied(BayesStrategy, num_random=16)(GPU, start="paper"), 40)
    assert np.array_equal(points, wanted)


def test_the_memory_is_limited():
    kind = varied(BayesVariant, memory=40, eviction="lru", num_random=16, round_trials=8, suggestions=5)
    strategy = kind(GPU, start="paper")
    search(strategy, 60)
    assert 0 < len(strategy._memory) <= 40


@pytest.mark.parametrize("settings", [{"selection": "naive"}, {"domain_reduction": True, "acquisition": "ei"}])
def test_it_is_ahead_of_random_search(settings):
    _, found = search(varied(BayesVariant, **settings)(GPU, start="paper"), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


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
    strategy = varied(BayesVariant, num_random=16, round_trials=8, random_share=0.5)(GPU, start="paper")
    search(strategy, 16)
    asked = [schedule.key for schedule in strategy.ask(8)]
    drawn = {GPU.space.schedule_of(point).key for point in strategy.draw_new(4, 3, 1)}
    assert len(set(asked)) == 8
    assert drawn == set(asked[4:])
