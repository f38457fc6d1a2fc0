"""Workloads of which one extent varies: as people type them, at each extent, and what cannot vary."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.workload.ranges import (
    MOST_EXTENTS,
    RangedWorkload,
    has_range,
    make_ranged_workload,
    parse_ranged_workload,
)
from anatune.errors import WorkloadError
from tests.wording import refuses


@pytest.mark.parametrize(
    ("words", "axis", "extents"),
    [
        ("matmul 1..8192x4096x4096", "i", range(1, 8193)),
        ("matmul 512x64..256:64x32", "j", [64, 128, 192, 256]),
        ("matmul 512x64x7..9", "k", [7, 8, 9]),
        ("matmul 1,8,2x64x64", "i", [1, 2, 8]),
        ("batch_matmul 12x3..5x128x64", "i", [3, 4, 5]),
        ("conv2d 1..4x64x56x56 64x64x3x3", "n", [1, 2, 3, 4]),
        ("conv2d 1x64x56x56 3..5x64x3x3", "f", [3, 4, 5]),
    ],
)
def test_words_are_read_and_each_extent_is_the_constructors_own_workload(words, axis, extents):
    found = parse_ranged_workload(words.split())
    assert (found.axis, found.extents) == (axis, tuple(sorted(extents)))
    for extent in (found.extents[0], found.extents[-1]):
        single = found.at(extent)
        assert single.extents[axis] == extent
        assert single == anatune.core.workload.operators.CONSTRUCTORS[single.operator](**single.attribute)
    assert msgspec.json.decode(msgspec.json.encode(found), type=RangedWorkload) == found
    np.testing.assert_array_equal(found.numbers, found.extents)


def test_options_reach_the_constructor():
    found = parse_ranged_workload(
        ["conv2d", "1..4x64x56x56", "64x64x3x3"], stride="2", padding="1", epilogue="bias,relu"
    )
    assert found.at(3) == anatune.conv2d(
        n=3, c=64, h=56, w=56, k=64, r=3, s=3, stride=2, padding=1, epilogue=("bias", "relu")
    )


def test_a_residual_of_the_results_shape_grows_with_it():
    found = make_ranged_workload(anatune.matmul(8, 16, 32, epilogue=("bias", "add")), "i", "1..8")
    assert found.at(5) == anatune.matmul(5, 16, 32, epilogue=("bias", "add"))


@pytest.mark.parametrize(
    "words",
    [
        "matmul 8..1x4x4",
        "matmul 0..8x4x4",
        "matmul 1..8:0x4x4",
        "matmul 1..x4x4",
        "matmul ..x4x4",
        "matmul 0,1x4x4",
        "matmul 1..8x1..8x4",
        "matmul 1..99999999x4x4",
        "conv2d 1x64x56x56 64x64x1..3x3",
        "conv2d 1x64x7..56x56 64x64x3x3 --padding 1",
        "conv2d 1x64x56x56 64x64x1..3x3 --padding 0",
    ],
)
def test_what_is_no_range_is_refused_in_one_line(words):
    with refuses(WorkloadError) as caught:
        parse_ranged_workload(words.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("axis", ["ry", "rx", "y"])
def test_windows_and_what_they_slide_over_cannot_vary(axis):
    workload = anatune.conv2d(n=1, c=64, h=56, w=56, k=64, r=3, s=3, padding=1)
    with refuses(WorkloadError):
        make_ranged_workload(workload, axis, [1, 2, 3])


@pytest.mark.parametrize(
    ("axis", "extents"),
    [("z", "1..8"), ("i", []), ("i", [1.5]), ("i", [True]), ("i", 8), ("i", range(1, MOST_EXTENTS + 2))],
)
def test_what_the_library_is_given_is_checked(axis, extents):
    with refuses(WorkloadError):
        make_ranged_workload(anatune.matmul(4, 4, 4), axis, extents)


def test_plain_words_have_no_range():
    assert has_range(["matmul", "1..8x4x4"])
    assert has_range(["matmul", "1,2x4x4"])
    assert not has_range(["matmul", "8x4x4"])
    assert not has_range(["einsum", "bij,bjk->bik", "16x32x64", "16x64x128"])


def test_ranges_are_spelled_in_short():
    assert make_ranged_workload(anatune.matmul(4, 4, 4), "i", range(1, 9)).format_extents() == "1..8"
    assert make_ranged_workload(anatune.matmul(4, 4, 4), "i", range(4, 17, 4)).format_extents() == "4..16:4"
    assert make_ranged_workload(anatune.matmul(4, 4, 4), "i", [3, 1]).format_extents() == "1,3"
