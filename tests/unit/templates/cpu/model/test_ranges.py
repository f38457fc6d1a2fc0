"""CPU programs for a range: their times are the model's, their bounds hold for every schedule of a single shape."""

import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.workload.ranges import make_ranged_workload
from anatune.errors import SpaceError
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.model.ranges import CpuFamily
from anatune.templates.cpu.range_space import schedule_at
from tests.wording import refuses

HW = api.hardware("amd_ryzen_7950x").with_threads(2)


def family(workload, axis, extents):
    return CpuFamily(make_ranged_workload(workload, axis, extents), HW)


PRODUCT = family(anatune.matmul(40, 48, 36), "i", range(1, 41))
BATCH = family(anatune.batch_matmul(5, 9, 32, 8), "b", range(1, 6))


@pytest.mark.parametrize("cpu_family", [PRODUCT, BATCH])
def test_times_are_those_of_schedules_of_single_shapes(cpu_family):
    programs = cpu_family.candidates(Watch())
    times = cpu_family.times(programs)
    assert np.isfinite(times).any(axis=1).all()
    for number in range(0, len(programs), max(1, len(programs) // 12)):
        for index, extent in enumerate(cpu_family.workload.extents):
            schedule = cpu_family.schedule(programs[number], extent).check()
            model = CpuModel(
                cpu_family.workload.at(extent),
                HW,
                simd=str(schedule.options["simd_axis"]),
                constants=cpu_family.constants,
            )
            assert schedule.workload == cpu_family.workload.at(extent)
            if np.isfinite(times[number, index]):
                assert times[number, index] == pytest.approx(
                    model.times(model.space.point_of(schedule))[0][0], rel=1e-12
                )


@pytest.mark.parametrize("cpu_family", [PRODUCT, BATCH])
def test_no_plan_of_a_single_shape_undercuts_a_bound(cpu_family):
    times = cpu_family.times(cpu_family.candidates(Watch())).min(axis=0)
    plain = cpu_family.bounds(np.full(len(times), np.inf), Watch()).seconds
    bounds = cpu_family.bounds(times, Watch())
    assert bounds.is_complete
    assert (bounds.seconds <= times).all()
    assert (times <= 1.02 * bounds.seconds).all()  # programs of one level of loops lose nothing here
    for index, extent in enumerate(cpu_family.workload.extents):
        single = api.plan(cpu_family.workload.at(extent), HW, top_k=1, template="cpu").predictions[0].time_s
        assert plain[index] <= single
        assert bounds.seconds[index] <= single * (1 + 1e-9)


def test_what_is_known_is_proven_when_the_time_is_up():
    cpu_family = family(anatune.matmul(30, 48, 36), "i", range(1, 31))
    over = Watch(0.0)
    early = cpu_family.bounds(np.full(30, np.inf), over)
    assert not early.is_complete
    times = cpu_family.times(cpu_family.candidates(over)).min(axis=0)
    late = cpu_family.bounds(times, over)
    assert (late.seconds > 0).all()
    assert (late.seconds <= cpu_family.bounds(times, Watch()).seconds).all()


def test_the_number_of_rows_of_a_call_is_kept_at_every_extent():
    program = next(one for one in PRODUCT.candidates(Watch()) if one.options.get("most.i") == 7)
    sizes = {(extent, PRODUCT.schedule(program, extent).options.get("pair.i")) for extent in (7, 8, 13, 40)}
    assert sizes == {(7, None), (8, None), (13, (1, 6, 1, 7)), (40, (2, 6, 4, 7))}
    assert PRODUCT.schedule(program, 7).tiles["i"] == (1, 1, 1, 1, 7)
    assert PRODUCT.schedule(program, 8).tiles["i"] == (1, 1, 1, 2, 4)
    again = anatune.Schedule.from_json(PRODUCT.schedule(program, 23).to_json())
    assert schedule_at(again, "i", 7) == PRODUCT.schedule(program, 7)


def test_what_has_no_range_is_one_line():
    with refuses(SpaceError):
        family(anatune.batch_matmul(5, 9, 32, 8), "i", range(1, 9))
    with refuses(SpaceError):
        family(anatune.matmul(9, 8, 8), "j", range(1, 9))
