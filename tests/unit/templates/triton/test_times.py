"""Resources of block tiles against what Triton's compiler said, and occupancy against numerics."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError, SpecError
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.times.columns import Limiter
from anatune.templates.gpu.times.occupancy import resident_blocks_one
from anatune.templates.triton.instructions import DotUnit
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import multiply_adds_per_cycle, residency, resources
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import PARTS, score_tiles, tile_order
from tests.wording import refuses

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
        ("a100_sxm", "float16", 4, DotUnit.MMA),
        ("a100_sxm", "float32", 4, DotUnit.FMA),
        ("t4", "float16", 4, DotUnit.FMA),
        ("h100_sxm", "bfloat16", 4, DotUnit.WGMMA),
        ("h100_sxm", "bfloat16", 2, DotUnit.MMA),
        ("b200", "fp8", 8, DotUnit.TCGEN05),
        ("rtx4090", "fp8", 8, DotUnit.MMA),
        ("mi50", "float16", 4, DotUnit.FMA),
        ("mi300x", "float16", 4, DotUnit.MFMA),
        ("mi210", "float8_e5m2fnuz", 4, DotUnit.FMA),
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
    np.testing.assert_array_equal(residency(spec, threads, registers, shared)[0][same], np.maximum(1, expected[same]))


def test_what_limits_resident_blocks():
    rows = [(128, 128, 64, 4, 3), (128, 128, 64, 4, 2), (16, 16, 32, 1, 2), (256, 256, 32, 8, 2)]
    limits = [Limiter(int(found("mi300x", "float16", row).limiter[0])).name for row in rows]
    assert limits == ["SHARED", "REGISTERS", "THREADS", "REGISTERS"]
    assert [int(found("mi300x", "float16", row).resident[0]) for row in rows] == [1, 2, 32, 1]


def test_amd_gives_a_block_all_registers_of_its_simds():
    caps = [(1, 512), (4, 512), (8, 256), (16, 128)]
    for warps, cap in caps:
        assert found("mi300x", "float16", (256, 256, 32, warps, 2)).registers[0] <= cap
    assert found("mi300x", "float16", (256, 256, 32, 4, 2)).registers[0] > 256


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
    assert need.rules[need.rule[0] - 1].id == rule
    assert need.needed[0] == needed


def test_the_tiles_everybody_uses_come_first():
    rows = [(m, n, 64, 8 if m * n > 16384 else 4, 3, 1, 8) for m in (32, 64, 128, 256) for n in (32, 64, 128, 256)]
    for spec in ("a100_sxm", "h100_sxm"):
        problem, tiles = MatmulProblem(8192, 8192, 8192), Tiles.of(rows)
        scores = score_tiles(problem, tiles, hardware(spec))
        first = rows[tile_order(scores, problem, tiles)[0]]
        assert min(first[0], first[1]) >= 128
        assert set(scores.parts) == set(PARTS)


def test_deep_products_are_split_and_wide_ones_are_not():
    rows = [(64, 64, 64, 4, 3, split, 8) for split in (1, 4, 16)]
    for (m, n, k), best in (((64, 64, 65536), 16), ((4096, 4096, 512), 1)):
        scores = score_tiles(MatmulProblem(m, n, k), Tiles.of(rows), hardware("a100_sxm"))
        assert rows[int(scores.time_s.argmin())][5] == best


def test_one_stage_is_slower_than_three():
    rows = [(128, 128, 32, 4, stages, 1, 8) for stages in (1, 3)]
    single, three = score_tiles(MatmulProblem(1024, 1024, 4096), Tiles.of(rows), hardware("a100_sxm")).time_s
    assert single > 1.2 * three


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 8, 8), ["m is 0", ">= 1"]),
        ((8, True, 8), ["n is True"]),
        ((8, 8, "8"), ["k is '8'"]),
        ((8, 8, 8, "int4"), ["int4", "float16"]),
        ((8, 8, 8, "float16", 0, True, True, 1, 3), ["right_bytes is 3", "0.5 or up to 2"]),
    ],
)
def test_bad_problems(arguments, words):
    with pytest.raises(SpaceError) as caught:
        MatmulProblem(*arguments)
    assert all(word in str(caught.value) for word in words)


def test_a_spec_without_tensor_cores_is_an_error():
    import msgspec

    spec = msgspec.structs.replace(hardware("a100_sxm"), tensor_cores=None)
    with refuses(SpecError):
        multiply_adds_per_cycle(spec, "float16", DotUnit.MMA)
    assert multiply_adds_per_cycle(hardware("b200"), "fp8", DotUnit.TCGEN05) == pytest.approx(
        4500e12 / 2 / 148 / 1.98e9
    )


def test_options_of_tiles_are_zero_where_left_out():
    tiles = Tiles.of([(128, 128, 32, 4, 3, 1, 8)])
    assert [tiles.descriptors.tolist(), tiles.persistent.tolist()] == [[0], [0]]
    tiles = Tiles.of([(128, 128, 32, 4, 3, 1, 8, 1, 0), (64, 64, 32, 4, 3, 1, 8, 0, 1)])
    chosen = tiles.take(np.array([1]))
    assert [chosen.block_m.tolist(), chosen.descriptors.tolist(), chosen.persistent.tolist()] == [[64], [0], [1]]
    assert len(Tiles.of([])) == 0


LARGE = [(128, 128, 64, 8, 4, 1, 8), (128, 256, 64, 8, 3, 1, 8)]


def best_s(problem, rows, spec, **options):
    return float(score_tiles(problem, Tiles.of(rows), hardware(spec), **options).time_s.min())


@pytest.mark.parametrize(("spec", "dtype"), [("a100_sxm_80gb", "bfloat16"), ("h100_sxm", "fp8"), ("b200", "float16")])
def test_no_tile_is_faster_than_power_allows(spec, dtype):
    cores = hardware(spec).tensor_cores
    rate = cores.float16_flop_per_s * cores.sustained_fraction
    if dtype == "fp8":
        rate = 2.0 * cores.float16_flop_per_s * cores.fp8_sustained_fraction
    problem = MatmulProblem(16384, 16384, 16384, dtype, b_along_n=False)
    reached = 2.0 * 16384**3 / best_s(problem, LARGE, spec)
    assert 0.6 * rate < reached < rate


def test_repeated_products_take_small_operands_from_l2_and_large_ones_from_dram():
    small, large = MatmulProblem(16, 4096, 2048), MatmulProblem(16, 65536, 16384)
    rows = [(16, 64, 128, 4, 4, 1, 8)]
    cold, same, turns = (best_s(small, rows, "h100_sxm", warm=warm) for warm in (0, 1, 6))
    assert same < turns < cold
    cold, same = (best_s(large, rows, "h100_sxm", warm=warm) for warm in (0, 1))
    assert cold == pytest.approx(same, rel=0.02)


def test_descriptors_gain_where_the_device_has_them():
    problem = MatmulProblem(8192, 8192, 4096, b_along_n=False)
    plain, descriptors = [(*row, 0, 0) for row in LARGE], [(*row, 1, 0) for row in LARGE]
    assert best_s(problem, descriptors, "h100_sxm") < 0.99 * best_s(problem, plain, "h100_sxm")
    assert best_s(problem, descriptors, "a100_sxm") == best_s(problem, plain, "a100_sxm")


def test_blocks_that_share_an_sm_drift_apart_and_take_less_from_l2():
    spec, tiles = hardware("h100_sxm"), Tiles.of([(128, 128, 64, 4, 3, 1, 8), (128, 128, 64, 4, 5, 1, 8)])
    ratios = []
    for extent in (1024, 32768):
        scores = score_tiles(MatmulProblem(extent, extent, 4096), tiles, spec)
        assert scores.resources.resident.tolist() == [2, 1]
        shared, alone = scores.parts["l2_s"]
        ratios.append(shared / alone)
    assert 1.0 < ratios[0] < 1.01
    assert 1.1 < ratios[1] < 1.12


def test_persistent_blocks_hide_the_first_loads_of_their_tiles():
    problem = MatmulProblem(8192, 8192, 512, b_along_n=False)
    assert best_s(problem, [(*LARGE[1], 1, 1)], "h100_sxm") < best_s(problem, [(*LARGE[1], 1, 0)], "h100_sxm")


SPECIAL = (128, 256, 64, 8, 3, 1, 8, 1, 1, 0)


@pytest.mark.parametrize(
    ("tile", "threads", "registers", "shared"),
    [
        ((128, 256, 64, 8, 3), 384, 168, 213092),
        ((128, 256, 64, 4, 2), 256, 255, 163908),
        ((128, 64, 64, 4, 5), 256, 255, 139396),
        ((128, 256, 32, 8, 6), 384, 168, 213124),
        ((128, 128, 64, 4, 1), 256, 255, 65608),
    ],
)
def test_specialised_warps_share_the_registers_of_a_processor(tile, threads, registers, shared):
    """The registers are those of Triton 3.9 for sm_100, and no kernel spills."""
    need = resources(MatmulProblem(4096, 4096, 4096), Tiles.of([(*tile, 1, 8, 1, 1, 0, 1)]), hardware("b200"))
    assert (need.threads[0], need.registers[0], need.shared_bytes[0]) == (threads, registers, shared)
    assert (need.rule[0], need.spilled[0], need.resident[0]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("spec", "tile", "extent"),
    [
        ("b200", (32, 128, 64, 4, 3, 1, 8, 1, 1, 0, 1), 4096),  # mma.sync
        ("b200", (128, 128, 64, 4, 3, 1, 8, 1, 0, 0, 1), 4096),
        ("b200", (128, 128, 64, 4, 3, 1, 8, 0, 1, 0, 1), 4096),
        ("b200", (128, 128, 64, 4, 3, 1, 8, 1, 1, 0, 1), 512),  # fewer tiles than processors
        ("h100_sxm", (128, 128, 64, 4, 3, 1, 8, 1, 1, 0, 1), 4096),
    ],
)
def test_warps_are_not_specialised_where_nothing_comes_of_it(spec, tile, extent):
    problem, tiles = MatmulProblem(extent, extent, extent), Tiles.of([tile])
    need = resources(problem, tiles, hardware(spec))
    assert need.rules[need.rule[0] - 1].id == "warp_specialize"
    assert resources(problem, Tiles.of([tile[:-1]]), hardware(spec)).rule[0] == 0


def test_specialised_warps_hide_the_results_of_a_tile_behind_the_next_ones_products():
    """The less a tile multiplies, the more its results are of the time; what passes shared memory is never free."""
    gains = []
    for k in (512, 2048, 16384):
        problem = MatmulProblem(8192, 8192, k)
        time_s = score_tiles(problem, Tiles.of([(*SPECIAL, 0), (*SPECIAL, 1)]), hardware("b200")).time_s
        gains.append(time_s[0] / time_s[1])
    assert gains[0] > gains[1] > gains[2] > 1.0
    parts = score_tiles(
        MatmulProblem(8192, 8192, 512), Tiles.of([(*SPECIAL, 0), (*SPECIAL, 1)]), hardware("b200")
    ).parts
    assert parts["shared_s"][1] > parts["shared_s"][0]


def test_weights_of_8_bits_move_half_and_have_to_be_converted():
    rows = [(16, 64, 128, 4, 4, 1, 8)]
    half = MatmulProblem(16, 65536, 8192, b_along_n=False)
    eighth = MatmulProblem(16, 65536, 8192, b_along_n=False, right_bytes=1)
    whole, less = (score_tiles(problem, Tiles.of(rows), hardware("a100_sxm")) for problem in (half, eighth))
    assert less.parts["dram_s"][0] < 0.6 * whole.parts["dram_s"][0]
    assert less.parts["issue_s"][0] > whole.parts["issue_s"][0]
    assert less.resources.shared_bytes[0] < whole.resources.shared_bytes[0]


def test_rows_off_16_bytes_need_registers_that_large_tiles_have_not():
    rows = [(128, 128, 64, 4, 3, 1, 8), (64, 64, 32, 4, 3, 1, 8)]
    even, odd = (
        score_tiles(MatmulProblem(12544, 1280, k, b_along_n=False), Tiles.of(rows), hardware("a100_sxm")).time_s
        for k in (192, 185)
    )
    assert even[0] < 1.2 * even[1]
    assert odd[0] > 1.5 * odd[1]  # recorded: 30 times


def test_tiles_are_scored_together_as_one_by_one():
    rows = [(m, n, 64, w, s, 1, 8) for m in (64, 128) for n in (64, 128) for w in (4, 8) for s in (2, 3)]
    problem, spec = MatmulProblem(1000, 1000, 1000), hardware("h100_sxm")
    together = score_tiles(problem, Tiles.of(rows), spec).time_s
    alone = [float(score_tiles(problem, Tiles.of([row]), spec).time_s[0]) for row in rows]
    np.testing.assert_allclose(together, alone)


@pytest.mark.parametrize(
    ("b_along_n", "loads_of_right"),
    [
        (False, 32.0),  # lanes along n: 16 bytes along k each, all in one bank
        (True, 4.0),  # lanes beside each other: 512 bytes
    ],
)
def test_lanes_that_read_along_k_wait_for_one_bank(b_along_n, loads_of_right):
    """Eight warps of 4 x 4 results: 512 loads of each side a stage; of the left a row a half-warp. Counted by hand."""
    spec = hardware("a100_sxm")
    problem = MatmulProblem(4096, 4096, 4096, "float32", b_along_n=b_along_n)
    tiles = Tiles.of([(64, 64, 64, 8, 3, 1, 8)])
    shared = score_tiles(problem, tiles, spec).parts["shared_s"][0]
    stages = 64 * 64 * 64 / spec.compute.num_sms / spec.compute.clock_hz
    staged = 2 * 64 * 64 * 4 / 128
    assert shared / stages == pytest.approx(512 * 2 + 512 * loads_of_right + staged)


def test_two_warps_fill_the_waits_of_one_on_cuda_cores():
    """The same tile, and as many results of a thread: a scheduler's only warp waits, the second of two hides it."""
    problem = MatmulProblem(8192, 8192, 4096, "float32")
    four_warps, two = score_tiles(problem, Tiles.of([(64, 128, 64, 4, 3, 1, 8), (128, 128, 64, 8, 3, 1, 8)]),
                           hardware("a100_sxm")).time_s  # fmt: skip
    assert four_warps > 1.1 * two
