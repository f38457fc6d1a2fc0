"""Tensor-core tile space: sizes, round trips, JSON, guarded edges, and the messages for bad schedules."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.tensorcore.model import TensorCoreModel
from anatune.templates.tensorcore.space import INSTRUCTION, TensorCoreSpace
from tests.naive_gpu import gpu

WORKLOADS = {
    "matmul": anatune.matmul(512, 1024, 256, dtype="bfloat16"),
    "odd": anatune.matmul(37, 29, 19, dtype="float16"),
    "tf32": anatune.matmul(64, 96, 40),
    "conv": anatune.conv2d(1, 16, 14, 14, 32, 3, 3, padding=1, dtype="float16"),
}


def space_of(workload: Workload, device: str = "a100") -> TensorCoreSpace:
    return TensorCoreModel(workload, gpu(device)).space


@pytest.mark.parametrize("name", WORKLOADS)
def test_points_and_coordinates(name: str) -> None:
    space = space_of(WORKLOADS[name])
    assert space.size == math.prod(space.radices)
    rng = np.random.default_rng(0)
    numbers = np.column_stack([rng.integers(0, radix, 200) for radix in space.radices])
    points = space.decode(numbers)
    assert points.shape == (200, len(space.columns))
    assert space.encode(points).tolist() == numbers.tolist()


@pytest.mark.parametrize("name", WORKLOADS)
def test_schedules_round_trip(name: str) -> None:
    space = space_of(WORKLOADS[name])
    for schedule in space.sample(50, seed=3):
        again = Schedule.from_json(schedule.to_json())
        assert again == schedule
        assert space.schedule_of(space.point_of(again)) == schedule
        for axis, factors in schedule.tiles.items():  # as many blocks as cover the extent, no more
            block = math.prod(factors[1:])
            assert (factors[0] - 1) * block < space.extents[axis] <= factors[0] * block
            assert factors[-1] == dict(zip("mnk", INSTRUCTION[WORKLOADS[name].dtype], strict=True))[axis]


def test_samples_are_legal_and_repeatable() -> None:
    model = TensorCoreModel(WORKLOADS["matmul"], gpu("rtx3090"))
    points = model.space.sample_points(100, seed=5)
    assert (model.check(points) == 0).all()
    assert model.space.sample_points(100, seed=5).tolist() == points.tolist()


def test_every_perfect_tile_is_there() -> None:
    space = space_of(anatune.conv2d(1, 64, 28, 28, 64, 3, 3, padding=1, dtype="float16", layout="NHWC"))
    tiles = {int(warp * mma) for warp, mma in space._warp_tiles("m")}
    assert space.extents["m"] == 784
    assert 7 in tiles  # 784 = 7 blocks of 7 x 16


def test_defaults_are_the_widest_fetches() -> None:
    schedule = space_of(WORKLOADS["matmul"]).schedule({"m": (2, 4), "n": (2, 8), "k": (2,)})
    assert schedule.tiles == {"m": (4, 2, 4, 16), "n": (8, 2, 8, 8), "k": (8, 2, 16)}
    assert schedule.vector == {"A": 8, "B": 8}
    assert schedule.options == {"stages": 3, "group": 8}
    assert schedule.template == "tensorcore"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (({"i": (2, 2)},), "unknown index 'i'"),
        (({"m": (2, 2, 2)},), "expected 2: warp, mma"),
        (({"m": (0, 2)},), "expected an integer >= 1"),
        (({}, 5), ">= 1 and at most 4"),
        (({}, 0), "expected an integer >= 1"),
        (({}, 2, 0), "expected an integer >= 1"),
        (({}, 2, 1, {"C": 8}), "unknown tensor 'C'"),
        (({}, 2, 1, {"A": 16}), "wider ones are not aligned"),
        (([],), "mappings"),
    ],
)
def test_bad_schedules(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(SpaceError, match=words) as caught:
        space_of(WORKLOADS["matmul"]).schedule(*arguments)
    assert "\n" not in str(caught.value)


def test_foreign_and_damaged_schedules() -> None:
    space = space_of(WORKLOADS["matmul"])
    schedule = space.schedule({})
    text = schedule.to_json()
    with pytest.raises(SpaceError, match="used with"):
        space_of(WORKLOADS["odd"]).point_of(schedule)
    with pytest.raises(SpaceError, match="unknown"):
        space.point_of(Schedule.from_json(text.replace('"group":8', '"depth":8')))
    with pytest.raises(SpaceError, match="as many blocks as cover"):
        space.point_of(Schedule.from_json(text.replace('"m":[32,', '"m":[31,')))
    with pytest.raises(SpaceError, match="expected a tile of the space"):
        space.encode(np.full((1, len(space.columns)), 3))


@pytest.mark.parametrize(
    ("workload", "device", "words"),
    [
        (anatune.matmul(64, 64, 64, dtype="float16"), "v100", "sm_80 or later"),
        (anatune.matmul(64, 64, 64, dtype="float16"), "mi50", "sm_80 or later"),
        (anatune.matmul(64, 64, 64, dtype="int8"), "a100", "dtype is int8"),
        (anatune.max_pool2d(1, 8, 8, 8, 2, 2), "a100", "no product of two tensors"),
    ],
)
def test_refusals(workload: Workload, device: str, words: str) -> None:
    with pytest.raises(SpaceError, match=words) as caught:
        TensorCoreModel(workload, gpu(device))
    assert "\n" not in str(caught.value)


def test_a_spec_that_says_nothing_of_tensor_cores_is_refused() -> None:
    spec = msgspec.structs.replace(gpu("a100"), tensor_cores=None)
    with pytest.raises(SpaceError, match="does not say what its tensor cores do"):
        TensorCoreModel(anatune.matmul(64, 64, 64, dtype="float16"), spec)
