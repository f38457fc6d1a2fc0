"""The layers of the GPU benchmark."""

import pytest

import anatune
from bench.gpu.layers import LAYERS
from bench.layers import EXTRA, choose


def test_layers_are_those_of_the_papers():
    for name, layer in LAYERS.items():
        if layer.group != EXTRA:
            assert layer.workload("NCHW") == anatune.layer(f"{layer.group}:{name}")
    assert len(choose(None, LAYERS)) == 6 + 13 + 11
    assert [layer.name for layer in choose("l0, R1?,m0", LAYERS)] == ["M0", "R10", "R11", "R12", "L0"]
    with pytest.raises(SystemExit, match="'R99' is unknown"):
        choose("R99", LAYERS)
