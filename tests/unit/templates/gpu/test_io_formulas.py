"""The I/O lower bound of contractions."""

from __future__ import annotations

import math

import pytest

from anatune.templates.gpu.io_formulas import contraction_traffic


def test_matmul() -> None:
    assert contraction_traffic(2.0**30, 2.0**14, 1.0) == 2 * 2**30 / 2**7
    assert contraction_traffic(1e9, 1.0, 1.0) == 2e9


def test_falls_with_capacity_and_window_reuse() -> None:
    values = [contraction_traffic(1e12, 2.0**e, 1.0) for e in range(20)]
    assert values == sorted(values, reverse=True)
    assert contraction_traffic(1e12, 1024.0, 9.0) == pytest.approx(contraction_traffic(1e12, 1024.0, 1.0) / 3)


def test_square_tiles_come_within_a_constant() -> None:
    """Output tiles of b x b with b^2 + 2b <= capacity move 2 N / b elements."""
    for capacity in (256, 4096, 65536):
        side = math.isqrt(capacity + 1) - 1
        reached = 2 * 1e9 / side
        bound = contraction_traffic(1e9, float(capacity), 1.0)
        assert bound <= reached <= 1.2 * bound
