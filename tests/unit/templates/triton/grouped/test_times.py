"""Grouped and block-scaled products against plain ones, and what they cost beyond them."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.core.workload.routing import make_balanced_routing, make_uniform_routing, routing_from_counts
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.scales import Served
from anatune.templates.triton.grouped.times import score_grouped, score_scaled
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import score_tiles

H100 = hardware("h100_sxm")
TILES = Tiles.of([(16, 64, 64, 4, 4, 1, 1), (64, 128, 64, 4, 3, 1, 1), (128, 128, 64, 8, 3, 1, 16)])


def test_one_expert_is_a_product():
    alone = GroupedProblem(4096, 1, 1, 4096, 4096, routing_from_counts([4096]))
    plain = score_tiles(MatmulProblem(4096, 4096, 4096, "bfloat16", b_along_n=False), TILES, H100, warm=1)
    assert score_grouped(alone, TILES, H100, held=1.0).time_s == pytest.approx(plain.time_s, rel=0.05)


def test_few_tokens_read_the_weights_of_their_experts_once():
    few = GroupedProblem(4, 8, 128, 1536, 2048, make_balanced_routing(4, 128, 8))
    scores = score_grouped(few, TILES, H100)
    bandwidth = H100.dram.bandwidth_bytes_per_s * H100.dram.reachable_fraction
    assert scores.parts["dram_s"] * bandwidth == pytest.approx(np.full(3, 32 * 1536 * 2048 * 2.0), rel=0.02)
    assert score_grouped(few, TILES, H100, held=1.0).time_s.max() < scores.time_s.min()


def test_blocks_without_rows_take_time():
    routing = make_uniform_routing(64, 16, 2)
    times = [score_grouped(GroupedProblem(64, 2, experts, 4096, 1024, routing), TILES, H100) for experts in (16, 512)]
    assert (times[1].time_s > times[0].time_s).all()


def test_scales_cost_products_on_matrix_units():
    product = MatmulProblem(4096, 4096, 7168, "fp8", b_along_n=False)
    tiles = Tiles.of([(64, 128, 128, 4, 3, 1, 1), (128, 128, 128, 8, 3, 1, 1)])
    scaled, plain = score_scaled(product, 128, tiles, H100), score_scaled(product, 0, tiles, H100)
    assert scaled.time_s[1] > 1.1 * plain.time_s[1]
    assert (scaled.parts["issue_s"] > 1.5 * plain.parts["issue_s"]).all()
    assert (scaled.resources.registers > plain.resources.registers).all()


# Registers of a kernel with scales of 128 x 128, Triton 3.9: spec, (block_m, block_n, warps), registers
@pytest.mark.parametrize(
    ("spec", "tile", "registers"),
    [("h100_sxm", (64, 128, 4), 204), ("h100_sxm", (16, 128, 4), 97), ("b200", (64, 128, 4), 246)],
)
def test_registers_are_those_of_the_compiler(spec, tile, registers):
    rows, columns, warps = tile
    tiles = Tiles.of([(rows, columns, 128, warps, 3, 1, 1)])
    scores = score_scaled(MatmulProblem(4096, 4096, 4096, "fp8", b_along_n=False), 128, tiles, hardware(spec))
    assert abs(int(scores.resources.registers[0]) - registers) <= 25


def test_servers_kernel_fetches_padding_and_loads_scales_of_columns():
    few = MatmulProblem(16, 4096, 4096, "fp8", b_along_n=False)
    tiles = Tiles.of([(64, 64, 128, 4, 4, 1, 1)])
    ours, served = (score_scaled(few, 128, tiles, H100, warm=1, kernel=kernel) for kernel in (None, Served((3, 9))))
    assert served.parts["l2_s"][0] > 1.5 * ours.parts["l2_s"][0]
    assert served.parts["issue_s"][0] > ours.parts["issue_s"][0]
    assert served.resources.registers[0] > ours.resources.registers[0]


def test_old_triton_turned_small_tiles_around_on_hopper():
    few = MatmulProblem(16, 576, 7168, "fp8", b_along_n=False)
    tiles = Tiles.of([(16, 32, 128, 4, 5, 1, 1), (64, 32, 128, 4, 5, 1, 1)])
    kernels = (Served((3, 1)), Served((3, 4)))
    old, new = (score_scaled(few, 128, tiles, H100, warm=1, kernel=kernel).time_s for kernel in kernels)
    assert old[1] < old[0]  # files of those days have 64 rows
    assert new[0] < new[1]  # later ones have 16
    assert old[1] == new[1]


def test_two_sums_let_products_run_beside_scaling():
    product, b200 = MatmulProblem(2048, 3072, 7168, "fp8", b_along_n=False), hardware("b200")
    tiles = Tiles.of([(128, 128, 128, 8, stages, 1, 16) for stages in (2, 3)])
    old, new = (
        score_scaled(product, 128, tiles, b200, warm=1, kernel=Served(version)).time_s for version in ((3, 3), (3, 4))
    )
    assert old[0] < new[0]
    assert old[1] == new[1]


def test_eight_warps_wait_less_than_four_where_a_block_has_its_sm_to_itself():
    product = MatmulProblem(256, 3072, 7168, "fp8", b_along_n=False)
    tiles = Tiles.of([(128, 64, 128, warps, 4, 1, 1) for warps in (4, 8)])
    four, eight = score_scaled(product, 128, tiles, hardware("b200"), warm=1, kernel=Served((3, 3))).time_s
    assert eight < four


def test_small_tiles_of_8_bit_floats_are_converted_on_hopper():
    product = MatmulProblem(16, 4096, 4096, "fp8", b_along_n=False)
    tiles = Tiles.of([(16, 64, 128, 4, 4, 1, 1)])
    issue = [
        float(score_tiles(product, tiles, hardware(name)).parts["issue_s"][0]) for name in ("h100_sxm", "rtx_pro_6000")
    ]
    assert issue[0] > 1.3 * issue[1]
