"""Grid search."""

import numpy as np

import anatune
from anatune.api import model
from anatune.search.base import make_strategy

CPU = anatune.hardware("xeon_gold_6230r")


def test_first_points_are_spread_over_the_space():
    made = model(anatune.matmul(64, 64, 64), CPU)
    asked = make_strategy("grid", made).ask(40)
    coordinates = made.space.encode(np.array([made.space.point_of(schedule) for schedule in asked]))
    spread = coordinates[:, 0] / made.space.radices[0]
    assert spread.min() < 0.2
    assert spread.max() > 0.8


def test_sizes_beyond_64_bits():
    made = model(anatune.conv2d(n=8, c=256, h=96, w=96, k=256, r=3, s=3, padding=1), CPU)
    assert made.space.size > 2**45
    assert len(make_strategy("grid", made, seed=9).ask(3)) == 3
