"""What is a schedule of the template winograd."""

import msgspec
import pytest

import anatune
from anatune import api
from anatune.errors import SpaceError
from anatune.templates.winograd import WINOGRAD
from tests.wording import refuses

HARDWARE = anatune.hardware("xeon_gold_6230r")
WORKLOAD = anatune.conv2d(1, 20, 13, 13, 40, 3, 3, padding=1)
SCHEDULE = api.model(WORKLOAD, HARDWARE, "winograd").space.schedule({"p": (2, 7), "f": (1, 2), "c": (4,)}, 4, "tiles")


def test_the_schedule_is_one():
    assert SCHEDULE.check() is SCHEDULE
    assert dict(SCHEDULE.tiles) == {"p": (2, 2, 7), "f": (2, 1, 2, 16), "c": (5, 4)}
    assert anatune.Schedule.from_json(SCHEDULE.to_json()) == SCHEDULE
    assert WINOGRAD.takes(WORKLOAD, HARDWARE)
    assert not WINOGRAD.takes(anatune.matmul(4, 4, 4), HARDWARE)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("options", {"output_tile": 3}),
        ("options", {"output_tile": True}),
        ("options", {"output_tile": 2}),
        ("options", {"parallel": 1}),
        ("options", {"parallel": False}),
        ("options", {"split": "rows"}),
        ("options", {"packed": ()}),
        ("tiles", {"p": (1, 2, 7)}),
        ("tiles", {"p": (2, 14)}),
        ("tiles", {"f": (5, 1, 1, 8)}),
        ("tiles", {"c": (7, 3)}),
        ("tiles", {"x": (1,)}),
        ("vector", {"data": 4}),
    ],
)
def test_one_line_names_the_field(field, changes):
    wrong = msgspec.structs.replace(SCHEDULE, **{field: {**getattr(SCHEDULE, field), **changes}})
    with refuses(SpaceError) as caught:
        wrong.check()
    assert str(caught.value).startswith("schedule of conv2d (winograd): ")


def test_operands_of_8_bits_need_the_instruction_for_pairs():
    workload = anatune.conv2d(1, 20, 13, 13, 40, 3, 3, padding=1, layout="NHWC", dtype="uint8xint8")
    zen3 = anatune.hardware("epyc_7763")
    assert WINOGRAD.takes(workload, zen3)
    assert not WINOGRAD.takes(workload, HARDWARE)  # VNNI multiplies four at a time
    with refuses(SpaceError):
        anatune.plan(workload, HARDWARE, template="winograd")
    schedule = api.model(workload, zen3, "winograd").space.schedule({"p": (2, 7), "f": (1, 2), "c": (4,)})
    assert schedule.check() is schedule
    for size, unroll in ((4, 4), (2, 1)):
        wrong = msgspec.structs.replace(
            schedule,
            tiles={**schedule.tiles, "c": (20 // unroll, unroll)},
            unroll=unroll,
            options={**schedule.options, "output_tile": size},
        )
        with refuses(SpaceError):
            wrong.check()


def test_unrolling_divides_the_lanes():
    wrong = msgspec.structs.replace(SCHEDULE, tiles={**SCHEDULE.tiles, "c": (7, 3)}, unroll=3)
    with refuses(SpaceError):
        wrong.check()
    with refuses(SpaceError):
        msgspec.structs.replace(SCHEDULE, unroll=8).check()
