"""Layouts as a 0/1 program: the solver's answer is the best of all, and its bound says so."""

import itertools

import numpy as np
import pytest

from anatune.network.compiling.layouts.assignment import LayoutOption, LayoutProblem

ORDERS = ("first", "last", "blocks")


def random_problem(seed):
    """Return a small graph: values 0 and 1 are inputs, the others nodes that read up to two earlier values."""
    rng = np.random.default_rng(seed)
    options = {}
    for node in range(2, 8):
        reads = sorted({int(value) for value in rng.integers(0, node, size=int(rng.integers(1, 3)))})
        own = []
        for _ in range(int(rng.integers(1, 5))):
            asked = tuple((value, str(rng.choice(ORDERS))) for value in reads)
            own.append(LayoutOption(float(rng.uniform(0, 10)) * 1e-6, str(rng.choice(ORDERS)), asked))
        options[node] = own
    needed = [(7, "first"), (int(rng.integers(0, 7)), str(rng.choice(ORDERS)))]
    table = {key: float(rng.uniform(0, 6)) * 1e-6 for key in itertools.product(range(8), ORDERS, ORDERS)}
    return LayoutProblem(options, needed, lambda *key: table[key], "first")


@pytest.mark.parametrize("seed", range(30))
def test_the_answer_is_the_best_of_all(seed):
    problem = random_problem(seed)
    options = problem.options
    places = [range(len(own)) for own in options.values()]
    least = min(problem.cost_of(dict(zip(options, one, strict=True)))[0] for one in itertools.product(*places))
    found = problem.solve()
    assert found.cost_s == pytest.approx(least, rel=1e-9)
    assert found.bound_s == pytest.approx(least, rel=1e-6)
    assert found.bound_s <= found.cost_s


def chain(turning):
    """Return a chain of three nodes, of which the second one is faster in another order than its neighbours."""
    options = {
        1: [LayoutOption(1e-5, "last", ((0, "last"),)), LayoutOption(3e-5, "blocks", ((0, "blocks"),))],
        2: [LayoutOption(2e-5, "last", ((1, "last"),)), LayoutOption(1e-5, "blocks", ((1, "blocks"),))],
        3: [LayoutOption(1e-5, "last", ((2, "last"),)), LayoutOption(3e-5, "blocks", ((2, "blocks"),))],
    }
    return LayoutProblem(options, [(3, "last")], lambda *_: turning, "last")


def test_transforms_are_made_where_they_pay_and_only_there():
    assert chain(4e-6).solve().picked == {1: 0, 2: 1, 3: 0}
    assert chain(6e-6).solve().picked == {1: 0, 2: 0, 3: 0}
    cost_s, turned = chain(4e-6).cost_of({1: 0, 2: 1, 3: 0})
    assert cost_s == pytest.approx(3.8e-5)
    assert turned == [(1, "last", "blocks"), (2, "blocks", "last")]


def test_a_value_is_turned_once_for_all_readers():
    readers = {node: [LayoutOption(1e-6, "last", ((0, "last"),))] for node in (1, 2, 3)}
    assert LayoutProblem(readers, [], lambda *_: 5e-6, "first").solve().cost_s == pytest.approx(8e-6)
    assert LayoutProblem({}, [], lambda *_: 5e-6, "first").solve().picked == {}
