"""Points, and which of them are the same program."""

import msgspec
import pytest

import anatune
from anatune.api import model
from anatune.search.points import SeenPrograms, find_legal_point

CPU = anatune.hardware("xeon_gold_6230r")
MODEL = model(anatune.matmul(48, 64, 36), CPU)


def test_schedules_that_do_not_belong():
    schedule = MODEL.space.sample(1)[0]
    assert find_legal_point(MODEL, schedule) is not None
    replace = msgspec.structs.replace
    assert find_legal_point(MODEL, replace(schedule, template="cuda")) is None
    assert find_legal_point(MODEL, replace(schedule, tiles={**schedule.tiles, "i": (7, 1, 1, 1, 1)})) is None
    assert find_legal_point(MODEL, replace(schedule, tiles={})) is None
    whole = MODEL.space.schedule({"i": (1, 1, 1, 1, 48), "j": (1, 1, 1, 1, 64)})
    assert find_legal_point(MODEL, whole) is None  # far more registers than there are


@pytest.mark.parametrize("level", ["outer", "l3"])
def test_a_loop_by_another_name_is_the_same_program(level):
    tiles = {"j": (1, 1, 1, 2, 32), "k": (1, 1, 36, 1)}
    places = {"outer": (4, 1, 2, 1, 6), "l3": (1, 4, 2, 1, 6)}
    split = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": places[level]}))
    merged = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": (1, 1, 8, 1, 6)}))
    other = MODEL.space.point_of(MODEL.space.schedule({**tiles, "i": (1, 1, 4, 2, 6)}))
    assert MODEL.program_key(split) == MODEL.program_key(merged)
    seen = SeenPrograms(MODEL)
    assert seen.add(split)
    assert not seen.add(merged)
    assert seen.add(other) or MODEL.program_key(other) == MODEL.program_key(split)
