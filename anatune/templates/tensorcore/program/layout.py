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

from anatune.core.schedule import Schedule
from anatune.core.workload.implicit_gemm import Operand, implicit_gemm
from anatune.core.workload.nest import DTYPE_BYTES
from anatune.templates.gpu.layout import KernelLayout
from anatune.templates.gpu.ranged import Ranged

__all__ = ["OperandTile", "TileLayout"]

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


class TileLayout(KernelLayout):
    """All sizes of one schedule; parameters and errors as `KernelLayout`.

    Attributes
    ----------
    gemm : ImplicitGemm
    grid, block : dict of str to int
        Fused index -> blocks (stages for k); elements of a block (of a stage).
    warps, mma : dict of str to int
        Warps of a block; instructions of a warp (of a stage for k).
    stages, group : int
        Buffers of the ring; rows of blocks that are walked together.
    left, right : OperandTile
    """

    templates = ("tensorcore",)

    def __init__(self, schedule: Schedule, ranged: Ranged | None = None) -> None:
        super().__init__(schedule, ranged)
        tiles = schedule.tiles
        self.gemm = implicit_gemm(self.workload)
        self.grid = {index: factors[0] for index, factors in tiles.items()}
        self.block = block = {index: math.prod(factors[1:]) for index, factors in tiles.items()}
        self.warps = {index: tiles[index][1] for index in ("m", "n")}
        self.mma = {index: factors[-2] for index, factors in tiles.items()}
        self.stages, self.group = (int(schedule.options[name]) for name in ("stages", "group"))  # type: ignore[arg-type]
        self.left = self._tile(self.gemm.left, block["m"], 0)
        self.right = self._tile(self.gemm.right, block["n"], self.left.size)

    def _tile(self, operand: Operand, rows: int, base: int) -> OperandTile:
        element, depth = DTYPE_BYTES[operand.access.dtype], self.block["k"]
        num_rows, row = (rows, depth) if operand.along_k else (depth, rows)
        width = self.schedule.vector[operand.access.tensor]
        return OperandTile(operand, num_rows, row, base, width, operand.along_k or element == 2, element)

    @property
    def num_tiles(self) -> int:
        """Tiles of the result: blocks of the grid, where no reduction is split."""
        return self.gemm.extents["batch"] * self.grid["m"] * self.grid["n"]

    @property
    def num_steps(self) -> int:
        """Stages of a tile."""
        return self.grid["k"]

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
