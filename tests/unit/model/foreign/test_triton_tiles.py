"""Resources of block tiles against what Triton's compiler said, and occupancy against numerics."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError, SpecError
from anatune.model.foreign.triton_tiles import (
    MatmulProblem,
    Tiles,
    Unit,
    multiply_adds_per_cycle,
    resident_blocks,
    resources,
    rules,
)
from anatune.model.foreign.triton_time import PARTS, score_tiles, tile_order
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.times.occupancy import resident_blocks_one

# What Triton 3.9 said without a GPU: spec, dtype, (m, n, k, warps, stages), shared bytes, registers, bytes spilled
COMPILED = [
    ("a100_sxm", "float16", (64, 64, 32, 4, 3), 16384, 96, 0),
    ("a100_sxm", "float16", (128, 128, 32, 4, 1), 16384, 220, 0),
    ("a100_sxm", "float16", (128, 128, 32, 4, 2), 16384, 252, 0),
    ("a100_sxm", "float16", (128, 128, 32, 4, 5), 65536, 250, 0),
    ("a100_sxm", "float16", (128, 256, 64, 8, 3), 98304, 240, 0),
    ("a100_sxm", "float16", (128, 256, 32, 4, 3), 49152, 255, 1272),
    ("a100_sxm", "tf32", (128, 64, 32, 4, 3), 49152, 168, 0),
    ("a100_sxm", "float32", (64, 64, 16, 4, 3), 16384, 106, 0),
    ("h100_sxm", "float16", (64, 64, 32, 4, 3), 24576, 63, 0),
    ("h100_sxm", "float16", (128, 256, 64, 8, 3), 147456, 214, 0),
    ("h100_sxm", "float16", (32, 32, 64, 2, 3), 16384, 72, 0),  # no wgmma: too few rows
    ("h100_sxm", "float16", (128, 256, 32, 4, 3), 73728, 255, 680),
    ("h100_sxm", "tf32", (128, 128, 32, 8, 3), 98304, 164, 0),
    ("h100_sxm", "fp8", (128, 64, 64, 4, 3), 28672, 128, 0),
    ("rtx4090", "fp8", (128, 128, 64, 8, 3), 32768, 248, 0),
    ("rtx4090", "fp8", (128, 128, 64, 4, 3), 32768, 255, 600),
    ("b200", "float16", (128, 256, 64, 8, 3), 147472, 166, 0),
    ("t4", "float32", (64, 64, 16, 4, 3), 8192, 95, 0),
]


def found(spec, dtype, tile):
    problem = MatmulProblem(4096, 4096, 4096, dtype)
    return resources(problem, Tiles.of([[*tile, 1, 8]]), hardware(spec))


@pytest.mark.parametrize(("spec", "dtype", "tile", "shared", "registers", "spilled"), COMPILED)
def test_resources_are_those_of_the_compiler(spec, dtype, tile, shared, registers, spilled):
    need = found(spec, dtype, tile)
    assert need.shared_bytes[0] == shared
    assert abs(int(need.registers[0]) - registers) <= 50
    if spilled:
        assert need.spilled[0] > 0
        assert need.rule[0] in (0, 5)
    else:
        assert need.spilled[0] <= 8
        assert need.rule[0] == 0


@pytest.mark.parametrize(
    ("spec", "dtype", "warps", "unit"),
    [
        ("a100_sxm", "float16", 4, Unit.MMA),
        ("a100_sxm", "float32", 4, Unit.FMA),
        ("t4", "float16", 4, Unit.FMA),
        ("h100_sxm", "bfloat16", 4, Unit.WGMMA),
        ("h100_sxm", "bfloat16", 2, Unit.MMA),
        ("b200", "fp8", 8, Unit.TCGEN05),
        ("rtx4090", "fp8", 8, Unit.MMA),
        ("mi50", "float16", 4, Unit.FMA),
    ],
)
def test_units(spec, dtype, warps, unit):
    assert found(spec, dtype, (128, 128, 64, warps, 3)).unit[0] == unit


@pytest.mark.parametrize("name", ["a100_sxm", "rtx3090", "p100", "t4", "tx2", "h100_sxm", "mi50", "jetson_nano"])
def test_resident_blocks_are_those_of_numerics(name):
    spec = hardware(name)
    rng = np.random.default_rng(0)
    warp = spec.compute.warp_size
    threads = rng.integers(1, 1100 // warp + 2, 3000) * warp
    registers = rng.integers(16, 260, 3000)
    shared = rng.integers(0, spec.shared_memory.per_block_bytes + 3000, 3000)
    gpu = pack_gpu(spec, "float32")
    points = zip(threads.tolist(), registers.tolist(), shared.tolist(), strict=True)
    expected = np.array([resident_blocks_one(*point, gpu)[0] for point in points])
    same = registers <= gpu.registers_thread  # the compiler's own limit is none of the launch
    np.testing.assert_array_equal(resident_blocks(spec, threads, registers, shared)[same], expected[same])


@pytest.mark.parametrize(
    ("tile", "rule", "needed"),
    [
        ((96, 128, 32, 4, 3), "power_of_two", 96),
        ((128, 128, 8, 4, 3), "dot_depth", 8),
        ((128, 128, 32, 64, 3), "threads_per_block", 2048),
        ((256, 256, 64, 8, 5), "shared_bytes_per_block", 262144),
        ((256, 256, 32, 4, 2), "registers_per_thread", 536),
    ],
)
def test_rules_say_what_is_needed(tile, rule, needed):
    need = found("a100_sxm", "float16", tile)
    assert rules(hardware("a100_sxm"), "float16")[need.rule[0] - 1].id == rule
    assert need.needed[0] == needed


def test_the_tiles_everybody_uses_come_first():
    rows = [(m, n, 64, 8 if m * n > 16384 else 4, 3, 1, 8) for m in (32, 64, 128, 256) for n in (32, 64, 128, 256)]
    for spec in ("a100_sxm", "h100_sxm"):
        problem, tiles = MatmulProblem(8192, 8192, 8192), Tiles.of(rows)
        scores = score_tiles(problem, tiles, hardware(spec))
        first = rows[tile_order(scores, problem, tiles)[0]]
        assert {first[0], first[1]} == {128, 256}
        assert set(scores.parts) == set(PARTS)


def test_deep_products_are_split_and_wide_ones_are_not():
    rows = [(64, 64, 64, 4, 3, split, 8) for split in (1, 4, 16)]
    for (m, n, k), best in (((64, 64, 65536), 16), ((4096, 4096, 512), 1)):
        scores = score_tiles(MatmulProblem(m, n, k), Tiles.of(rows), hardware("a100_sxm"))
        assert rows[int(scores.time_s.argmin())][5] == best


def test_one_stage_is_slower_than_three():
    rows = [(128, 128, 32, 4, stages, 1, 8) for stages in (1, 3)]
    one, three = score_tiles(MatmulProblem(1024, 1024, 4096), Tiles.of(rows), hardware("a100_sxm")).time_s
    assert one > 1.2 * three


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 8, 8), ["m is 0", ">= 1"]),
        ((8, True, 8), ["n is True"]),
        ((8, 8, "8"), ["k is '8'"]),
        ((8, 8, 8, "int4"), ["int4", "float16"]),
    ],
)
def test_bad_problems(arguments, words):
    with pytest.raises(SpaceError) as caught:
        MatmulProblem(*arguments)
    assert all(word in str(caught.value) for word in words)


def test_a_spec_without_tensor_cores_is_an_error():
    import msgspec

    spec = msgspec.structs.replace(hardware("a100_sxm"), tensor_cores=None)
    with pytest.raises(SpecError, match="tensor_cores"):
        multiply_adds_per_cycle(spec, "float16", Unit.MMA)
    assert multiply_adds_per_cycle(hardware("b200"), "fp8", Unit.TCGEN05) == 8192
