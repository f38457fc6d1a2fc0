"""Genetic search: rounds, and what the trees are worth."""

import numpy as np

from anatune.search.base import make_strategy
from anatune.search.strategies.genetic import GeneticStrategy
from tests.unit.search.worlds import GPU, RANKED, search, varied

SMALL = varied(GeneticStrategy, population=256, round_trials=32)


def test_rounds():
    strategy = SMALL(GPU, start="paper")
    assert len(strategy.ask(500)) == 32
    search(strategy, 32, batch=32)
    strategy = SMALL(GPU, start="paper")
    search(strategy, 32)
    assert len(strategy.ask(500)) == 32


def test_the_first_round_follows_the_model():
    strategy = SMALL(GPU, ranked=RANKED)
    assert strategy.ask(16) == [GPU.space.schedule_of(point) for point in RANKED]


def test_it_is_ahead_of_random_search():
    _, found = search(SMALL(GPU, start="paper"), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


def test_what_the_trees_see_is_a_setting():
    searches = [
        search(varied(SMALL, published_features=features)(GPU, start="paper"), 64)[0]
        for features in ("program", "analytical")
    ]
    published, _ = search(SMALL(GPU, start="paper"), 64)
    assert np.array_equal(published, searches[0])
    assert np.array_equal(searches[0][:32], searches[1][:32])
    assert not np.array_equal(searches[0], searches[1])
