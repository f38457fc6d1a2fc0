import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.templates.triton.grouped.rules import least_tile, options_of
from anatune.templates.triton.grouped.space import GroupedSpace
from tests.wording import refuses


def space_of(words: str, device: str) -> GroupedSpace:
    space = anatune.space(anatune.parse_workload(words), device, template="triton")
    assert isinstance(space, GroupedSpace)
    return space


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ("scaled_matmul 64x64x256 --dtype mxfp8", "h100"),
        ("scaled_matmul 64x64x256 --dtype mxfp4", "a100"),
        ("scaled_matmul 64x64x256 --dtype nvfp4", "mi350x"),
        ("scaled_matmul 64x64x256", "a100"),
        ("scaled_matmul 64x64x256 --dtype float8_e4m3fnuz", "h100"),
        ("grouped_matmul 64x4x2x64x256", "gtx1080ti"),
    ],
)
def test_what_a_device_lacks_is_said_in_one_line(words: str, device: str) -> None:
    with refuses(SpaceError) as caught:
        space_of(words, device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "tile", "options"),
    [
        ("scaled_matmul 64x64x256 --dtype mxfp8", {"m": 64, "k": 128}, {}),
        ("scaled_matmul 64x64x256 --dtype mxfp8", {"m": 128, "k": 64}, {}),
        ("scaled_matmul 64x64x256 --dtype mxfp8", {"m": 128, "k": 128}, {"num_warps": 2}),
        ("scaled_matmul 64x64x256 --scales blocks", {"k": 256}, {}),
        ("scaled_matmul 64x64x256 --dtype bfloat16xint4", {"k": 16}, {}),
        ("scaled_matmul 64x64x256", {"k": 128}, {"split_k": 3}),
        ("grouped_matmul 64x4x2x64x256", {}, {"split_k": 2}),
        ("scaled_matmul 64x64x250", {}, {"descriptors": 1}),
        ("scaled_matmul 64x64x256", {"m": 48}, {}),
    ],
)
def test_what_is_no_schedule_is_said_in_one_line(words: str, tile: dict[str, int], options: dict[str, int]) -> None:
    with refuses(SpaceError) as caught:
        space_of(words, "b200").schedule(tile, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["b200", "rtx5090", "mi350x"])
def test_every_point_is_a_schedule_that_json_brings_back(device: str) -> None:
    for words in ("scaled_matmul 33x72x320 --dtype mxfp4", "grouped_matmul 33x5x2x72x320 --dtype int8 --scales blocks"):
        space = space_of(words, device)
        for point in space.sample_points(12, seed=1):
            schedule = space.schedule_of(point)
            assert Schedule.from_json(schedule.to_json()) == schedule
            assert list(space.point_of(schedule)) == list(point)


def test_rows_of_less_than_16_bytes_have_no_descriptors() -> None:
    assert "descriptors" in space_of("scaled_matmul 64x64x256", "h100").columns
    assert "descriptors" not in space_of("scaled_matmul 64x64x250", "h100").columns
    assert "descriptors" not in space_of("scaled_matmul 64x64x16 --dtype bfloat16xint4", "h100").columns
    assert "descriptors" not in space_of("scaled_matmul 64x64x256", "rtx4090").columns


def test_small_tiles_have_scales_where_registers_hold_them() -> None:
    spec = anatune.hardware("rtx5090")
    assert isinstance(spec, anatune.GpuSpec)
    problem = space_of("scaled_matmul 64x64x256 --dtype nvfp4", "rtx5090").problem
    assert least_tile(problem, spec) == {"m": 16, "n": 16, "k": 128}
    assert options_of(problem, spec) == ("group_m", "split_k", "num_warps", "num_stages", "descriptors")
