"""Shapes of small surfaces that one sees with the eye."""

import numpy as np
import pytest

from anatune.search.knobs import make_knobs
from bench.experiments.grids import GridModel, Surface
from bench.experiments.shape import shape_of, way_down


def surface(cost, fits=None):
    model = GridModel({"x": range(9), "y": range(9)}, cost, fits)
    points = model.rank(1).points
    return Surface("small", "tests", "", model, float(model.times(points)[0][0]), "all points")


def test_a_bowl_has_one_minimum_and_all_ways_lead_to_it():
    shape = shape_of(surface(lambda c: 1 + (c["x"] - 5) ** 2 + (c["y"] - 2) ** 2), samples=30, seed=0)
    assert shape.num_minima == 1
    assert shape.single_valley == shape.convex == {"x": 1.0, "y": 1.0}
    assert (shape.from_origin, shape.chain, shape.steps_from_origin) == (1.0, 1.0, 7)
    assert set(shape.reached.values()) == {1.0}


def test_waves_along_one_knob_have_more_valleys():
    shape = shape_of(surface(lambda c: 2 + np.cos(np.pi * c["x"]) + 0.1 * c["x"] + c["y"] ** 2), samples=30, seed=0)
    assert shape.single_valley["x"] == 0.0
    assert shape.single_valley["y"] == 1.0
    assert shape.num_minima == 4
    assert shape.chain == 1.0


def test_the_steepest_way_can_miss_what_another_way_finds():
    # from the origin x goes down at once into a pit of its own; y goes down slowly, to the optimum behind
    table = np.full((9, 9), 50.0)
    table[0, :] = [10, 9, 8, 7, 6, 5, 4, 3, 1]
    table[1, 0] = 5.0
    shape = shape_of(surface(lambda c: table[c["x"].astype(int), c["y"].astype(int)]), samples=30, seed=0)
    assert shape.from_origin == 5.0
    assert shape.chain == 1.0


def test_illegal_points_end_a_way():
    one = surface(lambda c: 100 - c["x"] - c["y"], lambda c: c["x"] + 2 * c["y"] <= 8)
    way, end = way_down(one.model, make_knobs(one.model), np.array([0, 0]))
    assert end == 100 - way[-1].sum()
    assert one.model.check(np.array(way)).tolist() == [0] * len(way)
    assert one.best == pytest.approx(92)
