"""Genetic search: rounds, and what the trees are worth."""

import numpy as np

from anatune.search.base import make_strategy
from anatune.search.knobs import is_within_limits
from anatune.search.strategies.genetic import AnalyticalGeneticStrategy, GeneticStrategy
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
    named = varied(AnalyticalGeneticStrategy, population=256, round_trials=32)
    assert np.array_equal(searches[1], search(named(GPU, start="paper"), 64)[0])
    assert np.array_equal(published, searches[0])
    assert np.array_equal(searches[0][:32], searches[1][:32])
    assert not np.array_equal(searches[0], searches[1])


def test_the_analytical_variant_sees_them_from_the_ranking_too():
    made = [
        search(varied(kind, population=256, round_trials=32)(GPU, ranked=RANKED), 64)[0]
        for kind in (GeneticStrategy, AnalyticalGeneticStrategy)
    ]
    assert np.array_equal(made[0][:16], made[1][:16])
    assert not np.array_equal(*made)


def test_as_published_it_keeps_to_the_limits():
    points, _ = search(SMALL(GPU, start="paper"), 80)
    assert is_within_limits(GPU, np.array(points)).all()
