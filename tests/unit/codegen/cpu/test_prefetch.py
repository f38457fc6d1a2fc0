"""Lines that are asked for in the course of a microkernel."""

from __future__ import annotations

import anatune
from anatune.codegen.cpu.prefetch import LINES_AT_ONCE, new_lines
from anatune.codegen.cpu.program import program_of

ROW = 34 * 16
"""Elements of an image row of 34 pixels, 16 channels: one line a pixel."""


def lines_of_tile(height: int, width: int, x: int) -> set[int]:
    """Return the lines of a 3x3 window over some pixels, whose first column is `x`."""
    return {(y * ROW + (x + i) * 16) // 16 for y in range(height + 2) for i in range(width + 2)}


def test_new_lines_are_those_of_the_next_tile_alone():
    rows = [y * ROW + i * 16 for y in range(4) for i in range(2)]
    loops = [(3, ROW), (3, 16), (16, 1)]
    found = new_lines(rows, loops, 2 * 16, 4)
    assert {line // 16 for line in found} == lines_of_tile(4, 2, 2) - lines_of_tile(4, 2, 0)


def test_few_runs_are_left_to_the_hardware():
    row = [i * 16 for i in range(8)]
    assert new_lines(row, [(3, ROW), (3, 16), (16, 1)], 8 * 16, 4) == ()
    assert new_lines(row, [(3, ROW), (3, 16), (16, 1)], 0, 4) == ()


def llvm_of(y: int, x: int) -> str:
    """Return the code of a 3x3 convolution with tiles of y x x pixels and one vector."""
    workload = anatune.conv2d(1, 16, 32, 32, 64, 3, 3, padding=0, layout="NHWC")
    space = anatune.space(workload, anatune.hardware("intel_xeon_8480"))
    tiles = {"f": (1, 1, 1, 4, 16), "y": (1, 1, 1, 30 // y, y), "x": (1, 1, 1, 30 // x, x)}
    return program_of(space.schedule(tiles | {"rc": (1, 1, 16, 1), "ry": (1, 1, 3), "rx": (1, 1, 3)})).llvm


def test_many_lines_of_a_result_are_spread_and_few_are_not():
    many, few = llvm_of(5, 3), llvm_of(2, 5)
    assert 5 * 3 > LINES_AT_ONCE >= 2 * 5
    assert "_result = private unnamed_addr constant [15 x i64]" in many
    assert "_result = private" not in few
    assert "_fresh0 = private" in many
    assert many.count("call void @llvm.prefetch") < 15
    assert few.count("call void @llvm.prefetch") >= 10


def distance_of(depth: int) -> int:
    """Return how far ahead a matmul of tiles of 8 rows and `depth` steps asks for rows of A."""
    space = anatune.space(anatune.matmul(64, 64, depth), anatune.hardware("intel_xeon_8480"))
    tiles = {"i": (1, 1, 1, 8, 8), "j": (1, 1, 1, 2, 32), "k": (1, 1, depth, 1)}
    ahead = program_of(space.schedule(tiles)).kernels[0].operands[0].ahead
    assert ahead is not None
    return ahead.distance


def test_rows_longer_than_the_cache_holds_are_asked_for_as_they_are_read():
    assert distance_of(128) == 8 * 128  # the next call's
    assert distance_of(1024) == 2 * 16
