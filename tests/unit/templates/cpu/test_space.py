"""CPU tile space: sizes, round trips, pairs, the SIMD axis rule, messages."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

import anatune
from anatune.core.hardware.spec import CpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.text import parse_workload
from anatune.errors import SpaceError
from anatune.templates.cpu.microkernels import pair_calls, segment_shape, simd_axis
from anatune.templates.cpu.space import CpuSpace
from tests.wording import refuses


@pytest.fixture(scope="module")
def hardware() -> CpuSpec:
    spec = anatune.hardware("xeon_gold_6230r")
    assert isinstance(spec, CpuSpec)
    return spec


def space_of(workload: Workload, hardware: CpuSpec) -> CpuSpace:
    return CpuSpace(workload, hardware, lambda points: np.ones(len(points), dtype=bool))


WORKLOADS = {
    "matmul": lambda: anatune.matmul(34, 96, 20),
    "matmul_tt": lambda: anatune.matmul(34, 96, 20, transpose_a=True, transpose_b=True),
    "batch_matmul": lambda: anatune.batch_matmul(3, 8, 16, 4),
    "conv1d": lambda: anatune.conv1d(1, 4, 20, 8, 3),
    "conv2d": lambda: anatune.conv2d(1, 8, 17, 17, 32, 3, 3, padding=1),
    "conv2d_nhwc": lambda: anatune.conv2d(1, 8, 17, 17, 32, 3, 3, padding=1, layout="NHWC"),
    "conv2d_groups": lambda: anatune.conv2d(1, 8, 9, 9, 32, 3, 3, groups=2),
    "conv3d": lambda: anatune.conv3d(1, 2, 4, 6, 6, 16, 3, 3, 3),
    "depthwise": lambda: anatune.depthwise_conv2d(1, 32, 14, 14, 3, 3, padding=1),
    "depthwise_nhwc": lambda: anatune.depthwise_conv2d(1, 32, 14, 14, 3, 3, padding=1, layout="NHWC"),
    "pool": lambda: anatune.max_pool2d(1, 8, 14, 14, 2, 2, stride=2),
    "row_sum": lambda: anatune.reduction((8, 100), axes=(1,)),
    "column_sum": lambda: anatune.reduction((8, 100), axes=(0,)),
    "elementwise": lambda: anatune.elementwise((8, 100)),
    "scalar": lambda: anatune.reduction((97,)),
    "einsum": lambda: anatune.einsum("abc,cd->abd", {"a": 3, "b": 4, "c": 5, "d": 18}),
}
AXES = {
    "matmul": "j", "matmul_tt": "j", "conv2d": "f", "conv2d_nhwc": "f", "conv2d_groups": "f", "conv3d": "f",
    "depthwise": "x", "depthwise_nhwc": "g", "pool": "x", "row_sum": "d1", "column_sum": "d1", "einsum": "d",
}  # fmt: skip


@pytest.mark.parametrize("name", WORKLOADS)
def test_round_trips_and_products(name: str, hardware: CpuSpec) -> None:
    workload = WORKLOADS[name]()
    space = space_of(workload, hardware)
    assert space.size == math.prod(space.radices)
    points = space.sample_points(60, seed=1)
    assert points.shape == (60, len(space.columns))
    np.testing.assert_array_equal(space.decode(space.encode(points)), points)
    for point in points[:20]:
        schedule = space.schedule_of(point)
        for axis, extent in workload.extents.items():
            assert np.prod(schedule.tiles[axis]) == extent
        np.testing.assert_array_equal(space.point_of(schedule), point)
        for option, pair in schedule.options.items():
            if option.startswith("pair.") and isinstance(pair, tuple):
                axis = option.removeprefix("pair.")
                unit = space.lanes if axis == space.simd_axis else 1
                covered = int(pair[0]) * int(pair[1]) + int(pair[2]) * int(pair[3])
                assert covered == -(-schedule.tiles[axis][-1] // unit)


def test_schedule_survives_json(hardware: CpuSpec) -> None:
    space = space_of(WORKLOADS["conv2d"](), hardware)
    for schedule in space.sample(5, seed=2):
        assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("name", AXES)
def test_simd_axis_follows_from_access_maps(name: str) -> None:
    assert simd_axis(WORKLOADS[name](), 16) == AXES[name]


def test_constants_that_are_read_once_are_packed(hardware: CpuSpec) -> None:
    """Without reuse nothing but the order of its lines tells a packed matrix from an unpacked one."""
    once = space_of(anatune.matmul(1, 256, 128), hardware)
    assert once.must_pack == once.packed_ahead == ("B",)
    assert once.schedule(tiles={"j": (1, 1, 1, 4, 64)}).options["packed_ahead"] == ("B",)
    assert space_of(anatune.matmul(2, 256, 128), hardware).must_pack == ()
    vector = space_of(parse_workload("einsum ij,j->i 256x128 128"), hardware)  # its constant is a vector
    assert vector.must_pack == ()


def test_pairs_cover_what_divisors_cannot() -> None:
    assert 2 in pair_calls(17, 1, 32)
    assert segment_shape(17, 1, 2) == (1, 8, 1, 9)
    assert segment_shape(34, 1, 4) == (2, 8, 2, 9)
    assert pair_calls(16, 16, 32) == ()
    assert 4 not in pair_calls(64, 16, 32)  # four calls of one vector: no pair
    assert 2 in pair_calls(40, 16, 32)  # two vectors and a masked one


def test_pairs_beyond_the_space_are_schedules_without_a_point(hardware: CpuSpec) -> None:
    space = space_of(anatune.matmul(34, 96, 20), hardware)
    tiles = {"i": (1, 1, 1, 1, 34), "j": (1, 1, 3, 1, 32), "k": (1, 1, 5, 4)}
    schedule = space.schedule(tiles=tiles, calls={"i": 3})
    assert schedule.options["pair.i"] == (2, 11, 1, 12)

    def paired(pair: object) -> anatune.Schedule:
        return msgspec.structs.replace(schedule, options={**schedule.options, "pair.i": pair})

    other = paired((1, 8, 2, 13)).check()
    assert anatune.Schedule.from_json(other.to_json()) == other
    with refuses(SpaceError):
        space.point_of(other)
    for wrong in ((1, 8, 2, 12), (2, 13, 1, 8), (0, 11, 2, 17), (2, 0, 1, 34), (34, 1, 0, 2), (1, 1, 1, 33), "8+26"):
        with refuses(SpaceError):
            paired(wrong).check()


def test_schedule_builds_named_choices(hardware: CpuSpec) -> None:
    space = space_of(anatune.matmul(34, 96, 20), hardware)
    schedule = space.schedule(
        tiles={"i": (1, 1, 1, 1, 34), "j": (1, 1, 3, 1, 32), "k": (1, 1, 5, 4)}, unroll=4, calls={"i": 4},
        keep={"l3": "B"}, packed=("A", "B"), parallel=False,
    )  # fmt: skip
    assert schedule.options["pair.i"] == (2, 8, 2, 9)
    assert schedule.options["order.l3"] == ("j", "k", "i")
    assert schedule.options["packed"] == ("A", "B")
    assert schedule.options["packed_ahead"] == ("B",)
    assert schedule.unroll == 4
    default = space.schedule(tiles={})
    assert default.tiles["i"] == (34, 1, 1, 1, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tiles": {"q": (1,)}},
        {"tiles": {"i": (1, 2, 3)}},
        {"tiles": {"i": (2, 1, 1, 1, 16)}},
        {"tiles": {"i": (34, 0, 1, 1, 1)}},
        {"tiles": {}, "vector": {"A": 4}},
        {"tiles": {}, "packed": ("C",)},
        {"tiles": {"i": (1, 1, 1, 1, 34)}, "calls": {"i": 2}},
        {"tiles": {}, "unroll": 3},
    ],
)
def test_bad_schedules_say_why(arguments: dict, hardware: CpuSpec) -> None:
    space = space_of(anatune.matmul(34, 96, 20), hardware)
    with refuses(SpaceError):
        space.schedule(**arguments)


def test_encode_refuses_foreign_points(hardware: CpuSpec) -> None:
    space = space_of(anatune.matmul(34, 96, 20), hardware)
    point = space.sample_points(1, seed=0)
    broken = point.copy()
    broken[0, 0] *= 2
    with refuses(SpaceError):
        space.encode(broken)
    broken = point.copy()
    broken[0, -1] = 2
    with refuses(SpaceError):
        space.encode(broken)
