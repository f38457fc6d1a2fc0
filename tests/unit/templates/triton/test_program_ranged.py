"""Triton kernels that take an extent when they are launched: they are right at every extent of their range."""

from __future__ import annotations

import importlib.util
import random
import re

import msgspec
import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.core.workload.nest import Workload
from anatune.core.workload.ranges import make_ranged_workload
from anatune.core.workload.text import parse_workload
from anatune.errors import RunError, SpaceError, WorkloadError
from anatune.measure.emulate.triton_interpreter import check_program
from anatune.measure.run.correctness import compute_expected, random_inputs
from anatune.measure.run.rounding import find_used_operands
from anatune.templates import TRITON
from anatune.templates.gpu.ranged import Growth, Ranged
from bench.gpu.triton_points import random_schedule
from tests.wording import refuses

_IS_THERE = all(map(importlib.util.find_spec, ("triton", "ml_dtypes")))
interpreted = pytest.mark.skipif(not _IS_THERE, reason="Triton or ml_dtypes is not installed")
FLOAT16 = anatune.matmul(130, 48, 64, dtype="float16", epilogue=("bias",))


def schedule_of(workload: Workload, device: str, tiles: tuple[int, int, int], **options: int) -> Schedule:
    space = anatune.space(workload, anatune.hardware(device), template="triton")
    return space.schedule(dict(zip("mnk", tiles, strict=True)), **options)


def source_of(workload: Workload, of_range: Ranged, device: str = "a100", **options: int) -> str:
    return TRITON.program(schedule_of(workload, device, (64, 16, 32), **options), of_range).source


def check(schedule: Schedule, of_range: Ranged, extents: set[int]) -> None:
    """Run the kernel of a range at some of its extents."""
    program = TRITON.program(schedule, of_range)
    many = make_ranged_workload(schedule.workload, of_range.axis, (of_range.most,))
    for extent in sorted(filter(of_range.has, extents)):
        workload = many.at(extent)
        inputs = random_inputs(workload, extent)
        want = compute_expected(workload, find_used_operands(schedule, inputs))
        answer = check_program(workload, program.at(extent), inputs, want)
        assert answer.ok, f"{of_range} at {extent}: {answer.message}\n{program.source}"


@interpreted
@pytest.mark.parametrize(
    ("workload", "axis", "device", "tiles", "options"),
    [
        (FLOAT16, "i", "rtx4090", (64, 32, 32), {"group_m": 2}),
        (FLOAT16, "i", "a100", (32, 16, 32), {"split_k": 2, "group_m": 1}),
        (anatune.matmul(700, 32, 64, dtype="bfloat16"), "i", "h100", (32, 16, 64), {"descriptors": 1}),
        (anatune.matmul(40, 24, 48, dtype="int8", epilogue=("scale",)), "i", "mi300x", (16, 16, 16), {}),
        (anatune.batch_matmul(5, 40, 24, 32, dtype="float16"), "b", "h100", (16, 16, 32), {"descriptors": 1}),
        (anatune.conv2d(3, 16, 6, 6, 24, 3, 3, dtype="float16"), "n", "a100", (16, 32, 32), {"split_k": 2}),
    ],
)
def test_a_kernel_is_right_at_every_extent(workload, axis, device, tiles, options):
    schedule, most = schedule_of(workload, device, tiles, **options), workload.extents[axis]
    check(schedule, Ranged(axis, 1, most), {1, tiles[0] - 1, tiles[0] + 1, most})


@interpreted
@pytest.mark.parametrize(("device", "special"), [("h100", {}), ("b200", {"warp_specialize": 1})])
def test_persistent_programs_take_the_tiles_that_there_are(device, special):
    workload = anatune.matmul(130, 64, 32, dtype="float16")
    schedule = schedule_of(workload, device, (16, 32, 32), persistent=1, descriptors=1, group_m=4, **special)
    compute = schedule.hardware.compute
    peak = compute.fp32_peak_flop_per_s * 3 / compute.num_sms
    few = msgspec.structs.replace(compute, num_sms=3, fp32_peak_flop_per_s=peak)
    schedule = msgspec.structs.replace(schedule, hardware=msgspec.structs.replace(schedule.hardware, compute=few))
    program = TRITON.program(schedule, Ranged("i", 1, 130))
    assert program.at(1).kernels[0].grid == program.kernels[0].grid == 3
    assert "PROGRAMS = TILES\n" in program.source
    check(schedule, Ranged("i", 1, 130), {1, 17, 130})


@interpreted
@pytest.mark.parametrize("seed", [2, 3, 6, 11, 17, 24])
def test_kernels_of_random_schedules_are_right(seed):
    draw, tried = random.Random(seed), 0
    while not tried:
        schedule = random_schedule(draw)
        for axis, most in schedule.workload.extents.items():
            multiple = draw.choice([number for number in (1, 1, 2, 16) if most % number == 0])
            of_range = Ranged(axis, multiple, most, multiple)
            try:
                make_ranged_workload(schedule.workload, axis, (most,))
                TRITON.program(schedule, of_range)
            except (SpaceError, WorkloadError):
                continue
            tile = draw.choice([factors[-1] for factors in schedule.tiles.values()])
            check(schedule, of_range, {multiple, tile - 1, tile, tile + 1, most})
            tried += 1


def test_what_a_kernel_computes_from_the_extent_is_what_it_uses():
    source = source_of(FLOAT16, Ranged("i", 1, 130))
    assert "def product(A_ptr, B_ptr, bias_ptr, C_ptr, extent_i):\n    M = extent_i\n    TILES_M = tl.cdiv(M," in source
    assert not re.search(r"^(M|TILES_M|TILES|RESULTS|PROGRAMS) =", source, re.M)
    assert "TILES = " not in source
    assert "product[(3 * ((extent_i + 63) // 64),)](A, B, bias, C, extent_i, " in source
    assert "where, at i = 130,\n" in source


def test_rows_are_guarded_unless_the_tile_divides_every_extent():
    workload = anatune.matmul(128, 48, 64, dtype="float16")
    assert "< M" in source_of(workload, Ranged("i", 1, 128))
    assert "< M" in source_of(workload, Ranged("i", 32, 128, 32))
    assert "< M" not in source_of(workload, Ranged("i", 64, 128, 64))
    parts = source_of(anatune.matmul(128, 48, 4096, dtype="float16"), Ranged("i", 1, 128), split_k=2)
    assert "mask = at < RESULTS" in parts  # 128 rows of results are whole blocks, 1 is none


def test_rows_of_a_group_are_counted_at_each_extent():
    workload = anatune.matmul(64 * 8, 48, 64, dtype="float16")
    assert "rows = tl.minimum(TILES_M" in source_of(workload, Ranged("i", 1, 512), group_m=4)
    single = TRITON.program(schedule_of(workload, "a100", (64, 16, 32), group_m=4)).source
    assert "rows" not in single.split("def product")[1].split("group =")[1]


def test_parts_of_large_results_lie_apart_in_64_bits():
    workload = anatune.matmul(1 << 18, 1 << 13, 256, dtype="float16")
    source = source_of(workload, Ranged("i", 1, 1 << 18), split_k=2)
    assert source.count("RESULTS = extent_i.to(tl.int64) * 8192") == 2


def test_grids_shapes_and_the_argument_are_those_of_an_extent():
    program = TRITON.program(schedule_of(FLOAT16, "a100", (64, 16, 32), split_k=2), Ranged("i", 1, 130))
    assert [kernel.growth for kernel in program.kernels] == [Growth(6, 64), Growth(1, 1024, 48)]
    small = program.at(65)
    assert (small.extent, [kernel.grid for kernel in small.kernels]) == (65, [12, 4])
    assert {name: buffer.shape for name, buffer in small.tensors.items()} == {
        "A": (65, 64), "B": (64, 48), "bias": (48,), "C": (65, 48)
    }  # fmt: skip
    assert small.workspace == program.workspace  # that of the largest extent
    with refuses(RunError):
        program.at(131)
    with refuses(RunError):
        TRITON.program(schedule_of(FLOAT16, "a100", (64, 16, 32))).at(130)


def test_what_has_no_kernel_for_a_range_is_refused():
    for workload, axis in ((FLOAT16, "j"), (FLOAT16, "k")):
        schedule = schedule_of(workload, "a100", (64, 16, 32))
        with refuses(SpaceError):
            TRITON.program(schedule, Ranged(axis, 1, workload.extents[axis]))
    with refuses(SpaceError):
        TRITON.program(schedule_of(FLOAT16, "a100", (64, 16, 32)), Ranged("i", 1, 129))
    rows = anatune.plan(parse_workload("softmax 3x100"), "a100", top_k=1).best
    with refuses(SpaceError):
        TRITON.program(rows, Ranged("i", 1, 3))
