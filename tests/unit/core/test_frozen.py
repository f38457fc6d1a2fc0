"""Mappings of immutable objects."""

import copy
import pickle
from types import MappingProxyType

import msgspec
import pytest

import anatune
from anatune.core.frozen import EMPTY, FrozenDict
from anatune.core.schedule import Schedule
from tests.wording import refuses

MATMUL = anatune.matmul(16, 12, 8)


def schedule(**changes):
    tiles = {"i": (2, 2, 2, 2, 1), "j": (3, 1, 4, 1, 1), "k": (2, 2, 2)}
    return msgspec.structs.replace(anatune.space(MATMUL, "rtx3090").schedule(tiles, 64, {"A": 2}), **changes)


@pytest.mark.parametrize(
    "change",
    [
        lambda mapping: mapping.__setitem__("i", (1,)),
        lambda mapping: mapping.__delitem__("i"),
        lambda mapping: mapping.__ior__({"i": (1,)}),
        lambda mapping: mapping.update(i=(1,)),
        lambda mapping: mapping.pop("i"),
        lambda mapping: mapping.popitem(),
        lambda mapping: mapping.setdefault("n", (1,)),
        lambda mapping: mapping.clear(),
    ],
)
def test_nothing_changes_them(change):
    made = schedule()
    before = made.to_json()
    for mapping in (made.tiles, made.vector, made.options, made.workload.extents):
        with refuses(TypeError):
            change(mapping)
    (prediction,) = anatune.plan(MATMUL, "rtx3090", 1).predictions
    for mapping in (prediction.parts, prediction.features, prediction.traffic_over_bound, prediction.resources):
        with refuses(TypeError):
            change(mapping)
    assert made.to_json() == before


def test_whoever_made_them_cannot_change_them_either():
    tiles = dict(schedule().tiles)
    made = schedule(tiles=tiles)
    tiles["i"] = (16, 1, 1, 1, 1)
    assert made == schedule()
    with refuses(TypeError):
        Schedule(MATMUL, made.hardware, "cuda", tiles).vector["A"] = 4  # the default


def test_they_are_dicts_to_everybody_else():
    made = schedule()
    assert made.tiles == dict(made.tiles)
    assert type(made.tiles | {"k": (8, 1, 1)}) is dict
    assert type(made.tiles.copy()) is dict
    for again in (
        Schedule.from_json(made.to_json()),
        msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Schedule),
        msgspec.convert(msgspec.to_builtins(made), Schedule),
        pickle.loads(pickle.dumps(made)),
        copy.copy(made),
        copy.deepcopy(made),
        schedule(tiles=MappingProxyType(dict(made.tiles))),
    ):
        assert (again, hash(again), again.key, again.to_json()) == (made, hash(made), made.key, made.to_json())
        assert type(again.tiles) is FrozenDict
    assert copy.deepcopy(made.tiles) == pickle.loads(pickle.dumps(made.tiles)) == made.tiles


def test_defaults_are_still_left_out_of_json():
    made = schedule(vector={}, options={}, unroll=0)
    assert made.vector is made.options is EMPTY
    assert set(msgspec.json.decode(made.to_json())) == {"workload", "hardware", "template", "tiles"}
    assert pickle.loads(pickle.dumps(made)).key == made.key
