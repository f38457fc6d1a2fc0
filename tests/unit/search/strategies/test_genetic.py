"""Genetic search: rounds, and what the trees are worth."""

import numpy as np

from anatune.search.base import make_strategy
from anatune.search.strategies.genetic import GeneticStrategy
from tests.unit.search.worlds import GPU, RANKED, search

SMALL = {"population": 256, "round_trials": 32}


def test_rounds():
    strategy = GeneticStrategy(GPU, start="paper", options=SMALL)
    assert len(strategy.ask(500)) == 32
    search(strategy, 32, batch=32)
    strategy = GeneticStrategy(GPU, start="paper", options=SMALL)
    search(strategy, 32)
    assert len(strategy.ask(500)) == 32


def test_the_first_round_follows_the_model():
    strategy = GeneticStrategy(GPU, ranked=RANKED, options=SMALL)
    assert strategy.ask(16) == [GPU.space.schedule_of(point) for point in RANKED]


def test_it_is_ahead_of_random_search():
    _, found = search(GeneticStrategy(GPU, start="paper", options=SMALL), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


def test_what_the_trees_see_is_a_setting():
    searches = [
        search(GeneticStrategy(GPU, start="paper", options={**SMALL, "features": features}), 64)[0]
        for features in (None, "program", "analytical")
    ]
    assert np.array_equal(searches[0], searches[1])
    assert np.array_equal(searches[0][:32], searches[2][:32])
    assert not np.array_equal(searches[0], searches[2])
