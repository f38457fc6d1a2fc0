"""Loads that windows share, against those that a compiler was seen to make."""

import numpy as np
import pytest

import anatune
from anatune.adapters.kernel_tuner.names import tile_points
from anatune.adapters.kernel_tuner.scores import window_load_share

CONV = anatune.conv2d(1, 1, 4110, 4110, 1, 15, 15)
NAMES = {
    "threads_n": 1, "work_n": 1, "threads_f": 1, "work_f": 1, "block_rc": 1, "block_ry": 15, "block_rx": 15,
    "threads_x": "bx", "work_x": "tx", "inner_x": 1, "threads_y": "by", "work_y": "ty", "inner_y": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("by", "tx", "ty", "loads"),
    [(1, 1, 1, 225), (1, 1, 4, 270), (1, 4, 4, 1080), (4, 1, 4, 405), (4, 4, 3, 1380), (8, 1, 4, 585), (16, 1, 4, 900)],
)
def test_loads_are_those_of_compiled_kernels(by, tx, ty, loads):
    """LDS instructions of NVRTC 12.9, sm_80: a 15 x 15 filter, all loops unrolled, weights in constant memory."""
    points, _, _ = tile_points(NAMES, CONV, ("bx", "by", "tx", "ty"), [(32, by, tx, ty)])
    left = window_load_share(CONV, points)[0]
    results = tx * ty
    weights = 1  # the model counts one load of a weight for all results
    assert left == pytest.approx((loads / 225 + weights) / (results + weights))


def test_nothing_overlaps_in_a_matrix_product():
    matmul = anatune.matmul(64, 64, 64)
    points = anatune.space(matmul, "rtx3090").sample_points(20, 0)
    assert np.all(window_load_share(matmul, points) == 1.0)
