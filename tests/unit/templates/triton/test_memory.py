"""Tests of what convolutions cost beyond a product of the same size: short runs, padded windows, residuals."""

from __future__ import annotations

import anatune
from anatune.core.workload.nest import Workload
from anatune.templates.triton.model import TritonModel
from anatune.templates.triton.problem import MatmulProblem


def convolution(channels: int, groups: int, window: int, *steps: str) -> Workload:
    """Return a convolution of 64 images of 56 x 56."""
    return anatune.conv2d(
        64, channels, 56, 56, channels, window, window, padding=window // 2, groups=groups, layout="NHWC",
        dtype="float16", epilogue=steps,
    )  # fmt: skip


def problem(workload: Workload) -> MatmulProblem:
    """Return the product that the model sees."""
    device = anatune.hardware("rtx4090")
    assert isinstance(device, anatune.GpuSpec)
    return TritonModel(workload, device).problem


def test_runs_and_guards_are_those_of_the_window():
    pointwise, grouped = problem(convolution(96, 1, 1)), problem(convolution(96, 4, 3))
    assert pointwise.runs[0] == 0
    assert pointwise.guards == (0, 0)
    assert grouped.runs[0] == 24
    assert grouped.guards == (2, 0)


def test_products_have_neither():
    product = problem(anatune.matmul(512, 512, 512, dtype="float16"))
    assert (product.runs, product.guards) == ((0, 0), (0, 0))


def test_a_residual_is_read_from_memory():
    plain, added = convolution(256, 1, 1, "bias", "relu"), convolution(256, 1, 1, "bias", "add", "relu")
    size = added.write.num_bytes
    assert problem(added).epilogue_bytes - problem(plain).epilogue_bytes == size
    times = [anatune.plan(one, "rtx4090", 1, template="triton").predictions[0].time_s for one in (plain, added)]
    assert times[1] - times[0] > 0.7 * size / 1008e9
