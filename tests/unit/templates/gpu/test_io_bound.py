"""Lower bounds on traffic from the access maps."""

from __future__ import annotations

import math

import pytest

import anatune
from anatune.templates.gpu.io_bound import contraction_traffic, lower_bound_bytes, window_reuse
from tests.naive_gpu import WORKLOADS


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (anatune.matmul(8, 8, 8), 1.0),
        (anatune.conv2d(1, 4, 16, 16, 8, 3, 3), 9.0),
        (anatune.conv2d(1, 4, 16, 16, 8, 3, 5), 15.0),
        (anatune.conv2d(1, 4, 16, 16, 8, 3, 3, stride=2), 2.25),
        (anatune.conv2d(1, 4, 16, 16, 8, 1, 1, stride=2), 1.0),  # never below 1
        (anatune.conv2d(1, 4, 16, 16, 8, 3, 3, dilation=2), 25.0),  # spans five positions
    ],
    ids=lambda value: getattr(value, "key", str(value)),
)
def test_window_reuse(workload: anatune.Workload, expected: float) -> None:
    assert window_reuse(workload) == expected


def test_matmul() -> None:
    workload = anatune.matmul(1024, 1024, 1024)
    assert lower_bound_bytes(workload, 2.0**40) == workload.compulsory_bytes == 3 * 4 * 2**20
    capacity = 4096.0  # 1024 elements
    assert lower_bound_bytes(workload, capacity) == pytest.approx(4 * 2 * 2**30 / math.sqrt(1024))


@pytest.mark.parametrize("name", WORKLOADS)
def test_never_below_the_compulsory_bytes_and_falling_with_capacity(name: str) -> None:
    workload = WORKLOADS[name]
    bounds = [lower_bound_bytes(workload, 2.0**e) for e in range(0, 30, 3)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] == workload.compulsory_bytes
    if workload.body != "multiply_add":
        assert bounds[0] == workload.compulsory_bytes


def test_contraction_of_a_matmul() -> None:
    assert contraction_traffic(2.0**30, 2.0**14, 1.0) == 2 * 2**30 / 2**7
    assert contraction_traffic(1e9, 1.0, 1.0) == 2e9


def test_contractions_fall_with_capacity_and_window_reuse() -> None:
    values = [contraction_traffic(1e12, 2.0**e, 1.0) for e in range(20)]
    assert values == sorted(values, reverse=True)
    assert contraction_traffic(1e12, 1024.0, 9.0) == pytest.approx(contraction_traffic(1e12, 1024.0, 1.0) / 3)


def test_square_tiles_of_contractions_come_within_a_constant() -> None:
    """Output tiles of b x b with b^2 + 2b <= capacity move 2 N / b elements."""
    for capacity in (256, 4096, 65536):
        side = math.isqrt(capacity + 1) - 1
        reached = 2 * 1e9 / side
        bound = contraction_traffic(1e9, float(capacity), 1.0)
        assert bound <= reached <= 1.2 * bound
