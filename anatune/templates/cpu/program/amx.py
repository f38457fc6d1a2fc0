"""The reduction of a microkernel on AMX tiles: sums of 16 rows and 16 columns each, with LLVM intrinsics.

Rows of a microkernel in blocks of 16, and its vectors of 16 lanes, are tiles of accumulators. Two by two of them leave
two registers each for the tiles of the operands, so that four products need four loads. One product sums 16 steps. A
row of a tile of the broadcast operand is 64 bytes of neighbours along the reduction. A row of a tile of the vector
operand is the packed groups of one vector. After the reduction, tiles are stored to the stack and loaded
as vectors. All that follows is as in other microkernels.

TVM lets LLVM inline all microkernels of a program. Tile registers are then configured once for all of them, and each
register has one shape. So the tiles of both microkernels of a pair have the shapes of the larger one; otherwise LLVM
can run out of registers, which ends the process. The smaller microkernel comes first: it also computes rows of the next
call, which overwrites them.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS, TDPBUSD, TILELOADD; LLVM 22,
IntrinsicsX86.td (the forms ``.internal``, whose registers LLVM assigns).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from anatune.core.workload.nest import DTYPE_BYTES
from anatune.emit.llvm import LlvmCode
from anatune.errors import BuildError
from anatune.templates.cpu.dot import TILE_ROWS, TILE_STEPS, tile_depths
from anatune.templates.cpu.program.register_tile import Microkernel, Tile

__all__ = ["tile_steps", "tile_sums"]

_TYPE = "x86_amx"
_ROW_BYTES = 64


def tile_sums(code: LlvmCode, kernel: Microkernel, first: Tile, loops: Callable[[LlvmCode, Tile], Tile]) -> Tile:
    """Return the sums of a call as vectors, like other microkernels have them after their reduction.

    Parameters
    ----------
    first : Tile
        Initial values of the sums. They are zero unless the kernel has a `start`.
    loops : callable
        (code whose values are tiles, zeros for each block of rows and each vector) -> sums: emits the reduction.
    """
    rows = len(kernel.result.rows)
    blocks = -(-rows // TILE_ROWS)
    width = kernel.num_vectors * _ROW_BYTES
    memory = code.emit(f"alloca [{blocks * TILE_ROWS * width} x i8], align {_ROW_BYTES}")
    zeros = {
        (block, vector): code.call(_TYPE, "llvm.x86.tilezero.internal", _shape(kernel, block))
        for block in range(blocks)
        for vector in range(kernel.num_vectors)
    }
    for (block, vector), tile in loops(code.holding(_TYPE), zeros).items():
        address = code.address(memory, "int8", block * TILE_ROWS * width + vector * _ROW_BYTES)
        memory_rows = [("ptr", address), ("i64", str(width))]
        code.call_void("llvm.x86.tilestored64.internal", [*_shape(kernel, block), *memory_rows, (_TYPE, tile)])
    loaded = {}
    for row, vector in first:
        address = code.address(memory, "int8", row * width + vector * _ROW_BYTES)
        loaded[row, vector] = code.load_vector(address, kernel.accumulator, 1, kernel.lanes)
    if kernel.start is None:
        return loaded
    return {tile: code.binary("add", value, first[tile]) for tile, value in loaded.items()}


def tile_steps(code: LlvmCode, kernel: Microkernel, pointers: Sequence[str], sums: Tile) -> Tile:
    """Emit the products of the unrolled steps, up to 16 steps in one product (`tile_depths`).

    Raises
    ------
    BuildError
        Taps are skipped, groups are not full, rows are not equally far apart, or the groups of a row are not
        neighbours.
    """
    if kernel.skipped or any(operand.used or operand.flips for operand in kernel.operands):
        raise BuildError("AMX: tiles cannot skip taps of padding or elements of groups")
    (vectors,) = (i for i, operand in enumerate(kernel.operands) if operand.lane_stride)
    broadcast = 1 - vectors
    blocks, columns = dict.fromkeys(block for block, _ in sums), dict.fromkeys(vector for _, vector in sums)
    end = 0
    for depth in tile_depths(kernel.num_steps):
        steps, end = range(end, end + depth), end + depth
        row_tiles = {block: _rows(code, kernel, broadcast, pointers[broadcast], block, steps) for block in blocks}
        column_tiles = {column: _groups(code, kernel, vectors, pointers[vectors], column, steps) for column in columns}
        for block, vector in sums:
            tiles = [(_TYPE, tile) for tile in (sums[block, vector], row_tiles[block], column_tiles[vector])]
            shape = [*_shape(kernel, block), ("i16", str(_ROW_BYTES // TILE_STEPS * depth))]
            sums = {**sums, (block, vector): code.call(_TYPE, f"llvm.x86.{kernel.dot}.internal", [*shape, *tiles])}
    return sums


def _shape(kernel: Microkernel, block: int) -> list[tuple[str, str]]:
    """Return the rows of a tile of accumulators, and the bytes of a row."""
    rows = min(TILE_ROWS, kernel.tile_rows[0] - block * TILE_ROWS)
    return [("i16", str(rows)), ("i16", str(_ROW_BYTES))]


def _rows(code: LlvmCode, kernel: Microkernel, i: int, pointer: str, block: int, steps: range) -> str:
    """Load the rows of a block of the broadcast operand, with their groups one after another."""
    operand = kernel.operands[i]
    rows = operand.rows[block * TILE_ROWS : (block + 1) * TILE_ROWS]
    if _distance([operand.steps[step] for step in steps]) not in (0, operand.group):
        raise BuildError(f"AMX: the groups of operand {i} along the reduction are not neighbours in memory")
    row_bytes = _ROW_BYTES // TILE_STEPS * len(steps)
    count = int(_shape(kernel, block)[0][1])
    return _load_tile(
        code, operand.dtype, pointer, rows[0] + operand.steps[steps[0]], count, row_bytes, kernel.tile_rows[1]
    )


def _groups(code: LlvmCode, kernel: Microkernel, i: int, pointer: str, vector: int, steps: range) -> str:
    """Load the groups of one vector: one row of the tile for each step."""
    operand = kernel.operands[i]
    if len(set(operand.rows)) > 1:
        raise BuildError(f"AMX: operand {i} has other vectors for each row, expected the same for all rows")
    offset = operand.rows[0] + operand.steps[steps[0]] + vector * kernel.lanes * operand.lane_stride
    apart = _distance([operand.steps[step] for step in steps])
    return _load_tile(code, operand.dtype, pointer, offset, len(steps), _ROW_BYTES, apart)


def _distance(addresses: Sequence[int]) -> int:
    """Return the distance between addresses, which has to be equal (one address: 0)."""
    distances = {after - before for before, after in itertools.pairwise(addresses)} or {0}
    if len(distances) > 1:
        raise BuildError("AMX: rows of a tile are not equally far apart")
    return distances.pop()


def _load_tile(code: LlvmCode, dtype: str, pointer: str, offset: int, rows: int, row_bytes: int, apart: int) -> str:
    """Load rows that are `apart` elements apart as a tile."""
    shape = [("i16", str(rows)), ("i16", str(row_bytes))]
    memory_rows = [("ptr", code.address(pointer, dtype, offset)), ("i64", str(apart * DTYPE_BYTES[dtype]))]
    return code.call(_TYPE, "llvm.x86.tileloadd64.internal", [*shape, *memory_rows])
