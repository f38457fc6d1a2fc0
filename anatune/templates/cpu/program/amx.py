"""The reduction of a microkernel on AMX's tiles: sums of 16 rows and 16 columns each, in LLVM's intrinsics.

A microkernel's rows in blocks of 16 and its vectors of 16 lanes are tiles of accumulators: two by two of them leave two
registers each for the operands' tiles, so that four products need four loads. 16 steps are one product: a row of the
broadcast operand's tile is 64 bytes of neighbours along the reduction, a row of the vectors' tile the groups of one
vector, as they are packed. Behind the reduction tiles become vectors by way of the stack, and all that follows is what
other microkernels do.

TVM has LLVM inline all microkernels of a program. Then tile registers are configured once for all of them, where each
has one shape: so that a pair of microkernels does not run out of registers, which ends the process, their tiles have
the shapes of the larger one's. The smaller one comes first: it computes rows of the next call, and leaves them.

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
    """Return the sums of a call in vectors, as other microkernels have them behind their reduction.

    Parameters
    ----------
    first : Tile
        What the sums start from; only where the kernel has a `start` it is not zero.
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
        place = [("ptr", address), ("i64", str(width))]
        code.call_void("llvm.x86.tilestored64.internal", [*_shape(kernel, block), *place, (_TYPE, tile)])
    loaded = {}
    for row, vector in first:
        address = code.address(memory, "int8", row * width + vector * _ROW_BYTES)
        loaded[row, vector] = code.load_vector(address, kernel.accumulator, 1, kernel.lanes)
    if kernel.start is None:
        return loaded
    return {place: code.binary("add", value, first[place]) for place, value in loaded.items()}


def tile_steps(code: LlvmCode, kernel: Microkernel, pointers: Sequence[str], sums: Tile) -> Tile:
    """Emit the products of the unrolled steps, up to 16 of them in one (`tile_depths`).

    Raises
    ------
    BuildError
        Taps are left out, groups are not full, rows are not equally far apart, or the groups of a row no neighbours.
    """
    if kernel.skipped or any(operand.used or operand.flips for operand in kernel.operands):
        raise BuildError("AMX: tiles can leave out no taps of padding and no elements of groups")
    (vectors,) = (i for i, operand in enumerate(kernel.operands) if operand.lane_stride)
    broadcast = 1 - vectors
    blocks, places = dict.fromkeys(block for block, _ in sums), dict.fromkeys(vector for _, vector in sums)
    end = 0
    for depth in tile_depths(kernel.num_steps):
        steps, end = range(end, end + depth), end + depth
        left = {block: _rows(code, kernel, broadcast, pointers[broadcast], block, steps) for block in blocks}
        right = {place: _groups(code, kernel, vectors, pointers[vectors], place, steps) for place in places}
        for block, vector in sums:
            tiles = [(_TYPE, tile) for tile in (sums[block, vector], left[block], right[vector])]
            shape = [*_shape(kernel, block), ("i16", str(_ROW_BYTES // TILE_STEPS * depth))]
            sums = {**sums, (block, vector): code.call(_TYPE, f"llvm.x86.{kernel.dot}.internal", [*shape, *tiles])}
    return sums


def _shape(kernel: Microkernel, block: int) -> list[tuple[str, str]]:
    """Return rows and bytes of a row of a tile of accumulators."""
    rows = min(TILE_ROWS, kernel.tile_rows[0] - block * TILE_ROWS)
    return [("i16", str(rows)), ("i16", str(_ROW_BYTES))]


def _rows(code: LlvmCode, kernel: Microkernel, i: int, pointer: str, block: int, steps: range) -> str:
    """Load the broadcast operand's rows of a block: their groups one after another."""
    operand = kernel.operands[i]
    rows = operand.rows[block * TILE_ROWS : (block + 1) * TILE_ROWS]
    if _distance([operand.steps[step] for step in steps]) not in (0, operand.group):
        raise BuildError(f"AMX: the groups of operand {i} along the reduction are no neighbours in memory")
    row_bytes = _ROW_BYTES // TILE_STEPS * len(steps)
    count = int(_shape(kernel, block)[0][1])
    return _loaded(
        code, operand.dtype, pointer, rows[0] + operand.steps[steps[0]], count, row_bytes, kernel.tile_rows[1]
    )


def _groups(code: LlvmCode, kernel: Microkernel, i: int, pointer: str, vector: int, steps: range) -> str:
    """Load the groups of one vector: a row of the tile for each step."""
    operand = kernel.operands[i]
    if len(set(operand.rows)) > 1:
        raise BuildError(f"AMX: operand {i} has vectors of its own for each row")
    offset = operand.rows[0] + operand.steps[steps[0]] + vector * kernel.lanes * operand.lane_stride
    apart = _distance([operand.steps[step] for step in steps])
    return _loaded(code, operand.dtype, pointer, offset, len(steps), _ROW_BYTES, apart)


def _distance(places: Sequence[int]) -> int:
    """Return how far apart places are, equally (one place: 0)."""
    distances = {after - before for before, after in itertools.pairwise(places)} or {0}
    if len(distances) > 1:
        raise BuildError("AMX: rows of a tile are not equally far apart")
    return distances.pop()


def _loaded(code: LlvmCode, dtype: str, pointer: str, offset: int, rows: int, row_bytes: int, apart: int) -> str:
    """Load rows that are `apart` elements apart."""
    shape = [("i16", str(rows)), ("i16", str(row_bytes))]
    place = [("ptr", code.address(pointer, dtype, offset)), ("i64", str(apart * DTYPE_BYTES[dtype]))]
    return code.call(_TYPE, "llvm.x86.tileloadd64.internal", [*shape, *place])
