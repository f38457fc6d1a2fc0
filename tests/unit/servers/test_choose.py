"""The tiles that are chosen."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.choose import group_bytes, race, routing_of, space_of
from anatune.servers.shapes import Experts, Product
from anatune.templates.triton.tiles import Tiles
from tests.wording import refuses

H200 = hardware("h200")
SHAPE = Experts(128, 768, 2048, 8)


def test_the_space_is_that_of_the_tuners():
    tiles = space_of(SHAPE, H200)
    assert len(tiles) == 5 * 4 * 3 * 4 * 2 * 4
    scaled = space_of(Product(1536, 7168), H200, ((64, 128, 64, 4, 2, 1, 32),))
    assert set(scaled.block_k[:-1]) == {128}
    assert scaled.block_k[-1] == 64


def test_the_first_is_the_fastest_and_all_are_of_another_shape():
    found = race(SHAPE, 64, H200, space_of(SHAPE, H200))
    best = found.best(8)
    assert best[0].time_s <= 1.001 * found.time_s.min()
    assert len({choice.tile[:4] for choice in best}) == 8
    assert found.time_of(best[3].tile) == best[3].time_s
    assert found.best(block_m=128)[0].tile[0] == 128


def test_more_tokens_take_larger_blocks():
    tiles = space_of(SHAPE, H200)
    few, many = (race(SHAPE, tokens, H200, tiles).best()[0] for tokens in (4, 4096))
    assert few.tile[0] < many.tile[0]
    assert few.time_s < many.time_s


def test_nothing_legal_is_said():
    tiles = space_of(SHAPE, H200).take(np.array([0]))
    found = race(SHAPE, 4, H200, tiles)
    with refuses(SpaceError):
        found.best(block_m=256)


@pytest.mark.parametrize(
    ("bits", "group", "hidden", "depths"),
    [(4, 32, 2048, {64, 128, 256}), (4, 128, 2048 + 128, {128}), (8, 128, 2048 + 128, {64, 128})],
)
def test_weights_come_in_whole_blocks_and_groups(bits, group, hidden, depths):
    shape = Experts(128, 768, hidden, 8, f"int{bits}_w{bits}a16", group=group)
    assert set(space_of(shape, H200).block_k) == depths


def test_weights_of_4_bits_are_a_quarter_of_the_bytes():
    packed = Experts(128, 768, 2048, 8, "int4_w4a16", group=32)
    tiles = space_of(packed, H200)
    quarter, whole = (race(shape, 16, H200, tiles).bound.time_s for shape in (packed, SHAPE))
    assert quarter < 0.45 * whole


@pytest.mark.parametrize(
    ("hw", "bits", "tile", "size"),
    [
        ("a100_sxm_80gb", 4, (64, 256, 128, 8, 2, 1, 1), 81920),
        ("a100_sxm_80gb", 8, (64, 256, 128, 8, 2, 1, 1), 114688),
        ("l40s", 4, (128, 128, 256, 8, 2, 1, 1), 131072),
        ("rtx5090", 4, (128, 32, 256, 4, 3, 1, 1), 147456),
        ("h200", 4, (16, 128, 128, 4, 4, 1, 1), 45056),
        ("h200", 4, (128, 32, 256, 4, 3, 1, 1), 212992),
        ("h200", 8, (32, 256, 256, 8, 3, 1, 1), 294912),
        ("b200", 4, (64, 128, 64, 4, 4, 1, 1), 53264),
        ("mi300x", 4, (64, 128, 64, 4, 2, 1, 1), 40960),
    ],
)
def test_kernels_of_servers_with_groups_fit_the_shared_memory(hw, bits, tile, size):
    """Sizes that Triton 3.9 gave to vLLM's kernel (``fused_moe_kernel_gptq_awq``)."""
    spec = hardware(hw)
    packed = Experts(128, 768, 2048, 8, f"int{bits}_w{bits}a16", group=32)
    assert size <= int(group_bytes(Tiles.of([tile]), spec, packed.dtype)[0]) <= size + (5 << 10)
    runs = np.isfinite(race(packed, 16, spec, space_of(packed, spec, (tile,))).time_of(tile))
    assert runs == (size <= spec.shared_memory.per_block_bytes)


def test_a_rank_has_its_share_of_the_rows():
    whole, rank = routing_of(SHAPE, 64, None), routing_of(Experts(16, 768, 2048, 8, ranks=8), 64, None)
    assert rank.num_rows == pytest.approx(whole.num_rows / 8)
    assert rank.num_active == pytest.approx(whole.num_active / 8)
    shared = routing_of(Experts(16, 768, 2048, 8, ranks=8), 64, 1.2)
    assert shared.num_rows == pytest.approx(64)


def test_both_products_may_have_tiles_of_their_own():
    found = race(SHAPE, 64, H200, space_of(SHAPE, H200))
    up, down = (found.best(part=part)[0] for part in (0, 1))
    assert found.time_of(up.tile, down.tile) == pytest.approx(up.time_s + down.time_s)
    assert found.time_of(up.tile, down.tile) <= found.time_s.min()


@pytest.mark.parametrize("hw", ["h200", "a100_sxm_80gb", "mi300x"])
@pytest.mark.parametrize(
    "shape",
    [SHAPE, Experts(16, 2048, 7168, 8, "fp8_w8a8", (128, 128), ranks=16), Product(1536, 7168),
     Experts(384, 256, 7168, 8, "int4_w4a16", group=32), Experts(8, 1792, 4096, 2, "int8_w8a8")],
)  # fmt: skip
def test_nothing_is_faster_than_the_bound(hw, shape):
    spec = hardware(hw)
    tiles = space_of(shape, spec)
    for tokens in (1, 4096):
        found = race(shape, tokens, spec, tiles)
        assert 0 < found.bound.time_s <= found.time_s.min()
