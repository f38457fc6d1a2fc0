"""Resources of scales and of conversions of weights, in addition to a product's operands and sums.

Notation
--------
piece : bytes of scales of a row, or of a column, in a stage. Pieces of at least 4 bytes per thread are copied ahead of
    the loop like operands. Smaller pieces pass through an exchange, as do scales whose layout differs from the
    results'.

The numbers were read off 240 kernels that Triton 3.9 compiled. Predicted shared bytes are exact or up to 2 KiB too high
(more on AMD, where the compiler sometimes gives up copying ahead). Six tiles of 16 rows or columns need up to 2 KiB
more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.scaling import SIDE
from anatune.templates.triton.cdna import DIRECT_ARCH
from anatune.templates.triton.grouped.problem import ScaledProblem
from anatune.templates.triton.grouped.rules import crosses_blocks, dot_type, is_scaled_by_tcgen05
from anatune.templates.triton.instructions import DotUnit, instruction_of
from anatune.templates.triton.resources import ExtraNeeds
from anatune.templates.triton.tiles import Tiles

__all__ = ["Scaling", "scaling_of"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_COPY_BYTES = 4
_WIDEST_COPY = 16
_FACTOR_BYTES = 4
_HELD = 0.75
"""Registers per weight that is unpacked or scaled in float32. Read off 24 kernels, 0.5 to 1.6."""
_TURNED = (10.0, 1.25)
"""Registers, and registers per sum, that mma.sync with 8-bit operands saves if both operands run along k, relative to
`resources`, which assumes transposed operands. Read off 40 kernels for sm_80, sm_89 and sm_120; mean error 20."""
_FEW_SUMS = 64.0
"""Most sums of a thread that mma.sync scales in place. More sums are held separately from those of other steps."""
_COLUMNS = 16
"""Columns of tensor memory for the scales of both operands."""


@dataclass(frozen=True)
class Scaling(ExtraNeeds):
    """The additional resources, and the costs of scales in a stage of a block, (num_tiles,) each."""

    stage_bytes: Floats
    """Bytes of scales."""
    slots: Floats
    """Instructions of the warps to unpack, shift and scale weights, beyond those of any conversion."""
    dram_bytes: float
    """Bytes of all scales, which are read once."""


def scaling_of(problem: ScaledProblem, dram_bytes: float, tiles: Tiles, spec: GpuSpec) -> Scaling:
    """Return the resources for every tile. block_k counts elements; `dram_bytes` are the bytes of all scales."""
    formats, weights = problem.format, tiles.block_n * tiles.block_k
    threads = spec.compute.warp_size * tiles.num_warps
    works = formats.converts and (formats.weight_bits == 4 or problem.run > 0)
    registers = np.where(works, _HELD * weights / threads, 0.0)
    sums, instruction = tiles.block_m * tiles.block_n / threads, instruction_of(spec, dot_type(problem))
    if instruction.unit == DotUnit.MMA and formats.data_bits <= 8 and not instruction.emulated:
        registers = registers - _TURNED[0] - _TURNED[1] * sums
    if problem.scales == "blocks":  # the sums of a step are held beside the total sums
        apart = 2.0 * np.maximum(0.0, sums - _FEW_SUMS)
        apart = np.where(crosses_blocks(problem, tiles.block_n), sums, apart) * (instruction.unit == DotUnit.MMA)
        registers = registers + (sums if spec.vendor == "amd" else apart)
    each = (formats.weight_bits == 4) + (problem.run > 0) + problem.zero_points if formats.converts else 0
    moved = np.zeros(len(tiles))
    for rows, piece in _pieces(problem, tiles):
        moved += rows * piece
    return Scaling(
        registers=registers,
        shared_bytes=_shared_bytes(problem, tiles, spec),
        columns=np.full(len(tiles), _COLUMNS if is_scaled_by_tcgen05(problem, spec) else 0),
        stage_bytes=moved,
        slots=weights * float(each) / spec.compute.warp_size,
        dram_bytes=dram_bytes,
    )


def _pieces(problem: ScaledProblem, tiles: Tiles) -> list[tuple[Ints, Ints]]:
    """Return (rows or columns of a tile, bytes of scales of each in a stage) for each tensor of scales."""
    formats = problem.format
    if problem.scales == "blocks":
        scale = np.full(len(tiles), _FACTOR_BYTES)
        return [(tiles.block_m, scale), (tiles.block_n if problem.activation else -(-tiles.block_n // SIDE), scale)]
    if not problem.run:
        return []
    runs = np.maximum(1, tiles.block_k // problem.run)
    if formats.run:
        return [(tiles.block_m, runs), (tiles.block_n, runs)]
    return [(tiles.block_n, runs * formats.data_bits // 8)] + ([(tiles.block_n, runs)] if problem.zero_points else [])


def _shared_bytes(problem: ScaledProblem, tiles: Tiles, spec: GpuSpec) -> Ints:
    """Return the bytes of shared memory in addition to the stages of operands."""
    formats, single = problem.format, tiles.num_stages == 1
    lanes = spec.compute.warp_size * tiles.num_warps
    amd, direct = spec.vendor == "amd", spec.arch == DIRECT_ARCH
    buffers = np.maximum(1, tiles.num_stages - 1 + direct)
    total = np.zeros(len(tiles), dtype=np.int64)
    by_tensor_memory = is_scaled_by_tcgen05(problem, spec)
    wide_tiles = (instruction_of(spec, dot_type(problem)).unit in (DotUnit.WGMMA, DotUnit.TCGEN05)) & (
        tiles.block_m >= 64
    )
    if problem.scales == "blocks":
        many = amd | (tiles.block_m * tiles.block_n > _FEW_SUMS * lanes)
        return _FACTOR_BYTES * np.maximum(tiles.block_m * many, tiles.block_n * crosses_blocks(problem, tiles.block_n))
    apart = np.zeros(len(tiles), dtype=np.int64)
    for rows, piece in _pieces(problem, tiles):
        row_bytes = max(1, -(-problem.k // problem.run)) * piece // np.maximum(1, tiles.block_k // problem.run)
        each = np.clip(rows * piece // lanes, 1, _WIDEST_COPY)
        width = np.minimum(np.gcd(piece, row_bytes), each)
        piped = (width >= _COPY_BYTES) | direct
        total = total + np.where(piped & ~single, rows * piece * buffers, 0)
        # one 16-bit scale per column is exchanged as float32 where wide units multiply
        wide = np.where((piece == 2) & wide_tiles, 2, 1)
        alone = single | ~piped | (by_tensor_memory & (width < each))
        apart = np.where(alone, np.maximum(apart, rows * piece * wide), apart)
    total = total + apart
    if by_tensor_memory:  # it waits for each step, and therefore has a buffer fewer than other products
        packs = 2 if formats.data_bits == 4 else 1
        stage = (tiles.block_m + tiles.block_n) * tiles.block_k // packs
        total = total - np.where(single, 0, stage)
    if amd and formats.converts and formats.weight_bits == 4:  # stored after the conversion, once
        packed = tiles.block_n * tiles.block_k // 2 * np.where(single, 1, buffers)
        total = total + np.maximum(0, tiles.block_n * tiles.block_k * formats.data_bits // 8 - packed)
    return total
