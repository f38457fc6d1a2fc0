"""The tile space of the template winograd."""

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.accuracy import accuracy_of, error_of
from anatune.errors import SpaceError
from anatune.templates.winograd.model import WinogradModel
from anatune.templates.winograd.space import WinogradSpace
from tests.wording import refuses

HARDWARE = anatune.hardware("xeon_gold_6230r")
WORKLOAD = anatune.conv2d(1, 20, 13, 13, 40, 3, 3, padding=1)


@pytest.fixture(scope="module")
def space():
    return api.model(WORKLOAD, HARDWARE, "winograd").space


def test_points_and_schedules_are_the_same(space):
    points = space.sample_points(200, seed=4)
    assert np.array_equal(space.decode(space.encode(points)), points)
    for point in points:
        schedule = space.schedule_of(point).check()
        assert np.array_equal(space.point_of(schedule), point)
        assert (schedule.options["parallel"], "split" in schedule.options) in ((True, True), (False, False))


def test_the_space_is_small_and_each_part_without_repeats(space):
    assert space.size == np.prod(space.radices) < 1_000_000
    for part in space.parts:
        assert len(np.unique(part.table, axis=0)) == part.count
    largest = anatune.conv2d(8, 1024, 224, 224, 1024, 3, 3, padding=1)
    assert WinogradSpace(largest, HARDWARE, None).size < 1_000_000


def test_accuracy_leaves_out_the_larger_tile(space):
    assert space.choices["output_tile"] == (2, 4)
    assert WinogradModel(WORKLOAD, HARDWARE, accuracy="standard").space.choices["output_tile"] == (2,)
    small, large = (space.schedule({"p": (1, 4)}, size) for size in (2, 4))
    assert (accuracy_of(small), accuracy_of(large)) == ("standard", "relaxed")
    assert 0.0 < error_of(small) < error_of(large) < 1e-4
    with refuses(SpaceError):
        WinogradModel(WORKLOAD, HARDWARE, accuracy="perfect")


@pytest.mark.parametrize(
    "arguments", [({"p": (1, 2, 3)},), ({"x": (1,)},), ({"p": (0, 2)},), ({}, 3), ({}, 2, "rows"), (7,)]
)
def test_wrong_arguments_are_one_line(space, arguments):
    with refuses(SpaceError):
        space.schedule(*arguments)


def test_schedules_of_others_are_refused(space):
    other = api.model(anatune.conv2d(1, 8, 9, 9, 8, 3, 3), HARDWARE, "winograd").space.schedule({})
    with refuses(SpaceError):
        space.point_of(other)
