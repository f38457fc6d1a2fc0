"""Depthwise convolutions of models for matrix units, in Triton's interpreter and in plans of networks."""

import numpy as np
import pytest

import anatune
from anatune.measure.emulate.triton_interpreter import interpret
from anatune.network.relax.device.depthwise import is_taken, plan_depthwise

pytest.importorskip("triton")
CASES = {
    "one pixel of padding": {"size": (9, 7), "window": (3, 3), "padding": (1, 1)},
    "stride and uneven padding": {"size": (8, 9), "window": (5, 3), "stride": (2, 1), "padding": (1, 0, 2, 1)},
    "dilation": {"size": (11, 8), "window": (3, 2), "dilation": (2, 3), "padding": (2, 1)},
    "channels beside the tile": {"size": (5, 5), "window": (3, 3), "padding": (1, 1), "channels": 24},
    "a wide pixel": {"size": (4, 3), "window": (2, 2), "channels": 144},
    "steps": {"size": (5, 6), "window": (3, 3), "padding": (1, 1), "epilogue": ("bias", "add", "silu")},
}


def convolution(size, window, channels=16, dtype="float16", **options):
    """Return a depthwise convolution of two images."""
    return anatune.conv2d(
        2, channels, *size, channels, *window, groups=channels, layout="NHWC", dtype=dtype, **options
    )  # fmt: skip


def results(workload, arrays):
    """Return the convolution in float64."""
    attributes, data, weight = workload.attribute, arrays["data"], arrays["weight"]
    (top, left), (height, width) = (-offset for offset in workload.reads[0].offsets[1:3]), data.shape[1:3]
    stride, dilation = ((value, value) if isinstance(value, int) else value for value in (
        attributes["stride"], attributes["dilation"]
    ))  # fmt: skip
    total = np.zeros(workload.write.shape)
    for y, x, r, s in np.ndindex(*total.shape[1:3], *weight.shape[:2]):
        row, column = y * stride[0] + r * dilation[0] - top, x * stride[1] + s * dilation[1] - left
        if 0 <= row < height and 0 <= column < width:
            total[:, y, x] += data[:, row, column].astype(float) * weight[r, s, 0].astype(float)
    if workload.epilogue:
        total = total + arrays["bias"] + arrays["residual"]
        total = total / (1.0 + np.exp(-total))
    return total


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_float64(case):
    workload = convolution(**CASES[case])
    generator = np.random.default_rng(0)
    arrays = {
        access.tensor: generator.standard_normal(access.shape).astype(access.dtype) for access in workload.operands
    }
    program = plan_depthwise(workload).program
    got = interpret(program, arrays)[program.result]
    np.testing.assert_allclose(got, results(workload, arrays), rtol=2e-3, atol=2e-3)


def test_convolutions_with_several_channels_a_group_are_products():
    assert is_taken(convolution((8, 8), (3, 3)))
    assert not is_taken(convolution((8, 8), (3, 3), dtype="float32"))
    assert not is_taken(anatune.conv2d(2, 16, 8, 8, 16, 3, 3, groups=8, layout="NHWC", dtype="float16"))
    assert not is_taken(anatune.matmul(16, 16, 16, dtype="float16"))


def test_a_network_is_predicted_with_the_bytes_of_its_depthwise_convolutions():
    torch = pytest.importorskip("torch")
    pointwise, depthwise = torch.nn.Conv2d(64, 64, 1), torch.nn.Conv2d(64, 64, 3, padding=1, groups=64)
    model = torch.nn.Sequential(pointwise, depthwise, torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 1)).eval().half()
    images = torch.empty(128, 64, 56, 56, dtype=torch.float16)
    (summary,) = anatune.compare(model, (images,), hw="rtx3090")
    (row,) = [row for row in summary.rows if "depthwise" in row.name]
    num_bytes = 2 * images.numel() * 2
    assert row.count == 1
    assert num_bytes / 936e9 < row.predicted_s < 1.1 * num_bytes / (0.85 * 936e9)
    assert len(summary.kernels) == 1
