"""Options of split reductions: which there are, and what they mean in blocks and steps."""

from __future__ import annotations

import msgspec
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import avg_pool2d, elementwise, max_pool2d
from anatune.errors import SpaceError
from anatune.templates.gpu.split import Split, check_split, split_of, splits_of
from tests.wording import refuses

PLAIN = anatune.matmul(64, 64, 128)


@pytest.mark.parametrize(
    ("steps", "most", "splits"),
    [
        (1, 9, (1,)),
        (7, 9, (1, 2, 3, 4, 7)),
        (8, 4, (1, 2, 3, 4)),
        (10, 7, (1, 2, 3, 4, 5)),
        (12, 12, (1, 2, 3, 4, 6, 12)),
    ],
)
def test_every_part_has_a_step(steps, most, splits):
    assert splits_of(steps, most) == splits
    for split in range(1, most + 1):
        per = -(-steps // split)
        parts = [min(steps, (s + 1) * per) - s * per for s in range(split)]
        assert (min(parts) > 0) == (split in splits), split
        if split in splits:
            assert sum(parts) == steps
            assert Split(split, 0, False).steps(steps) == max(parts)


def test_blocks():
    assert split_of({}) == split_of({"split": 1}) == Split(1, 0, False)
    assert Split(1, 0, False).num_blocks(10) == 10
    assert Split(1, 0, False).num_parts(10) == 0
    leftovers = split_of({"split": 3, "whole": 8, "stages": 2})
    assert (leftovers.num_blocks(10), leftovers.num_parts(10)) == (8 + 2 * 3, 6)


@pytest.mark.parametrize(
    ("options", "tiles", "steps"),
    [
        ({"split": 0}, 4, 8),
        ({"split": 9}, 4, 8),
        ({"split": True}, 4, 8),
        ({"split": 5}, 4, 8),
        ({"split": 2, "whole": 4}, 4, 8),
        ({"whole": 1}, 4, 8),
        ({"split": 1, "atomic": 1}, 4, 8),
        ({"split": 2, "atomic": 2}, 4, 8),
    ],
)
def test_refused(options, tiles, steps):
    with refuses(SpaceError):
        check_split(PLAIN, options, tiles, steps)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (anatune.matmul(64, 64, 128, epilogue=("bias", "relu")), "but the steps .bias, relu. need whole sums"),
        (anatune.matmul(64, 64, 128, dtype="float16"), "but results are float16, sums float32"),
        (max_pool2d(1, 4, 8, 8, 2, 2), "but results of the body max are no plain sums"),
        (avg_pool2d(1, 4, 8, 8, 2, 2), "but results of the body average are no plain sums"),
    ],
)
def test_sums_that_cannot_be_added_in_memory(workload: Workload, message: str):
    check_split(workload, {"split": 2}, 4, 8)
    with refuses(SpaceError):
        check_split(workload, {"split": 2, "atomic": 1}, 4, 8)


def test_atomic_sums():
    check_split(PLAIN, {"split": 2, "atomic": 1}, 4, 8)


def schedules() -> list[Schedule]:
    cuda = {"i": (4, 1, 8, 1, 2), "j": (4, 1, 8, 1, 2), "k": (16, 2, 4)}
    spaces = [anatune.space(PLAIN, "a100_sxm", template=name) for name in ("cuda", "pipelined")]
    return [msgspec.structs.replace(space.sample(1)[0], tiles=cuda, unroll=0, vector={}) for space in spaces]


@pytest.mark.parametrize("schedule", schedules(), ids=lambda schedule: schedule.template)
def test_schedules_of_every_template_take_them(schedule):
    given = msgspec.structs.replace(schedule, options={**schedule.options, "split": 4, "whole": 15, "atomic": 1})
    assert Schedule.from_json(given.check().to_json()) == given
    assert given.key != schedule.key
    assert "split=4 whole=15 atomic=1" in given.describe()
    for name, value in (("split", 5), ("whole", 16), ("split", 17)):
        with refuses(SpaceError):
            msgspec.structs.replace(given, options={**given.options, name: value}).check()


def test_nothing_to_split():
    point = anatune.space(elementwise((64, 64)), "rtx3090").sample(1)[0]
    with refuses(SpaceError):
        msgspec.structs.replace(point, options={"split": 2}).check()
