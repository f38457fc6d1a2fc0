"""A scale for every column, as kernels of servers load them: what the compiler made of them."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.templates.triton.grouped.scales import column_loads, needs_with_columns
from anatune.templates.triton.instructions import DotUnit
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import resources
from anatune.templates.triton.tiles import Tiles

H100, B200 = hardware("h100_sxm"), hardware("b200")
PRODUCT = MatmulProblem(4096, 4096, 4096, "fp8", b_along_n=False)


def tiles(*shapes: tuple[int, int, int]) -> Tiles:
    return Tiles.of([(rows, columns, 128, warps, 3, 1, 16) for rows, columns, warps in shapes])


# Triton 3.9: (block_m, block_n, warps), registers of a thread
@pytest.mark.parametrize(
    ("spec", "tile", "registers"),
    [
        (H100, (64, 32, 4), 80),
        (H100, (64, 64, 4), 164),
        (H100, (64, 128, 4), 204),
        (H100, (64, 128, 8), 170),
        (H100, (128, 128, 8), 255),
        (H100, (64, 256, 8), 202),
        (B200, (64, 64, 4), 194),
        (B200, (64, 128, 4), 234),
        (B200, (128, 64, 8), 194),
    ],
)
def test_registers_are_those_of_the_compiler(spec, tile, registers):
    needs = needs_with_columns(PRODUCT, tiles(tile), spec)
    assert abs(needs[0, 0] - registers) <= 25
    assert needs[1, 0] == resources(PRODUCT, tiles(tile), spec).shared_bytes[0]


# Triton 3.9: loads of scales of columns, and of spilled registers, in the loop
@pytest.mark.parametrize(
    ("spec", "unit", "tile", "loads"),
    [
        (H100, DotUnit.WGMMA, (64, 32, 4), 8),
        (H100, DotUnit.WGMMA, (64, 64, 4), 16),
        (H100, DotUnit.WGMMA, (128, 128, 8), 32),
        (H100, DotUnit.WGMMA, (64, 128, 4), 1),
        (B200, DotUnit.TCGEN05, (64, 64, 4), 32),
        (B200, DotUnit.TCGEN05, (128, 64, 8), 32),
        (B200, DotUnit.TCGEN05, (128, 128, 8), 64 + 53),
    ],
)
def test_threads_load_the_scales_of_their_columns(spec, unit, tile, loads):
    assert column_loads(tiles(tile), np.array([unit]), spec)[0] == pytest.approx(loads, abs=8)


def test_units_that_read_registers_keep_what_they_need():
    small = tiles((16, 64, 4))
    need = resources(PRODUCT, small, H100)
    assert (needs_with_columns(PRODUCT, small, H100) == [need.registers, need.shared_bytes, need.spilled]).all()
    assert column_loads(small, np.array([DotUnit.MMA]), H100)[0] == 0.0
