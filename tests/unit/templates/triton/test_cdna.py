"""Waves and registers of AMD's kernels of products as Triton 3.9 compiled them."""

import numpy as np
import pytest

from anatune.core.hardware.files import hardware
from anatune.templates.triton.cdna import registers, wave_grid
from anatune.templates.triton.instructions import instruction_of
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.tiles import Tiles


@pytest.mark.parametrize(
    ("sizes", "grid"), [((64, 64, 4), (2, 2)), ((128, 256, 8), (2, 4)), ((256, 32, 8), (8, 1)), ((16, 256, 8), (1, 8))]
)
def test_waves_form_a_grid(sizes, grid):
    m, n, warps = sizes
    rows, columns = wave_grid(Tiles.of([(m, n, 64, warps, 2, 1, 8)]))
    assert (rows.tolist(), columns.tolist()) == ([grid[0]], [grid[1]])


@pytest.mark.parametrize(
    ("spec", "dtype", "tile", "compiled"),
    [
        ("mi300x", "bfloat16", (128, 256, 64, 8, 2), 196),
        ("mi300x", "float16", (256, 32, 32, 4, 4), 104),
        ("mi300x", "float16", (64, 128, 64, 4, 1), 120),
        ("mi300x", "int8", (16, 128, 64, 8, 2), 48),
        ("mi355x", "bfloat16", (128, 128, 32, 4, 4), 124),
        ("mi355x", "float8_e5m2", (128, 128, 64, 8, 4), 74),
    ],
)
def test_registers_are_near_the_compilers(spec, dtype, tile, compiled):
    device = hardware(spec)
    predicted = registers(
        MatmulProblem(4096, 4096, 4096, dtype), Tiles.of([(*tile, 1, 8)]), instruction_of(device, dtype), device
    )
    assert abs(float(predicted[0]) - compiled) <= 40


def test_gfx950_holds_no_stage_in_registers():
    problem, tiles = MatmulProblem(512, 512, 512), Tiles.of([(128, 128, 64, 4, s, 1, 8) for s in (1, 2)])
    for name, differ in (("mi300x", True), ("mi355x", False)):
        device = hardware(name)
        counts = registers(problem, tiles, instruction_of(device, "float16"), device)
        assert (np.diff(counts)[0] > 0) == differ
