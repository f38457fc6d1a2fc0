"""Where a tensor-core schedule keeps its tiles: sizes, the ring in shared memory, swizzled addresses.

Notation
--------
row, column : of a staged tile; a row is what lies contiguous in the tensor (along k, or along m or n).
chunk : 16 bytes, what one lane of ``ldmatrix`` reads.
swizzle : the chunk index of an element is XORed with bits of its row, so that the eight rows that ``ldmatrix`` reads at
    one chunk index (or the four rows that a warp reads element by element) lie in different banks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from anatune.core.generation import generation_limit
from anatune.core.hardware.spec import GpuSpec
from anatune.core.schedule import Schedule
from anatune.core.workload.implicit_gemm import ImplicitGemm, Operand, implicit_gemm
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.errors import BuildError, SpaceError
from anatune.templates.gpu.split import Split, split_of

__all__ = ["OperandTile", "TileLayout", "layout_of"]

_WARP = 32
_CHUNK_BYTES = 16
_LINE_CHUNKS = 8
"""Chunks of all 32 banks together."""


class OperandTile(NamedTuple):
    """A staged operand: `num_rows` x `row` elements, `base` elements behind the start of a stage, fetched by `width`.

    ``matrix`` says whether fragments are read with ldmatrix; 32-bit elements across the rows cannot be.
    """

    operand: Operand
    num_rows: int
    row: int
    base: int
    width: int
    matrix: bool
    element_bytes: int

    @property
    def tensor(self) -> str:
        """Name of the operand."""
        return self.operand.access.tensor

    @property
    def size(self) -> int:
        """Elements."""
        return self.num_rows * self.row

    @property
    def chunk(self) -> int:
        """Elements of 16 bytes."""
        return _CHUNK_BYTES // self.element_bytes

    @property
    def asynchronous(self) -> bool:
        """Whether it is copied by cp.async (at least 4 bytes), not through registers."""
        return self.width * self.element_bytes >= 4

    @property
    def copies(self) -> int:
        """Vectors of the tile."""
        return self.size // self.width

    def swizzle(self, row: str) -> str:
        """Return the expression that the chunk index is XORed with, "0" where rows lie in different banks anyway."""
        unit = 1 if self.matrix else 2  # element by element, eight neighbours (two chunks) belong together
        chunks = self.row // self.chunk
        lines = _LINE_CHUNKS // unit
        bits = min(lines.bit_length() - 1, _trailing_zeros(chunks // unit))
        if bits == 0:
            return "0"
        shift = lines.bit_length() - 1 - bits
        shifted = f"({row}) // {2**shift}" if shift else f"({row})"
        bits_text = f"{shifted} % {2**bits}"
        return bits_text if unit == 1 else f"{bits_text} * {unit}"

    def address(self, row: str, chunk: str, within: str = "0") -> str:
        """Return the element index of (row, chunk, element within the chunk) from the start of a stage."""
        mask = self.swizzle(row)
        place = f"({chunk})" if mask == "0" else f"T.bitwise_xor({chunk}, {mask})"
        tail = "" if within == "0" else f" + {within}"
        return f"{self.base} + ({row}) * {self.row} + {place} * {self.chunk}{tail}"


class TileLayout(NamedTuple):
    """All sizes of one schedule. m, n: warps, instructions a warp; k: instructions a stage.

    ``grid`` and ``block`` map a fused index to blocks (stages for k) and to elements of a block (of a stage).
    """

    schedule: Schedule
    gemm: ImplicitGemm
    grid: dict[str, int]
    block: dict[str, int]
    warps: dict[str, int]
    mma: dict[str, int]
    stages: int
    group: int
    left: OperandTile
    right: OperandTile

    @property
    def element_bytes(self) -> int:
        """Bytes of an operand's element."""
        return DTYPE_BYTES[self.schedule.workload.dtype]

    @property
    def split(self) -> Split:
        """How reductions are divided among blocks."""
        return split_of(self.schedule.options)

    @property
    def num_tiles(self) -> int:
        """Tiles of the result: blocks of the grid, where no reduction is split."""
        return self.gemm.extents["batch"] * self.grid["m"] * self.grid["n"]

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return self.split.num_blocks(self.num_tiles)

    @property
    def num_accumulators(self) -> int:
        """Results of a thread."""
        return self.mma["m"] * self.mma["n"] * 4

    @property
    def num_warps(self) -> int:
        """Warps of a block."""
        return self.warps["m"] * self.warps["n"]

    @property
    def num_threads(self) -> int:
        """Threads of a block."""
        return _WARP * self.num_warps

    @property
    def stage_elements(self) -> int:
        """Elements of both tiles."""
        return self.left.size + self.right.size

    @property
    def warp_columns(self) -> int:
        """Results of a warp along n."""
        return self.block["n"] // self.warps["n"]

    @property
    def result_pitch(self) -> int:
        """float32 elements from row to row of a warp's results on their way to memory; rows lie in different banks."""
        return self.warp_columns + (8 if self.warp_columns % 16 == 0 else 16)

    @property
    def result_bytes(self) -> int:
        """Shared memory for a block's results on their way to memory."""
        return self.num_warps * 16 * self.result_pitch * 4

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: the ring, or the results on their way to memory, which take its place."""
        return max(self.stages * self.stage_elements * self.element_bytes, self.result_bytes)


def _trailing_zeros(value: int) -> int:
    return (value & -value).bit_length() - 1


def layout_of(schedule: Schedule) -> TileLayout:
    """Return the sizes of a checked schedule of the tensor-core template.

    Raises
    ------
    SpaceError
        Another template.
    BuildError
        A tensor is too large for 32-bit addresses.
    """
    workload, hardware = schedule.workload, schedule.hardware
    if not isinstance(hardware, GpuSpec) or schedule.template != "tensorcore":
        raise SpaceError(f"schedule is for {hardware.name} ({schedule.template}), expected a GPU and tensorcore")
    if limit := generation_limit(workload, hardware):
        raise BuildError(limit)
    gemm = implicit_gemm(workload)
    tiles = schedule.tiles
    grid = {axis: factors[0] for axis, factors in tiles.items()}
    block = {axis: math.prod(factors[1:]) for axis, factors in tiles.items()}
    left = _tile(schedule, gemm.left, block["m"], block["k"], 0)
    right = _tile(schedule, gemm.right, block["n"], block["k"], left.size)
    return TileLayout(
        schedule,
        gemm,
        grid,
        block,
        {axis: tiles[axis][1] for axis in ("m", "n")},
        {axis: factors[-2] for axis, factors in tiles.items()},
        int(schedule.options["stages"]),  # type: ignore[arg-type]
        int(schedule.options["group"]),  # type: ignore[arg-type]
        left,
        right,
    )


def _tile(schedule: Schedule, operand: Operand, rows: int, depth: int, base: int) -> OperandTile:
    element = DTYPE_BYTES[operand.access.dtype]
    num_rows, row = (rows, depth) if operand.along_k else (depth, rows)
    width = schedule.vector[operand.access.tensor]
    return OperandTile(operand, num_rows, row, base, width, operand.along_k or element == 2, element)
