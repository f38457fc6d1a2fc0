"""Uniform random search."""

import anatune
from anatune.api import model
from anatune.search.base import make_strategy

CPU = anatune.hardware("xeon_gold_6230r")


def test_seeds_differ():
    made = model(anatune.matmul(96, 128, 64), CPU)
    one, other = (make_strategy("random", made, seed=seed).ask(5) for seed in (0, 1))
    assert one != other


def test_large_spaces_are_drawn_small_ones_shuffled():
    large = model(anatune.matmul(512, 512, 512), CPU)
    assert len(make_strategy("random", large).ask(300)) == 300
    small = model(anatune.matmul(2, 2, 1), CPU)
    assert small.space.size < 100_000
    assert len(make_strategy("random", small, seed=4).ask(10_000)) == len(make_strategy("grid", small).ask(10_000))
