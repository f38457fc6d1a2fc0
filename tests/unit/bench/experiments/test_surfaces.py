"""Searches on surfaces whose best point is known."""

import math

import pytest

import anatune
from anatune.templates.cuda.model.model import CudaModel
from bench.experiments.surfaces import Contender, Search, search, wrong_numbers

WORKLOAD = anatune.matmul(128, 256, 192)
HARDWARE = anatune.hardware("rtx3090")


@pytest.fixture(scope="module")
def truth():
    return CudaModel(WORKLOAD, HARDWARE, plain=True)


@pytest.fixture(scope="module")
def best_s(truth):
    return float(truth.times(truth.rank(1).points)[0][0])


def new(best_s, seed=0):
    return Search("rtx3090", "matmul", "own model", "c", seed, best_s)


def test_nothing_is_better_than_the_proven_best_and_the_ranking_begins_with_it(truth, best_s):
    found = search(truth, truth, Contender("r", "random", "paper"), 200, new(best_s))
    ratios = [ratio for _, ratio in found.steps]
    assert found.num_trials == 200
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] >= 1.0
    assert found.at(200) == ratios[-1]
    assert found.trials_to(ratios[-1]) <= 200
    assert found.trials_to(0.5) == math.inf
    informed = search(truth, truth, Contender("d", "droplet", "model"), 1, new(best_s))
    assert informed.steps == [(1, 1.0)]


def test_wrong_numbers_keep_what_is_legal(truth, best_s):
    other = wrong_numbers(HARDWARE, 1, 0.3)
    assert other.compute.clock_hz != HARDWARE.compute.clock_hz
    assert other == wrong_numbers(HARDWARE, 1, 0.3) != wrong_numbers(HARDWARE, 2, 0.3)
    guide = CudaModel(WORKLOAD, other, plain=True)
    points = truth.space.sample_points(300, 1)
    assert not guide.check(points).any()
    assert (guide.times(points)[0] != truth.times(points)[0]).all()
    found = search(truth, guide, Contender("d", "dgd", "model"), 20, new(best_s))
    assert found.num_illegal == 0
    assert found.at(20) >= 1.0


def test_what_the_guide_alone_holds_for_legal_fails(truth, best_s):
    guide = CudaModel(WORKLOAD, anatune.hardware("h100"), plain=True)  # more shared memory
    found = search(truth, guide, Contender("r", "random", "paper"), 300, new(best_s))
    assert 0 < found.num_illegal < 300
