"""What a spec's table of measured microkernels says of points."""

import numpy as np
import pytest
from msgspec.structs import replace

import anatune
from anatune.core.hardware.cpu_groups import MicrokernelTable
from anatune.templates.cpu.model.model import CpuModel

TILES = {(8, 2, 1): 0.95, (9, 2, 1): 0.85, (8, 3, 1): 0.97, (12, 2, 1): 0.98, (8, 2, 16): 0.9}
TABLE = MicrokernelTable(depth=256, tiles=tuple((*tile, share) for tile, share in TILES.items()), source="made up")
PLAIN = anatune.hardware("xeon_gold_6130").with_threads(1)
MEASURED = replace(PLAIN, microkernels=TABLE)
MATMUL = anatune.matmul(34, 96, 64)


def share_of(workload, tiles, calls=None):
    space = CpuModel(workload, MEASURED).space
    schedule = space.schedule(tiles, calls=calls)
    (share,) = space.microkernel_shares(space.point_of(schedule)[None, :])
    return pytest.approx(share)


def test_a_microkernel_is_looked_up_by_rows_vectors_and_steps():
    rows = anatune.matmul(24, 96, 64)
    assert share_of(rows, {"i": (1, 1, 1, 3, 8), "j": (1, 1, 1, 3, 32), "k": (1, 1, 64, 1)}) == 0.95
    assert share_of(rows, {"i": (1, 1, 1, 3, 8), "j": (1, 1, 1, 2, 48), "k": (1, 1, 64, 1)}) == 0.97
    assert share_of(rows, {"i": (1, 1, 1, 3, 8), "j": (1, 1, 1, 3, 32), "k": (1, 1, 8, 8)}) == 0.9  # of 16 steps
    assert share_of(rows, {"i": (1, 1, 1, 6, 4), "j": (1, 1, 1, 3, 32), "k": (1, 1, 64, 1)}) == 0.0
    assert share_of(rows, {"i": (1, 1, 1, 1, 24), "j": (1, 1, 1, 1, 96), "k": (1, 1, 64, 1)}) == 0.0  # beyond the table


def test_a_pair_is_as_good_as_the_worse_of_both():
    inner = {"j": (1, 1, 1, 3, 32), "k": (1, 1, 64, 1)}
    assert share_of(MATMUL, {"i": (1, 1, 1, 1, 34), **inner}, {"i": 4}) == 0.85  # 8, 8, 9, 9
    assert share_of(MATMUL, {"i": (1, 1, 1, 1, 34), **inner}, {"i": 3}) == 0.0  # no 11 rows


def test_rows_of_an_image_count_along_both_axes_and_masked_lanes_are_lost():
    image = anatune.conv2d(1, 16, 12, 12, 28, 3, 3, padding=1, layout="NHWC")
    tiles = {"y": (1, 1, 1, 3, 4), "x": (1, 1, 1, 6, 2), "rc": (1, 1, 16, 1), "ry": (1, 3, 1), "rx": (1, 3, 1)}
    assert share_of(image, {**tiles, "f": (1, 1, 1, 1, 28)}) == 0.95 * 28 / 32


def test_what_has_other_microkernels_is_left_to_the_model():
    points = CpuModel(MATMUL, PLAIN).space.sample_points(4, 0)
    assert CpuModel(MATMUL, PLAIN).space.microkernel_shares(points) is None
    depthwise = anatune.depthwise_conv2d(1, 32, 12, 12, 3, 3, padding=1, layout="NHWC")
    for workload in (depthwise, anatune.matmul(16, 32, 64, dtype="bfloat16")):
        space = CpuModel(workload, MEASURED).space
        assert space.microkernel_shares(space.sample_points(4, 0)) is None


def test_rows_of_a_batch_share_no_vectors():
    space = CpuModel(anatune.batch_matmul(8, 16, 32, 64), MEASURED).space
    points = space.sample_points(4000, 0)
    batch = points[:, space.columns.index("b.register")]
    shares = space.microkernel_shares(points)
    assert (batch > 1).any()
    assert not shares[batch > 1].any()
    assert np.isfinite(shares).all()
