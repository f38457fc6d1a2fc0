"""Dynamic gradient descent: windows, thresholds, restarts."""

import numpy as np

from anatune.search.base import make_strategy
from anatune.search.knobs import knobs_of
from anatune.search.strategies.gradient import GradientStrategy
from tests.unit.search.worlds import GPU, RANKED, search, seconds, varied


def test_as_published_it_measures_64_random_programs_first():
    strategy = GradientStrategy(GPU, start="paper", seed=2)
    assert len(strategy.ask(200)) == 64


def test_then_the_best_ones_neighbours_in_windows_of_three():
    strategy = GradientStrategy(GPU, start="paper", seed=2)
    points, _ = search(strategy, 64)
    best = min(points, key=seconds)
    window = strategy.ask(50)
    assert len(window) == 3
    knobs = knobs_of(GPU)
    found = np.array([GPU.space.point_of(schedule) for schedule in window])
    away = np.abs(knobs.indices(found) - knobs.indices(best[None, :])).sum(axis=1)
    assert away.max() <= 2


def test_from_the_ranking_it_needs_no_random_programs():
    strategy = GradientStrategy(GPU, ranked=RANKED)
    (first,) = strategy.ask(10)
    assert first == GPU.space.schedule_of(RANKED[0])


def test_it_is_ahead_of_random_search():
    _, found = search(GradientStrategy(GPU, ranked=RANKED), 80)
    _, drawn = search(make_strategy("random", GPU), 80)
    _, published = search(GradientStrategy(GPU, start="paper"), 160)
    _, longer = search(make_strategy("random", GPU), 160)
    assert found[-1] < min(found[0], drawn[-1])
    assert published[-1] < longer[-1]


def test_slow_neighbourhoods_are_left():
    def measure(point):  # everything but the ranking's points is slow
        return 1.0 if any(np.array_equal(point, one) for one in RANKED) else 10.0

    points, _ = search(GradientStrategy(GPU, ranked=RANKED), 60, measure)
    visited = [at for at, point in enumerate(points) if any(np.array_equal(point, one) for one in RANKED)]
    assert len(visited) >= 4  # at most 9 neighbours of each, of one or two and of three hops


def test_everything_failing_is_no_obstacle():
    points, _ = search(GradientStrategy(GPU, ranked=RANKED), 100, lambda point: None)
    assert len(points) == 100


def test_what_the_trees_see_is_a_setting():
    searches = [
        search(varied(GradientStrategy, published_features=features)(GPU, start="paper"), 90)[0]
        for features in ("analytical", "program")
    ]
    published, _ = search(GradientStrategy(GPU, start="paper"), 90)
    assert np.array_equal(published, searches[0])
    assert np.array_equal(searches[0][:64], searches[1][:64])
    assert not np.array_equal(searches[0], searches[1])
