"""Blocked layouts for MetaSchedule."""

import math

from bench.cpu import metaschedule
from bench.cpu.layers import LAYERS
from bench.layers import Matmul


def test_metaschedule_shapes_hold_every_element():
    for layer in LAYERS.values():
        elements = sum(map(math.prod, metaschedule.shapes(layer)))
        if isinstance(layer, Matmul):
            assert 4 * elements == layer.compulsory_bytes
        else:
            assert math.prod(metaschedule.shapes(layer)[2]) == layer.filters * layer.output_size**2
