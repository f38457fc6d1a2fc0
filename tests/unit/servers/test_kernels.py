"""What is measured: workloads of a layer, schedules with a server's tiles."""

import pytest

from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError
from anatune.servers.choose import race, space_of
from anatune.servers.kernels import MeasuredTiles, schedule_of, workloads_of
from anatune.servers.shapes import Experts, Product
from tests.wording import refuses

H200 = hardware("h200")
SHAPES = [
    Experts(128, 768, 2048, 8),
    Experts(256, 256, 7168, 8, "fp8_w8a8", (128, 128)),
    Experts(8, 1792, 4096, 2, "fp8_w8a8"),
    Experts(8, 1792, 4096, 2, "int8_w8a8"),
    Experts(8, 1792, 4096, 2, "int8_w8a16", group=64),
    Experts(384, 256, 7168, 8, "int4_w4a16", group=32),
    Experts(16, 2048, 7168, 8, "fp8_w8a8", (128, 128), ranks=16),
    Product(1536, 7168),
]


@pytest.mark.parametrize(
    ("shape", "hw"),
    [*((shape, "h200") for shape in SHAPES), (Product(1536, 7168), "l40s"), (Product(1536, 7168 + 8), "h200"),
     (Product(1536, 7168, "int8_w8a8"), "a100_sxm"), (Experts(8, 1792, 4096, 2), "mi300x")],
    ids=str,
)  # fmt: skip
def test_every_candidate_is_a_schedule(shape, hw):
    spec = hardware(hw)
    found = race(shape, 48, spec, space_of(shape, spec))
    for workload in workloads_of(shape, 48, 1.2):
        for choice in found.best(4):
            schedule = schedule_of(workload, choice.tile, spec).check()
            assert tuple(schedule.tiles[axis][-1] for axis in "mnk") == choice.tile[:3]


def test_both_products_of_a_layer():
    up, down = workloads_of(SHAPES[0], 48)
    assert [up.attribute[name] for name in ("n", "k", "expanded", "routing")] == [1536, 2048, False, "uniform"]
    assert [down.attribute[name] for name in ("n", "k", "expanded")] == [2048, 768, True]
    (popular, _) = workloads_of(SHAPES[0], 48, 1.2)
    assert popular.attribute["routing"] == "power:1.200000"


def test_experts_of_a_rank_have_its_rows():
    up, _ = workloads_of(SHAPES[6], 48)
    assert [up.attribute[name] for name in ("tokens", "experts", "top_k")] == [24, 16, 1]


def test_blocks_of_other_sizes_are_not_measured():
    with refuses(SpaceError):
        workloads_of(Product(1536, 7168, block=(64, 128)), 1)


def test_a_tile_has_a_time_when_all_its_kernels_have():
    known, tile = MeasuredTiles(2), (16, 64, 64, 4, 3, 1, 1)
    known.times = {(1, tile, 0): 1e-5, (2, tile, 1): 1e-5, (3, tile, 1): 2e-5, (3, tile, 0): 1e-5}
    assert [known.parts(rows, tile) for rows in range(4)] == [None, None, None, [1e-5, 2e-5]]
