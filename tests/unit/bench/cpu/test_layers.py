"""The layers of the CPU benchmarks."""

import pytest

from bench.cpu.layers import LAYERS
from bench.layers import choose
from tests.wording import refuses


def test_layers_are_those_of_the_anchors():
    chosen = choose(None, LAYERS)
    assert [layer.name for layer in chosen] == [
        *(f"M{i}" for i in range(6)),
        *(f"R{i}" for i in range(12)),
        *(f"Y{i}" for i in range(11)),
    ]
    for layer in (*chosen, LAYERS["MX"]):
        for layout in ("NHWC", "NCHW"):
            workload = layer.workload(layout)
            assert workload.flop == layer.flop
            assert workload.compulsory_bytes == layer.compulsory_bytes, layer.name


def test_choosing_layers():
    assert [layer.name for layer in choose("r8, R1,M*,mx", LAYERS)] == [*(f"M{i}" for i in range(6)), "R1", "R8", "MX"]
    assert len(choose("yolo9000", LAYERS)) == 11
    with refuses(SystemExit):
        choose("R99", LAYERS)


def test_products_with_padding():
    layers = LAYERS
    assert layers["R11"].in_bounds == pytest.approx((19 / 21) ** 2)  # 7 outputs, 3 taps, one outside at either end
    assert layers["R9"].in_bounds == pytest.approx((20 / 21) ** 2)  # stride 2: outside on one side only
    assert layers["R2"].in_bounds == layers["M0"].in_bounds == 1.0
