import math

import pytest

import anatune
from anatune import api
from anatune.model import alternatives as module


@pytest.fixture(params=["rtx3090", "xeon_gold_6230r"], scope="module")
def planned(request):
    workload, hardware = anatune.matmul(64, 96, 32), anatune.hardware(request.param)
    return api.model(workload, hardware), anatune.plan(workload, hardware, 1)


def test_each_is_legal_slower_and_of_its_own_axis(planned):
    model, plan = planned
    found = module.find_alternatives(model, plan.best, 0.02)
    assert found
    assert len({choice.axis for choice in found}) == len(found)
    times = [choice.prediction.time_s for choice in found]
    assert times == sorted(times, reverse=True)
    assert min(times) >= 1.02 * plan.predictions[0].time_s
    assert all(choice.prediction.legal for choice in found)


def test_steps_are_points_of_the_space(planned):
    model, plan = planned
    steps = list(module._list_changes(model, plan.best))
    assert len({tuple(point) for _, _, point in steps}) == len(steps)
    for _, change, point in steps:
        schedule = model.space.schedule_of(point)
        assert schedule != plan.best
        assert {axis: math.prod(factors) for axis, factors in schedule.tiles.items()} == model.space.extents
        assert change


def test_nothing_is_that_slow(planned):
    model, plan = planned
    assert module.find_alternatives(model, plan.best, 1e9) == []
