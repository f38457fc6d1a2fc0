"""The tile space of the template fp16_accumulation: calls that are short enough to sum in float16."""

import msgspec
import numpy as np
import pytest

import anatune
from anatune import api
from anatune.core.accuracy import accuracy_of, error_of, rounding_error
from anatune.errors import SpaceError
from anatune.templates.cpu.extension_spaces import HalfSumsSpace
from tests.wording import refuses

HARDWARE = anatune.hardware("xeon_8480")
MATMUL = anatune.matmul(24, 96, 1024, dtype="float16")
WINDOW = anatune.conv2d(1, 60, 9, 9, 32, 3, 3, padding=1, layout="NHWC", dtype="float16:float32")


def terms(schedule):
    return np.prod([schedule.tiles[axis.name][-2:] for axis in schedule.workload.reduction_axes])


@pytest.mark.parametrize(("workload", "axis"), [(MATMUL, "k"), (WINDOW, "rc")])
def test_calls_are_short_and_err_as_their_sums_are_long(workload, axis):
    space = api.model(workload, HARDWARE, "fp16_accumulation").space
    points = space.sample_points(200, seed=2)
    assert np.array_equal(space.decode(space.encode(points)), points)
    errors = {}
    for point in points:
        schedule = space.schedule_of(point).check()
        assert np.array_equal(space.point_of(schedule), point)
        assert accuracy_of(schedule) == "relaxed"
        assert schedule.options["extension"] == "fp16"
        assert terms(schedule) <= 128
        if schedule.tiles[axis][-1] % 2 == 0:  # the groups are full
            errors[int(terms(schedule))] = error_of(schedule)
    sums = rounding_error(workload)
    want = {number: sums + 4 * 2.0**-10 * np.sqrt(number / 2 + 2) for number in errors}
    assert errors == pytest.approx(want)
    assert len(errors) > 3


def test_longer_calls_are_no_schedules():
    space = HalfSumsSpace(MATMUL, HARDWARE, lambda _: True)
    good = space.schedule({"k": (1, 8, 64, 2)}).check()
    with refuses(SpaceError):
        space.schedule({"k": (1, 4, 128, 2)}).check()
    longer = space.point_of(good)
    longer[[space.columns.index(f"k.{level}") for level in ("l2", "l1")]] = (4, 128)
    with refuses(SpaceError):
        space.encode(longer[None])
    with refuses(SpaceError):
        msgspec.structs.replace(good, options={k: v for k, v in good.options.items() if k != "extension"}).check()
    with refuses(SpaceError):
        msgspec.structs.replace(good, template="cpu").check()


def test_it_has_to_be_asked_for():
    plan = anatune.plan(MATMUL, HARDWARE, 1)
    assert plan.templates == ("cpu",)
    relaxed = anatune.plan(MATMUL, HARDWARE, 1, accuracy="relaxed")
    assert relaxed.templates == ("cpu", "fp16_accumulation")
    assert relaxed.best.template == "fp16_accumulation"
    assert relaxed.predictions[0].time_s < plan.predictions[0].time_s
    assert anatune.plan(MATMUL, "ryzen_9950x", 1, accuracy="relaxed").templates == ("cpu",)
    with refuses(SpaceError):
        anatune.plan(MATMUL, HARDWARE, 1, template="fp16_accumulation")
    with refuses(SpaceError):
        anatune.plan(MATMUL, "xeon_gold_6230r", 1, template="fp16_accumulation", accuracy="relaxed")
