"""Annealing counts different points only, and finds the bottom of a bowl."""

from bench.experiments.annealing import anneal
from bench.experiments.grids import GridModel
from bench.experiments.surfaces import Search


def searched(seed, trials):
    model = GridModel(
        {"x": range(20), "y": range(20)}, lambda c: 1 + (c["x"] - 5) ** 2 + c["y"], lambda c: c["x"] + c["y"] > 2
    )
    return anneal(model, trials, Search("none", "tests", "bowl", "annealing", seed, 1.0))


def test_trials_are_different_legal_points():
    found = searched(0, 60)
    assert found.num_trials == 60
    numbers, ratios = zip(*found.steps, strict=True)
    assert list(numbers) == sorted(set(numbers))
    assert list(ratios) == sorted(set(ratios), reverse=True)
    assert searched(0, 400).num_trials <= 400 - 6  # of 20 x 20 points 6 are not legal


def test_the_same_seed_gives_the_same_search_and_enough_trials_the_bottom():
    assert searched(1, 60) == searched(1, 60)
    assert searched(1, 60) != searched(2, 60)
    assert searched(1, 390).at(390) == 1.0
