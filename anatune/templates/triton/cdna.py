"""Products on AMD's CDNA compute units: the grid of waves, their registers, and the operands that they read.

Notation
--------
wave : 64 lanes, which Triton calls a warp. A compute unit has 4 SIMDs, each with 512 registers per lane (including the
    accumulation registers).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton import instructions
from anatune.templates.triton.instructions import Instruction
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from anatune.templates.triton.tiles import Tiles

__all__ = ["ARCHS", "DIRECT_ARCH", "WAVE", "Products", "products", "registers", "square_of", "wave_grid"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

ARCHS = tuple(arch for arch in instructions.ARCHS if arch.startswith("gfx"))
DIRECT_ARCH = "gfx950"
"""First architecture that copies to LDS directly. Earlier ones keep the operands of the next step in registers."""
WAVE = 64
SQUARES = (16, 32)
"""Rows and columns of the results of one instruction."""
_OWN_REGISTERS = 36.0
"""Registers of a lane for addresses, masks and counters. Fitted to 127 compiled programs for gfx942 and gfx950."""

_NAMED_REGISTERS = 256.0
"""Registers of a lane that vector instructions can name; as many are for accumulation. Source: AMD CDNA 3 ISA."""
_COPIES = 1.0
"""Additional registers for each register beyond these, to copy it. Fitted to 22 programs with 128 or more sums a
lane."""


def square_of(tiles: Tiles) -> Ints:
    """Return the rows of the results of one instruction: 32 if both sides of the tile have as many, else 16."""
    square: Ints = np.where(np.minimum(tiles.block_m, tiles.block_n) >= SQUARES[1], SQUARES[1], SQUARES[0])
    return square


def wave_grid(tiles: Tiles) -> tuple[Ints, Ints]:
    """Return the waves along m and n. Source: warpsPerTile of Triton's AccelerateAMDMatmul."""
    square = square_of(tiles)
    rows, columns = np.ones_like(square), np.ones_like(square)
    while (more := rows * columns < tiles.num_warps).any():
        taller = tiles.block_m / (2 * square) / rows >= tiles.block_n / square / columns
        down = taller & (rows < tiles.block_m // square)
        rows = np.where(more & down, 2 * rows, rows)
        columns = np.where(more & ~down, 2 * columns, columns)
    turned = columns * square > tiles.block_n
    return np.where(turned, columns, rows), np.where(turned, rows, columns)


def registers(problem: MatmulProblem, tiles: Tiles, instruction: Instruction, spec: GpuSpec) -> Floats:
    """Return the registers that a lane needs: sums, operands of a step, and before gfx950 those of the next step.

    The mean difference to the compiler is below 18; see ``bench.gpu.triton_resources``.
    """
    lanes = (tiles.num_warps * WAVE).astype(np.float64)
    waves_m, waves_n = wave_grid(tiles)
    element = DTYPES[instruction.as_dtype] if instruction.emulated else problem.element_bytes
    strips = tiles.block_m / waves_m + tiles.block_n / waves_n
    operands = strips * tiles.block_k * element / WAVE / 4.0
    stage = (tiles.block_m * problem.element_bytes + tiles.block_n * problem.right_element_bytes) * tiles.block_k
    waiting = np.where(tiles.num_stages > 1, stage / lanes / 4.0, 0.0) if spec.arch != DIRECT_ARCH else 0.0
    needed = _OWN_REGISTERS + tiles.block_m * tiles.block_n / lanes + operands + waiting
    total: Floats = np.ceil(needed + _COPIES * np.maximum(0.0, needed - _NAMED_REGISTERS))
    return total


class Products(NamedTuple):
    """The cost of multiplying one stage, (num_tiles,) each."""

    repeated: Floats
    """Factor by which products are repeated: waves beyond the squares of the tile repeat the work of others."""
    slots: Floats
    """Instructions: MFMA, and loads of 16 bytes per lane from LDS."""
    reads: Floats
    """Bytes that waves read from LDS: each row of waves reads the left operand, each column the right one."""
    converted: Floats
    """Elements that are converted before they are multiplied."""


def products(problem: MatmulProblem, tiles: Tiles, instruction: Instruction) -> Products:
    """Return the cost of multiplying one stage with MFMA."""
    m, n, k = (size.astype(np.float64) for size in (tiles.block_m, tiles.block_n, tiles.block_k))
    square = square_of(tiles).astype(np.float64)
    waves_m, waves_n = wave_grid(tiles)
    repeated = np.maximum(1.0, square * waves_m / m) * np.maximum(1.0, square * waves_n / n)
    reads = m * k * problem.element_bytes * waves_n + n * k * problem.right_element_bytes * waves_m
    # an instruction for 16 x 16 results has twice the depth of one for 32 x 32: half the work
    each = square * square * instruction.depth * SQUARES[1] / square
    slots = m * n * k * repeated / each + reads / (16.0 * WAVE)
    converted = np.zeros(len(tiles))
    if instruction.emulated:
        converted = m * k * waves_n + n * k * waves_m
    elif problem.converts:
        converted = n * k * waves_m
    return Products(repeated, slots, reads, converted)
