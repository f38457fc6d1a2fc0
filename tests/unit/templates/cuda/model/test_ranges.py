"""Programs of CUDA cores for a range, beside every schedule of single shapes."""

import time
from unittest import mock

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.ranges import parse_ranged_workload
from anatune.model.ranges.plan import RangePlan
from anatune.model.ranges.planning import Goal, plan_families
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.model.ranged_tiles import MACRO_BOUND, PREDICT, RangedTiles
from anatune.templates.cuda.model.ranges import CudaRanges, _Octave

GPU = anatune.hardware("rtx3090")


def family(words, **options):
    return CudaRanges(parse_ranged_workload(words.split(), **options), GPU)


@pytest.mark.parametrize("words", ["matmul 1..40x32x64", "matmul 24x8..60:4x64", "matmul 16x32x16..64:16"])
def test_times_are_those_of_single_shapes(words):
    programs_of_range = family(words)
    programs = list(programs_of_range.candidates(Watch()))[:40]
    table = programs_of_range.times(programs)
    for program, row in zip(programs, table, strict=True):
        for extent, seconds in list(zip(programs_of_range.workload.extents, row, strict=True))[::7]:
            schedule = programs_of_range.schedule(program, extent)
            assert schedule.check().workload == programs_of_range.workload.at(extent)
            assert Schedule.from_json(schedule.to_json()) == schedule
            model = CudaModel(schedule.workload, GPU)
            if model.space.splits is None and schedule.options:
                continue  # the single shape's own space lists no splits
            times, rules = model.times(np.array([model.space.point_of(schedule)]))
            assert (seconds if np.isfinite(seconds) else 0.0) == pytest.approx(times[0] if rules[0] == 0 else 0.0)


@pytest.mark.parametrize("words", ["matmul 1..24x32x64", "matmul 16x32x8..48:8"])
def test_no_schedule_of_a_single_shape_beats_the_bounds(words):
    ranges = family(words)
    bounds = ranges.bounds(np.full(len(ranges.workload.extents), 1.0), Watch())
    assert bounds.is_complete
    for extent, seconds in list(zip(ranges.workload.extents, bounds.seconds, strict=True))[::5]:
        model = CudaModel(ranges.workload.at(extent), GPU)
        best = float(model.times(model.rank(1).points)[0][0])
        assert seconds <= best * (1 + 1e-9)
        assert seconds >= 0.5 * best


@pytest.mark.parametrize(("kernels", "words"), [(1, "matmul 1..48x64x64"), (2, "matmul 1..48x64x64")])
def test_a_plans_proven_loss_holds_against_plans_of_single_shapes(kernels, words):
    ranges = family(words)
    plan = plan_families([ranges], Goal(programs=kernels), Watch())
    assert plan.is_complete
    assert plan.known_loss <= plan.loss <= plan.known_loss + 5e-3
    for extent in (1, 5, 17, 31, 32, 48):
        program = plan.programs[plan.program_of(extent)].schedule
        single = CudaModel(ranges.workload.at(extent), GPU)
        best = float(single.times(single.rank(1).points)[0][0])
        tiles = {axis: factors[1:] for axis, factors in program.tiles.items()}
        chosen = [p for p in ranges._times if _inner(ranges, p, extent) == (tiles, program.unroll)]
        seconds = min(ranges.times(chosen)[:, ranges.workload.extents.index(extent)])
        assert seconds / best - 1 <= plan.loss + 1e-9


def _inner(ranges, program, extent):
    schedule = ranges.schedule(program, extent)
    return {axis: factors[1:] for axis, factors in schedule.tiles.items()}, schedule.unroll


@pytest.mark.parametrize("words", ["matmul 1..600x96x128", "matmul 64x1..600x128", "matmul 64x96x1..600"])
def test_bounds_hold_for_all_larger_extents(words):
    tiles = RangedTiles(parse_ranged_workload(words.split()), GPU)
    rng = np.random.default_rng(0)
    macros = tiles.slab(0)
    macros = macros[rng.choice(len(macros), 300, replace=False)]
    rows = tiles.split(macros, tiles.splits)
    points = np.concatenate(
        [tiles.space.members(row)[:3] for one in rows[::37] for row in tiles.space.classes(one)[:4]]
    )
    extents = [1, 2, 7, 16, 33, 64, 65, 127, 128, 200, 256, 399, 400, 512, 600]
    bounds = np.array([tiles.bounds(extent, macros) for extent in extents])
    splits = np.array([tiles.run(extent, rows, MACRO_BOUND) for extent in extents])
    best = splits.reshape(len(extents), len(macros), -1).min(axis=2)
    later = np.minimum.accumulate(best[::-1])[::-1]  # the best from each extent on
    legal = np.isfinite(later) & np.isfinite(bounds)
    assert (bounds[legal] <= later[legal] * (1 + 1e-9)).all()
    exact = np.array([tiles.run(extent, points, PREDICT) for extent in extents])
    later = np.minimum.accumulate(exact[::-1])[::-1]
    evenly = np.array([tiles.run(extent, points, PREDICT, ignores_edges=True) for extent in extents])
    legal = np.isfinite(evenly) & np.isfinite(later)
    assert (evenly[legal] <= later[legal] * (1 + 1e-9)).all()


def test_a_time_limit_leaves_what_is_proven():
    ranges = family("matmul 1..512x256x256")
    plan = plan_families([ranges], Goal(programs=3), Watch(2.0))
    assert not plan.is_complete or plan.loss < 1
    assert plan.known_loss <= plan.loss
    assert plan.intervals[0].first == 1


def test_bounds_of_macro_choices_are_below_each_split():
    tiles = RangedTiles(parse_ranged_workload(["matmul", "1..64x64x512"]), GPU)
    macros = tiles.slab(0)[::97]
    rows = tiles.split(macros, tiles.splits)
    best = tiles.run(32, rows, MACRO_BOUND).reshape(len(macros), -1).min(axis=1)
    assert (tiles.bounds(32, macros) <= best * (1 + 1e-9)).all()


def test_intervals_follow_the_time_of_extents():
    ranges = family("conv2d 1..8x64x30x30 128x64x3x3")
    tiles, numbers = ranges._tiles, ranges.workload.numbers
    floors = np.array([tiles.least_time_s(extent) for extent in numbers.tolist()])
    octaves = ranges._octaves(Watch(0.0))  # one part of the macro choices each
    assert [one.first for one in octaves[1:]] == [one.last + 1 for one in octaves[:-1]]
    assert all(floors[one.last] <= 2 * floors[one.first] for one in octaves)
    assert len(octaves) > 1
    assert not any(one.is_done for one in octaves)
    bounds = ranges.bounds(np.full(len(numbers), 1.0), Watch(0.0))
    assert not bounds.is_complete
    assert (bounds.seconds == floors).all()  # what is proven without a search


def test_a_time_limit_holds_for_many_macro_choices():
    ranges, shares = family("conv2d 1..8x64x30x30 128x64x3x3"), []
    start = time.monotonic()
    plan = plan_families([ranges], Goal(programs=2), Watch(1.0, shares.append))
    assert time.monotonic() - start < 20.0  # of the work of minutes; machines are slow at times
    assert not plan.is_complete
    assert np.isfinite(plan.loss)
    assert shares == sorted(shares)
    assert RangePlan.from_json(plan.to_json()) == plan


def test_what_is_proven_is_not_searched_again():
    ranges = family("matmul 1..24x32x64")
    limits = np.full(len(ranges.workload.extents), 1.0)
    bounds = ranges.bounds(limits, Watch())
    with mock.patch.object(RangedTiles, "run", side_effect=AssertionError):
        again = ranges.bounds(bounds.seconds, Watch())
        assert again.is_complete
    assert (again.seconds == bounds.seconds).all()


def test_bounds_of_the_first_interval_hide_nothing_from_the_others():
    ranges = family("matmul 100..8000:100x128x64")
    octaves = ranges._octaves(Watch())
    assert len(octaves) > 1
    for octave in octaves[1:]:
        numbers = ranges.workload.numbers
        alone = _Octave(ranges._tiles, numbers, octave.first, octave.last, 0.0, [])
        alone.bound_choices(Watch())
        assert (alone.macros == octave.macros).all()
        assert (alone.bounds == octave.bounds).all()
        assert alone.cut_s == octave.cut_s
