"""Points, and which of them are the same program."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune.api import model
from anatune.search.points import Points, Seen, program_key

CPU = anatune.hardware("xeon_gold_6230r")
MODEL = model(anatune.matmul(48, 64, 36), CPU)


def test_coordinates_are_those_of_the_space():
    points = MODEL.space.sample_points(200, 1)
    known = Points(MODEL)
    for point, expected in zip(points, MODEL.space.encode(points), strict=True):
        assert np.array_equal(known.coordinates(point), expected)


def test_no_point_of_the_space():
    known = Points(MODEL)
    point = MODEL.space.sample_points(1, 0)[0]
    for column, value in ((0, 5), (-1, 2), (len(point) - 2, -1)):
        wrong = point.copy()
        wrong[column] = value
        assert known.coordinates(wrong) is None


def test_schedules_that_do_not_belong():
    known = Points(MODEL)
    schedule = MODEL.space.sample(1)[0]
    assert known.legal_point(schedule) is not None
    replace = msgspec.structs.replace
    assert known.legal_point(replace(schedule, template="cuda")) is None
    assert known.legal_point(replace(schedule, tiles={**schedule.tiles, "i": (7, 1, 1, 1, 1)})) is None
    assert known.legal_point(replace(schedule, tiles={})) is None
    whole = MODEL.space.schedule({"i": (1, 1, 1, 1, 48), "j": (1, 1, 1, 1, 64)})
    assert known.legal_point(whole) is None  # far more registers than there are


@pytest.mark.parametrize("level", ["outer", "l3"])
def test_a_loop_by_another_name_is_the_same_program(level):
    tiles = {"j": (1, 1, 1, 2, 32), "k": (1, 1, 36, 1)}
    places = {"outer": (4, 1, 2, 1, 6), "l3": (1, 4, 2, 1, 6)}
    split = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": places[level]}))
    merged = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": (1, 1, 8, 1, 6)}))
    other = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": (1, 1, 4, 2, 6)}))
    assert program_key(MODEL.space, split) == program_key(MODEL.space, merged)
    seen = Seen(MODEL)
    assert seen.add(split)
    assert not seen.add(merged)
    assert seen.add(other) or program_key(MODEL.space, other) == program_key(MODEL.space, split)
