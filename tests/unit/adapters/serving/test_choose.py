"""The tiles that are chosen."""

import numpy as np
import pytest

from anatune.adapters.serving.choose import race, space_of
from anatune.adapters.serving.shapes import Experts, Product
from anatune.core.hardware.files import hardware
from anatune.errors import SpaceError

H200 = hardware("h200")
SHAPE = Experts(128, 768, 2048, 8)


def test_the_space_is_that_of_the_tuners():
    tiles = space_of(SHAPE, H200)
    assert len(tiles) == 5 * 4 * 3 * 4 * 2 * 4
    scaled = space_of(Product(1536, 7168), H200, ((64, 128, 64, 4, 2, 1, 32),))
    assert set(scaled.block_k[:-1]) == {128}
    assert scaled.block_k[-1] == 64


def test_the_first_is_the_fastest_and_all_are_of_another_shape():
    found = race(SHAPE, 64, H200, space_of(SHAPE, H200))
    best = found.best(8)
    assert best[0].time_s <= 1.001 * found.time_s.min()
    assert len({choice.tile[:4] for choice in best}) == 8
    assert found.time_of(best[3].tile) == best[3].time_s
    assert found.best(block_m=128)[0].tile[0] == 128


def test_more_tokens_take_larger_blocks():
    tiles = space_of(SHAPE, H200)
    few, many = (race(SHAPE, tokens, H200, tiles).best()[0] for tokens in (4, 4096))
    assert few.tile[0] < many.tile[0]
    assert few.time_s < many.time_s


def test_nothing_legal_is_said():
    tiles = space_of(SHAPE, H200).take(np.array([0]))
    found = race(SHAPE, 4, H200, tiles)
    with pytest.raises(SpaceError, match="can run none"):
        found.best(block_m=256)
