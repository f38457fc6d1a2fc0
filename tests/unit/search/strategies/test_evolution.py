"""NoSE: the surrogate's formulas, the generations."""

import numpy as np
import pytest

from anatune.search.base import make_strategy
from anatune.search.knobs import mutate, roulette, single_point_crossover
from anatune.search.points import drop_repeats
from anatune.search.strategies.evolution import EvolutionStrategy, average_neighbours
from tests.unit.search.worlds import GPU, RANKED, search, varied


def naive(point, known, values, count):
    def canberra(one, other):
        return sum(abs(a - b) / (abs(a) + abs(b)) for a, b in zip(one, other, strict=True) if abs(a) + abs(b) > 0)

    near = sorted((canberra(point, one), at) for at, one in enumerate(known))[:count]
    if near[0][0] == 0:
        return values[near[0][1]]
    return sum(values[at] / d for d, at in near) / sum(1 / d for d, at in near)


def test_weighted_neighbours():
    rng = np.random.default_rng(0)
    known, values = rng.integers(0, 9, (40, 6)).astype(float), rng.random(40)
    points = np.concatenate([rng.integers(0, 9, (12, 6)).astype(float), known[:1]])
    found = average_neighbours(points, known, values, 9)
    assert found == pytest.approx([naive(point, known, values, 9) for point in points], rel=1e-6)
    assert average_neighbours(points, known[:2], values[:2], 9).shape == (13,)


def test_generations():
    strategy = EvolutionStrategy(GPU, start="paper")
    assert len(strategy.ask(500)) == 100
    strategy = varied(EvolutionStrategy, population=20)(GPU, start="paper")
    assert len(search(strategy, 20)[0]) == 20
    assert len(strategy.ask(500)) == 6  # 0.3 x 20


def test_the_first_population_follows_the_model():
    strategy = EvolutionStrategy(GPU, ranked=RANKED)
    points = np.array([GPU.space.point_of(schedule) for schedule in strategy.ask(100)])
    assert np.array_equal(points[:16], RANKED)
    published = np.array([GPU.space.point_of(one) for one in EvolutionStrategy(GPU, start="paper").ask(100)])
    assert np.median(GPU.times(points)[0]) < 0.5 * np.median(GPU.times(published)[0])


def test_it_is_ahead_of_random_search():
    for seed in range(2):
        _, found = search(varied(EvolutionStrategy, population=40)(GPU, start="paper", seed=seed), 160)
        _, drawn = search(make_strategy("random", GPU, seed=seed), 160)
        assert found[-1] < drawn[-1]


def test_heredity():
    rng = np.random.default_rng(1)
    one, other = np.zeros((50, 4), dtype=np.int64), np.ones((50, 4), dtype=np.int64)
    children = single_point_crossover(one, other, rng)
    assert (np.diff(children, axis=1) >= 0).all()
    assert set(children.sum(axis=1).tolist()) == {1, 2, 3}
    assert np.array_equal(mutate(one, np.array([3, 3, 3, 3]), 0.0, rng), one)
    drawn = mutate(np.zeros((2_000, 2), dtype=np.int64), np.array([1, 4]), 0.5, rng)
    assert drawn[:, 0].max() == 0
    assert 0.3 < (drawn[:, 1] > 0).mean() < 0.45  # half of them redrawn, a quarter of those to what they were
    assert set(roulette(np.array([0.0, 2.0, 0.0]), 20, rng).tolist()) == {1}
    assert set(roulette(np.zeros(3), 60, rng).tolist()) == {0, 1, 2}
    assert drop_repeats(np.array([[2], [1], [2]])).tolist() == [[2], [1]]
