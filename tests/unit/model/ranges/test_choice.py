"""Choices among programs, beside every choice there is."""

import itertools

import numpy as np
import pytest

from anatune.model.ranges.choice import TOLERANCE, minimise_count, minimise_mean, minimise_worst
from anatune.templates.base.watch import Watch
from tests.unit.model.ranges.making import times
from tests.wording import refuses


def losses(num_programs, num_extents, seed):
    """Return losses against the best program of each extent."""
    table = times(num_programs, num_extents, seed)
    return table / table.min(axis=0) - 1.0


def brute(table, count, measure):
    """Return the least measure of all choices."""
    return min(measure(table[list(some)].min(axis=0)) for some in itertools.combinations(range(len(table)), count))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_least_worst_loss_is_that_of_all_choices(seed, count):
    table = losses(12, 60, seed)
    found, best = minimise_worst(table, count, Watch()), brute(table, count, np.max)
    assert found.value == pytest.approx(table[list(found.programs)].min(axis=0).max())
    assert found.bound <= best + 1e-12
    assert best <= found.value
    assert found.value <= best + 2 * TOLERANCE or found.value > found.bound + 1.5 * TOLERANCE
    assert len(found.programs) <= count


@pytest.mark.parametrize("seed", range(4))
def test_more_extents_than_are_looked_at_first(seed):
    table = losses(40, 2000, seed)
    found = minimise_worst(table, 3, Watch())
    assert found.value == pytest.approx(table[list(found.programs)].min(axis=0).max())
    assert found.bound <= found.value
    for limit in np.linspace(0.0, found.bound - 1e-9, 5):  # nothing below the bound: not even on all extents
        covers = (table <= limit).any(axis=0).all() and any(
            (table[list(some)] <= limit).any(axis=0).all() for some in itertools.combinations(range(40), 3)
        )
        assert not covers


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("limit", [0.05, 0.2, 0.6])
def test_the_fewest_programs_for_a_loss(seed, limit):
    table = losses(10, 50, seed)
    found, least = minimise_count(table, limit, Watch())
    assert found.value <= limit + 1e-12
    needed = next(count for count in range(1, 11) if brute(table, count, np.max) <= limit)
    assert least <= needed <= len(found.programs) <= needed
    assert least == needed


@pytest.mark.parametrize("seed", range(6))
def test_no_exchange_of_one_program_lowers_the_mean(seed):
    table, weights = losses(12, 60, seed), np.full(60, 1 / 60)
    found = minimise_mean(table, 3, weights)
    value = table[list(found.programs)].min(axis=0) @ weights
    assert found.value == pytest.approx(value)
    assert found.bound <= brute(table, 3, lambda row: row @ weights) + 1e-12
    for place, other in itertools.product(range(len(found.programs)), range(12)):
        some = [*found.programs]
        some[place] = other
        assert table[some].min(axis=0) @ weights >= value * (1 - 1e-8)


def test_weights_of_nothing_do_not_count():
    table = np.array([[0.0, 9.0], [9.0, 0.0]])
    assert minimise_mean(table, 1, np.array([1.0, 0.0])).programs == (0,)
    assert minimise_mean(table, 1, np.array([0.0, 1.0])).programs == (1,)


def test_an_extent_that_nothing_serves_is_an_error():
    with refuses(ValueError):
        minimise_worst(np.array([[0.0, np.inf]]), 1, Watch())


def test_programs_that_are_not_legal_everywhere_serve_where_they_are():
    table = np.array([[0.0, np.inf, np.inf], [np.inf, 0.0, 0.1], [1.0, 1.0, 1.0]])
    assert minimise_worst(table, 2, Watch()).programs == (0, 1)
    assert minimise_worst(table, 1, Watch()).programs == (2,)
