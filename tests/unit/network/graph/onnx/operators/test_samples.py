"""Operators that read images at places which are computed."""

import numpy as np
import pytest

from anatune.network.graph.onnx.call import UnknownValueError
from anatune.network.graph.passes.precision import compute_in_float32
from anatune.network.graph.passes.simplify import simplify
from tests.unit.network.graph.onnx.one_node import check, model_of, read
from tests.wording import refuses

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((2, 2, 4, 5)).astype(np.float32)
GRID = (1.6 * RANDOM.standard_normal((2, 3, 2, 2))).astype(np.float32)
REGIONS = np.array([[0, 0, 3, 2], [-2, 1, 3.5, 6.5]], np.float32)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grids(mode, padding):
    for aligned in (0, 1):
        check("GridSample", IMAGE, GRID, mode=mode, padding_mode=padding, align_corners=aligned, rtol=1e-3)


def test_older_names_and_halves():
    halves = IMAGE.astype(np.float16), GRID.astype(np.float16)
    (new,), (old,) = (
        simplify(compute_in_float32(read(model_of("GridSample", *halves, mode=mode, opset=opset)))).outputs
        for mode, opset in (("linear", 20), ("bilinear", 16))
    )
    assert (new.op, new.type.dtype) == ("astype", "float16")
    np.testing.assert_array_equal(new.arguments[0].array, old.arguments[0].array)


def test_volumes():
    volume = RANDOM.standard_normal((1, 1, 2, 3, 4)).astype(np.float32)
    grid = RANDOM.uniform(-1.2, 1.2, (1, 2, 2, 2, 3)).astype(np.float32)
    check("GridSample", volume, grid, mode="linear", padding_mode="border", rtol=1e-3)


@pytest.mark.parametrize("sizes", [(2, 3, 4, 5), (1, 1, 2, 3, 4)])
def test_affine_grids(sizes):
    maps = RANDOM.standard_normal((sizes[0], len(sizes) - 2, len(sizes) - 1)).astype(np.float32)
    for aligned in (0, 1):
        check("AffineGrid", maps, np.array(sizes), align_corners=aligned)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize(
    "attributes", [{}, {"sampling_ratio": 2}, {"coordinate_transformation_mode": "output_half_pixel"}]
)
def test_regions(mode, attributes):
    check(
        "RoiAlign", IMAGE, REGIONS, np.array([1, 0]), mode=mode, output_height=2, output_width=3, spatial_scale=0.9,
        **attributes,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_regions_in_float64(mode):
    given = {"mode": mode, "output_height": 2, "output_width": 3, "sampling_ratio": 2}
    wide = IMAGE.astype(np.float64), REGIONS.astype(np.float64) + 1e-9
    outputs = [
        read(model_of("RoiAlign", *(one.astype(dtype) for one in wide), np.array([1, 0]), **given)).outputs[0].array
        for dtype in (np.float32, np.float64)
    ]
    assert outputs[1].dtype == np.float64
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-9  # what float32 loses is there


def test_how_many_points_a_bin_has_must_be_said_or_known():
    with refuses(UnknownValueError):
        read(model_of("RoiAlign", IMAGE, REGIONS, np.array([1, 0]), unknown=(1,)))
    (output,) = read(model_of("RoiAlign", IMAGE, REGIONS, np.array([1, 0]), unknown=(1,), sampling_ratio=2)).outputs
    assert output.type.shape == (2, 2, 1, 1)


def test_pools_of_regions():
    regions = np.array([[1, 0, 0, 3, 3], [0, 1, 1, 2, 1], [0, 9, 9, 9, 9]], np.float32)
    whole = [IMAGE[1, :, :2, :2].max((1, 2)), IMAGE[1, :, 2:4, 2:4].max((1, 2))]
    (output,) = read(model_of("MaxRoiPool", IMAGE, regions, pooled_shape=[2, 2])).outputs
    assert output.type.shape == (3, 2, 2, 2)
    np.testing.assert_array_equal(output.array[0][:, [0, 1], [0, 1]], np.stack(whole, axis=1))
    np.testing.assert_array_equal(output.array[1][:, 0, 0], IMAGE[0, :, 1, 1])
    np.testing.assert_array_equal(output.array[2], np.zeros((2, 2, 2)))
