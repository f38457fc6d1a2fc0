"""Grids: one block a tile, blocks that take several in turn, and what is neither."""

import pytest

from anatune.adapters.triton.asked import LaunchGrid
from anatune.errors import SpaceError
from anatune.templates.triton.problem import MatmulProblem
from tests.wording import refuses

TILE = [64, 64, 32, 4, 3, 1, 8]  # 8 x 8 tiles of the result
PROBLEM = MatmulProblem(512, 512, 512)


@pytest.mark.parametrize(
    ("grid", "num_programs", "expected"),
    [
        (None, None, False),
        ((64,), None, False),
        ((8, 8), None, False),
        (lambda meta: (min(meta["NUM_SMS"], 64),), None, True),
        (16, None, True),
        ((32,), None, True),  # two blocks an SM
        ((10,), 10, True),
        ((20,), 10, True),
        ((70,), 10, True),  # some have nothing to do
        ((64,), 32, False),
    ],
)
def test_grids(grid, num_programs, expected):
    launch = LaunchGrid(PROBLEM, grid, num_sms=16, num_programs=num_programs)
    assert launch.is_persistent(TILE, {"NUM_SMS": 16}) is expected


@pytest.mark.parametrize("grid", [(65,), (17,), (0,), "x"])
def test_other_grids(grid):
    launch = LaunchGrid(PROBLEM, grid, num_sms=16)
    with refuses(SpaceError):
        launch.is_persistent(TILE, {})
    assert launch.is_persistent(TILE, {}, is_declared=True)
