"""What is kept where nobody knows what an order is worth: never much worse than a random choice."""

import numpy as np
import pytest

from anatune.model.pruning.portfolio import choose_portfolio, keep_probabilities, value_positions

SIZE = 2000
PLACES = np.random.default_rng(1).uniform(size=(SIZE, 3))
TIMES = np.random.default_rng(2).lognormal(size=SIZE)


@pytest.mark.parametrize("count", [1, 2, 20, 400, SIZE - 1, SIZE, SIZE + 5])
@pytest.mark.parametrize("spread", [0.01, 0.25, 1.0])
def test_so_many_are_kept_and_the_fastest_predicted_is_among_them(count, spread):
    rows = choose_portfolio(TIMES, PLACES, count, spread)
    assert len(rows) == len(set(rows.tolist())) == min(count, SIZE)
    assert int(np.argmin(TIMES)) in rows
    assert np.all(np.diff(rows) > 0)


def test_probabilities_add_up_and_fall_with_the_prediction():
    kept = keep_probabilities(TIMES, 100, 0.25)[np.argsort(TIMES)]
    assert kept.sum() == pytest.approx(100, abs=1)
    assert np.all(np.diff(kept[: SIZE // 2]) <= 1e-12)
    assert kept.min() >= 0.25 * 100 / SIZE


def test_what_nothing_is_known_of_is_kept_as_at_random():
    times = np.where(np.arange(SIZE) % 4 == 0, np.inf, TIMES)
    kept = keep_probabilities(times, 100, 0.25)
    assert kept[0] == pytest.approx(100 / SIZE, rel=0.3)
    assert len(choose_portfolio(np.full(SIZE, np.nan), PLACES, 50, 0.5)) == 50


def test_equal_predictions_are_equally_likely_and_kept_in_turn():
    variants = np.repeat([0.0, 1.0], SIZE // 2)
    times = np.tile(TIMES[: SIZE // 2], 2)
    kept = keep_probabilities(times, 100, 0.25)
    assert np.delete(kept[: SIZE // 2] - kept[SIZE // 2 :], np.argmin(times)) == pytest.approx(0.0)
    rows = choose_portfolio(times, np.column_stack([variants, PLACES]), 100, 0.25)
    assert abs(int(variants[rows].sum()) - 50) <= 2


@pytest.mark.parametrize("spread", [0.25, 0.5, 1.0])
def test_in_the_worst_order_it_is_as_good_as_so_many_random_ones(spread):
    """The promise of the module: all of the k fastest are missed no more often than by spread * count random ones."""
    count, seeds = 100, 150
    worst = 1.0 / TIMES
    kept = [choose_portfolio(worst, PLACES, count, spread, seed) for seed in range(seeds)]
    for fastest in (10, 40):
        best = np.argsort(TIMES)[:fastest]
        missed = np.mean([not np.isin(best, rows).any() for rows in kept])
        at_random = (1.0 - fastest / SIZE) ** (spread * count)
        assert missed <= at_random + 3.0 * np.sqrt(at_random / seeds)


def test_in_a_good_order_it_is_much_better_than_random():
    rng = np.random.default_rng(3)
    predicted = TIMES * np.exp(rng.normal(0.0, 0.5, SIZE))
    losses = [TIMES[choose_portfolio(predicted, PLACES, 40, 0.25, seed)].min() for seed in range(20)]
    at_random = [TIMES[rng.choice(SIZE, 40, replace=False)].min() for _ in range(200)]
    assert np.mean(losses) < 0.7 * np.mean(at_random)


def test_places_of_values_keep_their_order_where_they_have_one():
    assert value_positions([16, 4, 8, 4]).tolist() == [1.0, 0.0, 0.5, 0.0]
    assert value_positions(["b", 1, "b"]).tolist() == [0.0, 1.0, 0.0]
    assert value_positions([3, 3]).tolist() == [0.0, 0.0]
