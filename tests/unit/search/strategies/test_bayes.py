"""Bayesian optimisation: the memory, what it finds."""

from anatune.search.base import make_strategy
from anatune.search.strategies.bayes import BayesStrategy
from tests.unit.search.worlds import GPU, RANKED, search, varied


def test_the_memory_is_limited():
    kind = varied(BayesStrategy, memory=40, num_random=16, round_trials=8, suggestions=5)
    strategy = kind(GPU, start="paper")
    search(strategy, 60)
    assert 0 < len(strategy._memory) <= 40


def test_the_best_points_come_back_into_a_forgetful_memory():
    strategy = varied(BayesStrategy, memory=8, num_random=16, round_trials=4)(GPU, start="paper")
    points, _ = search(strategy, 40)
    assert len(points) == 40


def test_it_is_ahead_of_random_search():
    _, found = search(BayesStrategy(GPU, start="paper"), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


def test_from_the_ranking():
    strategy = BayesStrategy(GPU, ranked=RANKED)
    assert strategy.ask(16) == [GPU.space.schedule_of(point) for point in RANKED]
