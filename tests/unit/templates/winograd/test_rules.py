"""What is a schedule of the template winograd."""

import msgspec
import pytest

import anatune
from anatune import api
from anatune.errors import SpaceError
from anatune.templates.winograd import WINOGRAD

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
    ("field", "changes", "message"),
    [
        ("options", {"output_tile": 3}, r"output_tile is 3, expected one of \(2, 4\)"),
        ("options", {"output_tile": True}, "output_tile is True"),
        ("options", {"output_tile": 2}, "expected 4 first"),
        ("options", {"parallel": 1}, "parallel is 1, expected true or false"),
        ("options", {"parallel": False}, "split is 'tiles', expected none without parallel"),
        ("options", {"split": "rows"}, "split is 'rows', expected one of tiles, channels"),
        ("options", {"packed": ()}, "unknown name 'packed'"),
        ("tiles", {"p": (1, 2, 7)}, "expected 2 first: as many blocks as cover the extent 16"),
        ("tiles", {"p": (2, 14)}, "expected 3 factors >= 1: block, call, row"),
        ("tiles", {"f": (5, 1, 1, 8)}, "lane, the last one 16"),
        ("tiles", {"c": (7, 3)}, "unroll"),
        ("tiles", {"x": (1,)}, "unknown index 'x'"),
        ("vector", {"data": 4}, "expected none"),
    ],
)
def test_one_line_names_the_field(field, changes, message):
    wrong = msgspec.structs.replace(SCHEDULE, **{field: {**getattr(SCHEDULE, field), **changes}})
    with pytest.raises(SpaceError, match=message) as caught:
        wrong.check()
    assert str(caught.value).startswith("schedule of conv2d (winograd): ")


def test_operands_of_8_bits_need_the_instruction_for_pairs():
    workload = anatune.conv2d(1, 20, 13, 13, 40, 3, 3, padding=1, layout="NHWC", dtype="uint8xint8")
    zen3 = anatune.hardware("epyc_7763")
    assert WINOGRAD.takes(workload, zen3)
    assert not WINOGRAD.takes(workload, HARDWARE)  # VNNI multiplies four at a time
    with pytest.raises(SpaceError, match="xeon_gold_6230r multiplies 8 bits directly, expected a CPU with vpmaddwd"):
        anatune.plan(workload, HARDWARE, template="winograd")
    schedule = api.model(workload, zen3, "winograd").space.schedule({"p": (2, 7), "f": (1, 2), "c": (4,)})
    assert schedule.check() is schedule
    for size, unroll, message in ((4, 4, r"output_tile is 4, expected one of \(2,\)"), (2, 1, "an even divisor of 16")):
        wrong = msgspec.structs.replace(
            schedule,
            tiles={**schedule.tiles, "c": (20 // unroll, unroll)},
            unroll=unroll,
            options={**schedule.options, "output_tile": size},
        )
        with pytest.raises(SpaceError, match=message):
            wrong.check()


def test_unrolling_divides_the_lanes():
    wrong = msgspec.structs.replace(SCHEDULE, tiles={**SCHEDULE.tiles, "c": (7, 3)}, unroll=3)
    with pytest.raises(SpaceError, match="unroll is 3, expected a divisor of the 16 lanes"):
        wrong.check()
    with pytest.raises(SpaceError, match="unroll"):
        msgspec.structs.replace(SCHEDULE, unroll=8).check()
