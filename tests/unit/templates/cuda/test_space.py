"""GPU tile space: exact sizes, round trips, sampling, and the messages for bad schedules."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.cuda.model.model import CudaModel
from anatune.templates.cuda.space import REDUCTION_LEVELS, SPATIAL_LEVELS, UNROLL_DEPTHS, GpuSpace, staged_tensors
from anatune.templates.gpu.split_space import SPLIT_COLUMNS
from tests.naive_gpu import WORKLOADS, all_points, gpu, tiles_axis
from tests.wording import refuses

TINY = {
    "matmul": anatune.matmul(4, 3, 2),
    "matmul_half": anatune.matmul(2, 3, 5, dtype="float16"),
    "conv1d": anatune.conv1d(1, 2, 6, 2, 3),
    "pool": anatune.max_pool2d(1, 2, 4, 4, 2, 2, stride=2),
    "row_sum": anatune.reduction((6, 8), axes=(1,)),
    "sum": anatune.reduction((12,)),
    "elementwise": anatune.elementwise((4, 6)),
    "one": anatune.matmul(1, 1, 1),
}


def space_of(workload: Workload, device: str = "rtx3090") -> GpuSpace:
    return CudaModel(workload, gpu(device)).space


@pytest.mark.parametrize("name", TINY)
def test_size_is_the_number_of_points(name: str) -> None:
    model = CudaModel(TINY[name], gpu("rtx3090"))
    space = model.space
    expected = all_points(model)
    assert space.size == len(expected) == math.prod(space.radices)
    numbers = np.column_stack(np.unravel_index(np.arange(space.size), space.radices))
    points = space.decode(numbers)
    assert points.dtype == np.int64
    assert {tuple(row) for row in points.tolist()} == {tuple(row) for row in expected.tolist()}
    assert space.encode(points).tolist() == numbers.tolist()


@pytest.mark.parametrize("name", WORKLOADS)
def test_points_are_tilings(name: str) -> None:
    workload = WORKLOADS[name]
    space = space_of(workload)
    points = space.sample_points(200, seed=1)
    assert points.shape == (200, len(space.columns))
    column = 0
    for axis in workload.axes:
        levels = SPATIAL_LEVELS if axis.kind == "spatial" else REDUCTION_LEVELS
        assert space.columns[column : column + len(levels)] == tuple(f"{axis.name}.{level}" for level in levels)
        assert all(tiles_axis(row, axis.extent) for row in points[:, column : column + len(levels)].tolist())
        column += len(levels)
    staged = staged_tensors(workload)
    split = () if space.splits is None else SPLIT_COLUMNS
    assert space.columns[column:] == ("unroll", *(f"vector.{tensor}" for tensor in staged), *split)
    assert np.isin(points[:, column], UNROLL_DEPTHS).all()
    assert np.isin(points[:, column + 1 : column + 1 + len(staged)], space.fetch_widths).all()
    assert (space.decode(space.encode(points)) == points).all()
    for point in points[:20]:
        if space._is_legal is not None and not space._is_legal(point[None])[0]:
            continue
        schedule = space.schedule_of(point)
        assert space.point_of(schedule).tolist() == point.tolist()
        assert space.schedule(schedule.tiles, schedule.unroll, schedule.vector, split=schedule.options) == schedule


def test_fetch_widths_fill_sixteen_bytes() -> None:
    widths = {
        dtype: space_of(anatune.matmul(8, 8, 8, dtype=dtype)).fetch_widths for dtype in ("float32", "float16", "int8")
    }
    assert widths == {"float32": (1, 2, 4), "float16": (1, 2, 4, 8), "int8": (1, 2, 4, 8, 16)}


def test_only_reductions_are_staged() -> None:
    assert space_of(WORKLOADS["matmul"]).staged == ("A", "B")
    assert space_of(WORKLOADS["elementwise"]).staged == ()
    assert len(space_of(WORKLOADS["row_sum"]).staged) == 1


@pytest.mark.parametrize("device", ["rtx3090", "tx2"])
def test_samples_are_legal_deterministic_and_seeded(device: str) -> None:
    model = CudaModel(anatune.matmul(1024, 1024, 512), gpu(device))
    space = model.space
    points = space.sample_points(300, seed=7)
    assert (model.check(points) == 0).all()
    assert space.sample_points(300, seed=7).tolist() == points.tolist()
    assert space.sample_points(300, seed=8).tolist() != points.tolist()
    assert [space.point_of(schedule).tolist() for schedule in space.sample(300, seed=7)] == points.tolist()
    assert space.sample(3) == space.sample(3, seed=0)
    assert (model.check(space.sample_points(300, seed=7, legal=False)) != 0).any()
    assert space.sample(0) == []
    assert len({tuple(row) for row in points.tolist()}) > 290
    with refuses(SpaceError):
        space.sample(-1)


def test_uniform_over_the_factorisations() -> None:
    space = space_of(anatune.elementwise((8,)))
    points = space.sample_points(70_000, seed=1, legal=False)
    _, counts = np.unique(space.encode(points)[:, 0], return_counts=True)
    assert len(counts) == math.comb(7, 4)
    assert abs(counts / 2000 - 1).max() < 0.15


SPACE = space_of(anatune.matmul(16, 12, 8))
FULL = {"i": (2, 2, 2, 2, 1), "j": (3, 1, 4, 1, 1), "k": (2, 2, 2)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tiles": {"z": (1, 1, 1)}}, ["unknown axis 'z'", "i, j, k"]),
        ({"tiles": FULL | {"i": (4, 4)}}, ["tiles['i'] has 2 factors (4, 4)", "5: block, vthread"]),
        ({"tiles": FULL | {"k": (2, 2, 1, 2)}}, ["tiles['k'] has 4 factors", "3: k0, k1, k2"]),
        ({"tiles": FULL | {"i": (2, 2, 2, 2, 2)}}, ["multiply to 32", "extent 16", "perfect divisors"]),
        ({"tiles": FULL | {"i": (16, 1, 0, 1, 1)}}, ["tiles['i'] factor is 0", ">= 1"]),
        ({"tiles": FULL | {"i": (-2, 2, 2, -2, 1)}}, ["tiles['i'] factor is -2", ">= 1"]),
        ({"tiles": FULL | {"i": (2.0, 2, 2, 2, 1)}}, ["tiles['i'] factor is 2.0", "integer"]),
        ({"tiles": FULL | {"i": (True, 2, 2, 2, 2)}}, ["tiles['i'] factor is True", "integer"]),
        ({"tiles": FULL | {"i": ("2", 2, 2, 2, 1)}}, ["tiles['i'] factor is '2'", "integer"]),
        ({"tiles": FULL, "unroll": -1}, ["unroll is -1", ">= 0"]),
        ({"tiles": FULL, "unroll": 16.0}, ["unroll is 16.0", "integer"]),
        ({"tiles": FULL, "unroll": True}, ["unroll is True"]),
        ({"tiles": FULL, "vector": {"C": 4}}, ["unknown tensor 'C'", "A, B"]),
        ({"tiles": FULL, "vector": {"A": 0}}, ["vector['A'] is 0", ">= 1"]),
        ({"tiles": FULL, "vector": {"A": 1.5}}, ["vector['A'] is 1.5"]),
    ],
)
def test_bad_schedules_are_explained(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpaceError) as error:
        SPACE.schedule(**change)
    for word in words:
        assert word in str(error.value)


def test_left_out_axes_stay_outermost() -> None:
    schedule = SPACE.schedule({"j": (3, 1, 4, 1, 1)})
    assert schedule.tiles == {"i": (16, 1, 1, 1, 1), "j": (3, 1, 4, 1, 1), "k": (8, 1, 1)}
    assert (schedule.unroll, schedule.vector, schedule.template) == (0, {"A": 1, "B": 1}, "cuda")


def test_numpy_integers_and_lists_are_accepted() -> None:
    numbers = {axis: np.array(factors) for axis, factors in FULL.items()}
    schedule = SPACE.schedule(numbers, unroll=np.int64(64), vector={"A": np.int32(2)})
    assert schedule == SPACE.schedule({axis: list(factors) for axis, factors in FULL.items()}, 64, {"A": 2})
    assert type(schedule.tiles["i"][0]) is type(schedule.unroll) is type(schedule.vector["A"]) is int


def test_foreign_values_are_scored_but_not_encoded() -> None:
    schedule = SPACE.schedule(FULL, unroll=100, vector={"A": 3})
    point = SPACE.point_of(schedule)
    assert point.tolist()[-3:] == [100, 3, 1]
    with refuses(SpaceError):
        SPACE.encode(point)
    point[-3:] = (0, 3, 1)
    with refuses(SpaceError):
        SPACE.encode(point)
    point[:5] = 1
    with refuses(SpaceError):
        SPACE.encode(point)


def test_schedules_of_other_workloads_are_refused() -> None:
    other = space_of(anatune.matmul(16, 12, 8, transpose_b=True)).schedule(FULL)
    with refuses(SpaceError):
        SPACE.point_of(other)
    cpu = msgspec.structs.replace(SPACE.schedule(FULL), template="cpu")
    with refuses(SpaceError):
        SPACE.point_of(cpu)
    assert "matmul" in repr(SPACE)
    assert "rtx3090" in repr(SPACE)
