"""Lines that are asked for in the course of a microkernel."""

from __future__ import annotations

import math
import re

import pytest

import anatune
from anatune.core.schedule import Schedule
from anatune.templates.cpu.program.kernels import Kernels
from anatune.templates.cpu.program.prefetch import LINES_AT_ONCE, new_lines, spreads_of
from anatune.templates.cpu.program.program import program_of
from anatune.templates.cpu.program.register_tile import Bases

ROW = 34 * 16
"""Elements of an image row of 34 pixels, 16 channels: one line a pixel."""


def lines_of_tile(height: int, width: int, x: int) -> set[int]:
    """Return the lines of a 3x3 window over some pixels, whose first column is `x`."""
    return {(y * ROW + (x + i) * 16) // 16 for y in range(height + 2) for i in range(width + 2)}


def test_new_lines_are_those_of_the_next_tile_alone():
    rows = [y * ROW + i * 16 for y in range(4) for i in range(2)]
    loops = [(3, ROW), (3, 16), (16, 1)]
    lines = new_lines(rows, loops, 2 * 16, 4)
    assert {line // 16 for line in lines} == lines_of_tile(4, 2, 2) - lines_of_tile(4, 2, 0)


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


def test_a_short_reduction_asks_for_each_line_of_its_result_once():
    """Three iterations that take 28 lines each ask 84 times, and lose a tenth of the kernel's speed."""
    workload = anatune.conv2d(1, 3, 28, 28, 32, 3, 3, padding=0, layout="NHWC")
    space = anatune.space(workload, anatune.hardware("intel_xeon_8480"))
    tiles = {"f": (1, 1, 1, 1, 32), "y": (1, 1, 1, 26, 1), "x": (1, 1, 1, 2, 13)}
    kernel = program_of(space.schedule(tiles | {"rc": (1, 1, 3, 1), "ry": (1, 1, 3), "rx": (1, 1, 3)})).kernels[0]
    bases = Bases(["%data", "%weight"], "%result", [], "", "%result")
    (spread,) = [spread for spread in spreads_of(kernel, bases) if spread.to_write]
    assert len(spread.lines) == 13 * 2
    assert len(spread.lines) <= spread.each * math.prod(kernel.trips) < len(spread.lines) + math.prod(kernel.trips)


def rows_ahead(unroll: int, depth: int = 128) -> tuple[int, str]:
    """Return how far ahead a matmul of tiles of 8 rows asks for rows of A, and its code."""
    space = anatune.space(anatune.matmul(64, 64, depth), anatune.hardware("intel_xeon_8480"))
    tiles = {"i": (1, 1, 1, 8, 8), "j": (1, 1, 1, 2, 32), "k": (1, 1, depth // unroll, unroll)}
    program = program_of(space.schedule(tiles))
    ahead = program.kernels[0].operands[0].ahead
    assert ahead is not None
    return ahead.distance, program.llvm


@pytest.mark.parametrize("depth", [128, 1024])
def test_rows_of_the_next_call_are_asked_for_as_far_as_l2(depth):
    distance, llvm = rows_ahead(16, depth)
    assert distance == 8 * depth
    assert llvm.count("i32 0, i32 2, i32 1") == 8  # rows of one line each


@pytest.mark.parametrize(("unroll", "prefetches"), [(1, 1), (4, 2), (8, 4), (32, 16)])
def test_a_line_of_a_row_is_asked_for_once_while_a_line_is_read(unroll, prefetches):
    _, llvm = rows_ahead(unroll)
    assert llvm.count("i32 0, i32 2, i32 1") == prefetches
    tables = re.findall(r"_ahead0 = private unnamed_addr constant \[\d+ x i64\] \[(.*)\]", llvm)
    entries = [int(entry.split()[1]) for entry in tables[0].split(",")] if tables else []
    assert set(entries) == ({row * 128 for row in range(8)} if unroll < 16 else set())


def streaming(depth: int) -> Schedule:
    """Return a matmul whose blocks of columns, `depth` x 32 elements, are each read by ten calls of two sizes."""
    space = anatune.space(anatune.matmul(64, 2048, depth), anatune.hardware("intel_xeon_8480"))
    tiles = {"i": (1, 1, 1, 1, 64), "j": (1, 1, 1, 64, 32), "k": (1, 1, depth, 1)}
    return space.schedule(tiles, calls={"i": 10}, keep={"l1": "B"}, packed=("B",))


def test_calls_of_a_block_ask_for_the_whole_next_one():
    kernels = Kernels(streaming(512))
    layout = kernels.layouts[1]
    prefetched: list[int] = []
    for number, parts in enumerate(kernels.tiles()):
        sizes = {axis: part.size for axis, part in parts.items()}
        stream = kernels.microkernel(f"k{number}", parts).operands[1].stream
        assert stream is not None
        assert stream.shares == {"i": stream.num_lines * 16}
        for call in range(parts["i"].count):
            first = layout.call_stride("j", 0, sizes) + stream.distance + call * stream.shares["i"]
            prefetched += range(first // 16, first // 16 + stream.num_lines)
    block = 512 * 32 // 16
    assert set(range(block, 2 * block)) <= set(prefetched)
    assert len(prefetched) == len(set(prefetched)) < 1.02 * block


@pytest.mark.parametrize(("rows", "lines", "distance"), [(7, None, None), (8, 512 * 32 // 16, 8192 // 4)])
def test_weights_that_many_rows_read_once_are_asked_for_far_ahead(rows, lines, distance):
    space = anatune.space(anatune.matmul(rows, 2048, 512), anatune.hardware("intel_xeon_8480"))
    tiles = {"i": (1, 1, 1, 1, rows), "j": (1, 1, 1, 64, 32), "k": (1, 1, 512, 1)}
    stream = program_of(space.schedule(tiles, packed=("B",))).kernels[0].operands[1].stream
    assert (stream and stream.num_lines) == lines
    assert (stream and stream.distance) == distance


def test_what_stays_in_the_l2_cache_is_not_asked_for():
    kernels = Kernels(streaming(64))
    microkernels = [kernels.microkernel("k", parts) for parts in kernels.tiles()]
    assert [operand.stream for kernel in microkernels for operand in kernel.operands] == [None] * 2 * len(microkernels)


def test_lines_of_a_stream_are_spread_over_the_steps():
    """Each of two microkernels also asks for rows of A."""
    counts = [program_of(streaming(depth)).llvm.count("i32 0, i32 2, i32 1") for depth in (512, 64)]  # as far as L2
    assert counts == [2 + 2, 2]


def test_calls_of_all_sizes_read_a_block_before_the_next_one_is_read():
    lines = [line.strip() for line in program_of(streaming(512)).main.splitlines()]
    assert [line for line in lines if line.startswith("for c_")] == [
        "for c_j in range(64):", "for c_i in range(6):", "for c_i in range(4):",
    ]  # fmt: skip
