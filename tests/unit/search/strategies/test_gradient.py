"""Dynamic gradient descent: windows, thresholds, restarts."""

import numpy as np

from anatune.search.base import make_strategy
from anatune.search.knobs import is_within_limits, make_knobs
from anatune.search.strategies.gradient import GradientStrategy
from tests.unit.search.worlds import GPU, RANKED, search, seconds, varied


def test_as_published_it_measures_64_random_programs_first():
    strategy = GradientStrategy(GPU, start="paper", seed=2)
    assert len(strategy.ask(200)) == 64


def hops_away(points, base):
    knobs = make_knobs(GPU)
    return np.abs(knobs.indices(np.array(points)) - knobs.indices(base[None, :])).sum(axis=1)


def test_by_the_rules_of_the_code_the_best_ones_neighbours_follow_in_windows_of_three():
    strategy = varied(GradientStrategy, published_rules="code")(GPU, start="paper", seed=2)
    points, _ = search(strategy, 64)
    window = [GPU.space.point_of(schedule) for schedule in strategy.ask(50)]
    assert len(window) == 3
    assert hops_away(window, min(points, key=seconds)).max() <= 2


def test_as_published_a_random_point_follows_and_its_neighbours_at_one_hop_then_two_then_three():
    strategy = varied(GradientStrategy, measure_threshold=0.0, score_threshold=0.0)(GPU, start="paper", seed=2)
    search(strategy, 64)
    (base, *near), _ = search(strategy, 400, lambda point: 1.0)  # nothing is better than the base
    away = hops_away(near, base)
    assert away[0] == 1
    assert np.array_equal(away[away <= 3], np.sort(away[away <= 3])[: (away <= 3).sum()])
    assert {1, 2, 3} == set(away[:300])


def test_the_trees_learn_a_step_when_it_is_over():
    sizes = []

    class Watched(GradientStrategy):
        def _learn(self):
            super()._learn()
            sizes.append(len(self._surrogate._targets))

    search(Watched(GPU, start="paper", seed=2), 120)
    assert sizes[0] == 65  # the random programs and the first base
    assert len(set(np.diff(sizes))) > 1
    assert max(np.diff(sizes)) > 3  # several windows at once


def test_windows_whose_last_prediction_is_far_below_the_best_are_not_measured():
    strict = varied(GradientStrategy, score_threshold=1.0 - 1e-12)(GPU, start="paper", seed=2)
    points, _ = search(strict, 200)
    loose, _ = search(varied(GradientStrategy, score_threshold=0.0)(GPU, start="paper", seed=2), 200)
    assert np.array_equal(points[:65], loose[:65])
    assert not np.array_equal(points, loose)


def test_as_published_it_keeps_to_the_limits():
    points, _ = search(GradientStrategy(GPU, start="paper", seed=2), 120)
    assert is_within_limits(GPU, np.array(points)).all()
    free, _ = search(varied(GradientStrategy, has_limits=False)(GPU, start="paper", seed=2), 64)
    assert not is_within_limits(GPU, np.array(free)).all()


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
