"""A whole layer of experts."""

import numpy as np

from anatune.core.hardware.files import hardware
from anatune.core.workload.routing import make_uniform_routing
from anatune.templates.triton.grouped.layer import ExpertLayer, rest_s, score_layer
from anatune.templates.triton.tiles import Tiles

H200 = hardware("h200")
TILES = Tiles.of([(16, 64, 64, 4, 4, 1, 1), (64, 128, 128, 4, 3, 1, 16), (256, 256, 256, 4, 5, 1, 1)])


def layer(tokens=64, dtype="bfloat16", scaled=0):
    return ExpertLayer(tokens, 2048, 768, 128, 8, make_uniform_routing(tokens, 128, 8), dtype, scaled=scaled)


def test_both_products_and_the_rest_add_up():
    up, down = layer().products()
    assert (up.n, up.k, down.n, down.k) == (1536, 2048, 2048, 768)
    scores = score_layer(layer(), TILES, H200)
    assert np.allclose(scores.time_s, scores.up.time_s + scores.down.time_s + rest_s(layer(), H200))
    assert scores.is_legal.tolist() == [True, True, False]


def test_weights_that_are_held_cost_less():
    few = layer(1)
    assert (score_layer(few, TILES, H200, warm=True).time_s < score_layer(few, TILES, H200).time_s).all()


def test_operands_of_8_bits_are_quantised_and_read_in_half_the_time():
    assert rest_s(layer(dtype="fp8", scaled=128), H200) > rest_s(layer(), H200)
    scaled, plain = score_layer(layer(dtype="fp8", scaled=128), TILES, H200), score_layer(layer(), TILES, H200)
    assert scaled.up.parts["dram_s"][1] < 0.55 * plain.up.parts["dram_s"][1]
