"""The space of streams: what is large and small, sizes, round trips, JSON, and the messages for bad schedules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.operators import depthwise_conv2d, elementwise, reduction
from anatune.errors import SpaceError
from anatune.templates.thin import THIN
from anatune.templates.thin.model import ThinModel
from anatune.templates.thin.nest import thin_nest
from anatune.templates.thin.space import ThinSpace
from tests.naive_gpu import gpu
from tests.wording import refuses

WORKLOADS = {
    "vector": anatune.matmul(1, 1024, 512),
    "transposed": anatune.matmul(1, 1024, 512, transpose_b=True),
    "odd": anatune.matmul(3, 523, 211, transpose_b=True),
    "float16": anatune.matmul(2, 512, 136, dtype="float16"),
    "batch": anatune.batch_matmul(12, 1, 96, 64),
    "tall": anatune.matmul(2048, 5, 96),
}


def space_of(workload: Workload, device: str = "a100") -> ThinSpace:
    return ThinModel(workload, gpu(device)).space


@pytest.mark.parametrize(
    ("workload", "big", "along_k", "width", "extents"),
    [
        (WORKLOADS["vector"], "B", False, 4, (1, 1, 1024, 512)),
        (WORKLOADS["transposed"], "B", True, 4, (1, 1, 1024, 512)),
        (WORKLOADS["odd"], "B", True, 1, (1, 3, 523, 211)),
        (WORKLOADS["float16"], "B", False, 8, (1, 2, 512, 136)),
        (WORKLOADS["batch"], "B", False, 4, (12, 1, 96, 64)),
        (WORKLOADS["tall"], "A", True, 4, (1, 5, 2048, 96)),
        (anatune.matmul(2048, 2, 96, transpose_a=True), "A", False, 4, (1, 2, 2048, 96)),
        (anatune.conv2d(1, 64, 1, 1, 300, 1, 1), "weight", True, 4, (1, 1, 300, 64)),
    ],
)
def test_the_large_operand(
    workload: Workload, big: str, along_k: bool, width: int, extents: tuple[int, int, int, int]
) -> None:
    nest = thin_nest(workload)
    assert (nest.big.tensor, nest.along_k, nest.width) == (big, along_k, width)
    assert tuple(nest.extents[index] for index in ("batch", "m", "n", "k")) == extents


def test_reductions_have_one_operand() -> None:
    rows = thin_nest(reduction((64, 4096), axes=1))
    assert (rows.small, rows.along_k, rows.extents) == (None, True, {"batch": 1, "m": 1, "n": 64, "k": 4096})
    columns = thin_nest(reduction((4096, 64), axes=0, kind="max"))
    assert (columns.along_k, columns.extents["n"], columns.extents["k"]) == (False, 64, 4096)


@pytest.mark.parametrize(
    ("workload", "answer"),
    [
        (anatune.matmul(16, 4096, 4096), True),
        (anatune.matmul(17, 4096, 4096), False),
        (anatune.matmul(4096, 16, 4096), True),
        (anatune.matmul(1, 4096, 31), False),
        (anatune.matmul(1, 128, 127), False),
        (elementwise((4096, 4096)), False),
        (depthwise_conv2d(1, 512, 14, 14, 3, 3, padding=1), False),
    ],
)
def test_where_it_applies(workload: Workload, answer: bool) -> None:
    assert THIN.takes(workload, gpu("a100")) is answer


@pytest.mark.parametrize("name", WORKLOADS)
def test_points_and_coordinates(name: str) -> None:
    space = space_of(WORKLOADS[name])
    assert space.size == math.prod(space.radices)
    points = space.points_at(np.arange(space.size))
    assert np.array_equal(space.points_at(np.ravel_multi_index(space.encode(points).T, space.radices)), points)
    for point in space.sample_points(20, seed=1):
        schedule = space.schedule_of(point).check()
        assert np.array_equal(space.point_of(schedule), point)
        assert Schedule.from_json(schedule.to_json()) == schedule
        for index, factors in schedule.tiles.items():
            covered = math.prod(factors)
            assert covered >= space.extents[index] > covered - math.prod(factors[1:])


@pytest.mark.parametrize(
    "tiles", [{"n": (3, 1, 1)}, {"k": (32, 1, 8)}, {"n": (1, 1, 2)}, {"m": (1, 1, 1)}, {"n": (1, 1)}, []]
)
def test_what_is_no_schedule(tiles: Any) -> None:
    with refuses(SpaceError):
        space_of(WORKLOADS["transposed"]).schedule(tiles)


@pytest.mark.parametrize(
    "workload",
    [anatune.matmul(17, 512, 512), anatune.matmul(1, 4096, 31), anatune.matmul(1, 100, 100), elementwise((256, 256))],
)
def test_refusals(workload: Workload) -> None:
    with refuses(SpaceError):
        anatune.space(workload, gpu("a100"), template="thin")
