"""Bayesian optimisation: suggestions, acquisition functions, memory, ranges, random programs, what it finds."""

import numpy as np
import pytest
from scipy import stats

from anatune.search.base import make_strategy
from anatune.search.strategies.bayes import BayesStrategy, GeneBounds
from tests.unit.search.worlds import GPU, RANKED, search, varied

SMALL = {"num_random": 16, "round_trials": 8, "suggestions": 5}
MEAN, STD, BEST = np.array([0.2, 0.9, 0.5]), np.array([0.3, 0.1, 0.0]), 0.8


def worth(**settings):
    strategy = varied(BayesStrategy, **settings)(GPU)
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


def suggested(start, **settings):
    """Return how many genes the suggestions of a search change of the input nearest to them, at least."""
    changes = []

    class Watched(varied(BayesStrategy, **settings)):
        def _remember(self, row, score, inputs):
            if len(inputs):
                changes.append((row != inputs).sum(axis=1).min())
            return super()._remember(row, score, inputs)

    search(Watched(GPU, start=start), 33)
    return np.array(changes)


@pytest.mark.slow
def test_as_published_suggestions_come_from_the_whole_domain():
    """From the model's ranking half of the candidates share genes with an input."""
    published = suggested("paper", num_random=16, round_trials=16)
    assert len(published) >= 13 * 10  # ten legal ones for each input of a round
    assert np.mean(published > 2) > 2 * np.mean(suggested("model") > 2)


def test_every_suggestion_knows_the_scores_of_those_before():
    sizes = []

    class Watched(varied(BayesStrategy, **SMALL)):
        def _suggestion(self, process, rng):
            sizes.append((len(self._memory), process._size))
            return super()._suggestion(process, rng)

    search(Watched(GPU, start="paper"), 30)
    assert len(sizes) >= 60
    assert all(remembered == told for remembered, told in sizes)


@pytest.mark.parametrize("eviction", ["reset", "lru"])
def test_the_memory_is_limited(eviction):
    strategy = varied(BayesStrategy, memory=40, eviction=eviction, **SMALL)(GPU, start="paper")
    search(strategy, 60)
    assert 0 < len(strategy._memory) <= 40


def test_the_best_points_come_back_into_a_forgetful_memory():
    strategy = varied(BayesStrategy, memory=8, num_random=16, round_trials=4)(GPU, start="paper")
    points, _ = search(strategy, 40)
    assert len(points) == 40


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"selection": "naive"}])
def test_it_is_ahead_of_random_search(settings):
    _, found = search(varied(BayesStrategy, round_trials=16, **settings)(GPU, start="paper"), 128)
    _, drawn = search(make_strategy("random", GPU), 128)
    assert found[-1] < drawn[-1]


def test_suggestions_stay_in_the_reduced_domain():
    inside = []

    class Watched(varied(BayesStrategy, domain="reduced", **SMALL)):
        def _suggestion(self, process, rng):
            row = super()._suggestion(process, rng)
            low, high = np.rint(self._bounds.low * self._scale), np.rint(self._bounds.high * self._scale)
            inside.append(((row >= low) & (row <= high)).all() and (high - low < self._scale).any())
            return row

    search(Watched(GPU, start="paper"), 30)
    assert len(inside) >= 60
    assert all(inside)


def test_naive_selection_takes_one_point_of_each_input():
    strategy = varied(BayesStrategy, selection="naive", **SMALL)(GPU, start="paper")
    search(strategy, 16)
    points = strategy.draw(12, 9)
    owners = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    chosen = [point.tobytes() for point in strategy._select(points, owners, 8)]
    assert len(chosen) == 4
    assert {owner for point, owner in zip(points, owners, strict=True) if point.tobytes() in chosen} == {0, 1, 2, 3}


def test_a_fifth_of_every_later_round_is_random_as_published():
    strategy = varied(BayesStrategy, num_random=16, round_trials=20, suggestions=2)(GPU, start="paper")
    search(strategy, 16)
    asked = [schedule.key for schedule in strategy.ask(20)]
    drawn = {GPU.space.schedule_of(point).key for point in strategy.draw_new(4, 2, 1)}
    assert len(set(asked)) == 20
    assert drawn == set(asked[16:])


def test_four_fifths_of_the_inputs_are_the_best_measured_ones_as_published():
    strategy = varied(BayesStrategy, **SMALL)(GPU, start="paper")
    search(strategy, 24)
    measured = [key for _, key in strategy._measured]
    assert len(measured) >= 16
    assert [point.tobytes() for point in strategy._inputs(2, 10)][:8] == measured[:8]
    assert [point.tobytes() for point in strategy._inputs(2, 10)][8:] != measured[8:10]


def test_ranges_shrink_around_the_best():
    bounds = GeneBounds(2)
    for _ in range(10):
        bounds.shrink(np.array([0.9, 0.2]))
    width = bounds.high - bounds.low
    assert (width < 0.6).all()
    assert (bounds.low <= [0.9, 0.2]).all()
    assert (bounds.high >= [0.9, 0.2]).all()
    assert np.array_equal(bounds.clip(np.array([0.0, 1.0])), [bounds.low[0], bounds.high[1]])


def test_from_the_ranking():
    strategy = BayesStrategy(GPU, ranked=RANKED)
    assert strategy.ask(16) == [GPU.space.schedule_of(point) for point in RANKED]
