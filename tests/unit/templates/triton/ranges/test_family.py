"""Programs of Triton for a range, beside every kernel of single shapes."""

import functools

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import parse_ranged_workload
from anatune.errors import SpaceError
from anatune.templates import make_model
from anatune.templates.base.watch import Watch
from anatune.templates.gpu.ranged import Ranged
from anatune.templates.triton import TRITON
from anatune.templates.triton.ranges.family import TritonRanges
from tests.wording import refuses

CASES = [
    ("rtx4090", "matmul 1..20x64x96", "float16"),
    ("h100", "matmul 1..40:6x32x64", "bfloat16"),
    ("h100", "matmul 15,16,17,33x32x128", "float8_e4m3fn"),
    ("b200", "batch_matmul 1..5x32x48x64", "float16"),
    ("mi300x", "matmul 20..50:5x64x64", "float16"),
    ("a100", "conv2d 1..3x16x6x6 24x16x3x3", "float16"),
]


@functools.cache
def family(hw, words, dtype):
    return TritonRanges(parse_ranged_workload(words.split(), dtype=dtype), anatune.hardware(hw))


@pytest.mark.parametrize(("hw", "words", "dtype"), CASES)
def test_the_best_of_each_extent_is_that_of_the_single_shape(hw, words, dtype):
    ranges = family(hw, words, dtype)
    programs = list(ranges.candidates(Watch()))
    table = ranges.times(programs)
    bounds = ranges.bounds(np.full(len(ranges.workload.extents), 1.0), Watch())
    assert bounds.is_complete
    for number, extent in enumerate(ranges.workload.extents):
        model = make_model(ranges.workload.at(extent), ranges.hardware, "triton", "standard")
        best = float(model.times(model.rank(1).points)[0].min())
        assert bounds.seconds[number] <= best * (1 + 1e-9)
        assert bounds.seconds[number] == pytest.approx(best, rel=2e-2)  # a tile of a larger extent may be faster
        assert table[:, number].min() == pytest.approx(bounds.seconds[number])


@pytest.mark.parametrize(("hw", "words", "dtype"), CASES[:4])
def test_programs_are_schedules_of_each_extent(hw, words, dtype):
    ranges = family(hw, words, dtype)
    programs = list(ranges.candidates(Watch()))
    for extent in ranges.workload.extents[1::7]:
        schedule = ranges.schedule(programs[-1], extent)
        assert schedule.check().workload == ranges.workload.at(extent)
        assert Schedule.from_json(schedule.to_json()) == schedule
        model = make_model(schedule.workload, ranges.hardware, "triton", "standard")
        seconds, _ = model.times(np.array([model.space.point_of(schedule)]))
        number = ranges.workload.extents.index(extent)
        assert ranges.times(programs[-1:])[0, number] == pytest.approx(seconds[0])


@pytest.mark.parametrize(("hw", "words", "dtype"), [CASES[0], CASES[1], ("b200", "matmul 1..64:5x96x512", "float16")])
def test_times_change_no_faster_than_the_extent_within_a_group(hw, words, dtype):
    # what the proof of the best of each extent rests on
    ranges = family(hw, words, dtype)
    points = ranges._points[:: max(1, len(ranges._points) // 300)]
    for first, stop in ranges._groups:
        extents = ranges.workload.extents[first:stop]
        before = ranges._seconds(extents[0], points)
        for extent in extents[1:]:
            assert (ranges._seconds(extent, points) >= before * extents[0] / extent * (1 - 1e-9)).all()


def test_a_time_limit_leaves_bounds_that_hold():
    ranges = family.__wrapped__(*CASES[0])
    programs = list(ranges.candidates(Watch(1e-9)))
    assert np.isfinite(ranges.times(programs)).any(axis=0).all()
    short = ranges.bounds(np.full(20, 1.0), Watch(1e-9))
    assert not short.is_complete
    assert (short.seconds <= ranges.bounds(np.full(20, 1.0), Watch()).seconds * (1 + 1e-9)).all()


@pytest.mark.parametrize("words", ["matmul 16x8..32:8x64", "matmul 16x64x8..32:8", "batch_matmul 2x8..32:8x16x16"])
def test_an_axis_that_addresses_depend_on_is_refused(words):
    with refuses(SpaceError):
        family("rtx4090", words, "float16")


@pytest.mark.parametrize(("hw", "words", "dtype"), [case for case in CASES if "float8" not in case[2]])
def test_every_program_has_a_kernel_that_takes_the_extent(hw, words, dtype):
    ranges = family(hw, words, dtype)
    axis, last = ranges.workload.axis, ranges.workload.extents[-1]
    for program in ranges.candidates(Watch(1e-9)):
        kernels = TRITON.program(ranges.schedule(program, last), Ranged(axis, 1, last)).kernels
        single = TRITON.program(ranges.schedule(program, 1)).kernels
        assert [kernel.at(1).grid for kernel in kernels] == [kernel.grid for kernel in single]


def test_float32_is_not_rounded_without_being_asked():
    with refuses(SpaceError):
        family("rtx4090", "matmul 8,16x16x16", "float32")
