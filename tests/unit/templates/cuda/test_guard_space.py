"""The tiles in the space that do not divide an extent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anatune import conv2d, matmul
from anatune.templates.cuda.guard_space import MOST_BLOCK, MOST_DEPTH, axis_tilings, guarded_tiles, has_poor_divisors
from anatune.templates.cuda.rules import REDUCTION_LEVELS, SPATIAL_LEVELS


@pytest.mark.parametrize(
    "extent", [1, 2, 3, 7, 11, 14, 28, 52, 56, 68, 112, 196, 224, 512, 768, 1000, 3136, 4096, 50176]
)
def test_even_extents_keep_their_divisors(extent: int) -> None:
    assert not has_poor_divisors(extent, MOST_BLOCK)
    assert guarded_tiles(extent, MOST_BLOCK) == ()


@pytest.mark.parametrize("extent", [13, 17, 34, 35, 49, 73, 147, 197, 509, 577, 1021, 4099, 50257])
def test_tiles_of_awkward_extents_waste_little(extent: int) -> None:
    assert has_poor_divisors(extent, MOST_BLOCK)
    for most in (MOST_BLOCK, MOST_DEPTH):
        tiles = guarded_tiles(extent, most)
        assert tiles == tuple(sorted(set(tiles)))
        for tile in tiles:
            assert extent % tile
            assert extent < math.ceil(extent / tile) * tile <= 1.125 * extent
    assert max(guarded_tiles(extent, MOST_BLOCK)) >= min(8, extent // 4)


def test_the_list_is_exact_sorted_and_without_repeats() -> None:
    part = axis_tilings(matmul(197, 8, 8), "i", SPATIAL_LEVELS)
    rows = part.table
    assert len(rows) == part.count == len({tuple(row) for row in rows.tolist()})
    assert rows.tolist() == sorted(rows.tolist())
    inner = rows[:, 1:].prod(axis=1)
    covers = np.array([197 % tile == 0 or tile in guarded_tiles(197, MOST_BLOCK) for tile in inner.tolist()])
    assert covers.all()
    assert (rows[:, 0] == -(-197 // inner)).all()
    assert {tuple(row) for row in rows[inner == 197].tolist()} >= {(1, 1, 197, 1, 1), (1, 197, 1, 1, 1)}


def test_windows_are_never_guarded() -> None:
    workload = conv2d(1, 8, 40, 40, 8, 17, 17)
    window = next(axis.name for axis in workload.reduction_axes if axis.extent == 17)
    assert axis_tilings(workload, window, REDUCTION_LEVELS).count == 3
