"""Shared memory of Triton's products, byte by byte: stages of operands, barriers, the exchange of results.

Notation
--------
stage : the operands of one step of the loop. Each copy that runs beside the products needs a buffer.
piped : an operand that is copied ahead of the loop. Tiles of less than 4 bytes per thread are not piped and have one
    buffer.
turned : an operand that the unit needs along k but that lies the other way. It is transposed through a copy.

The sizes were read off kernels that Triton 3.9 compiled; ``bench.gpu.triton_resources`` checks random programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.cdna import DIRECT_ARCH, WAVE, square_of
from anatune.templates.triton.instructions import DotUnit, Instruction
from anatune.templates.triton.layouts import (
    exchange_bytes,
    mma_layout,
    store_layout,
    tcgen05_layout,
    warps_of_mma,
    warps_of_wgmma,
)
from anatune.templates.triton.problem import DTYPES, MatmulProblem
from anatune.templates.triton.tiles import Tiles

__all__ = ["shared_bytes"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BARRIER_BYTES = 8
_ALIGNED_BYTES = 16
_WARP_STATES = 4
_COPY_BYTES = 4
"""Least bytes that an asynchronous copy of a thread moves."""
_STORE_MATRIX_SINCE = 9.0
"""Least compute capability with ``stmatrix``. ``ldmatrix`` exists since 7.5."""
_WIDEST, _WIDEST_INT8 = 256, 128
"""Most columns of one wgmma, and of one of 8-bit integers."""
_ROW = 16
"""Bytes of a row that one thread copies as a whole. It is transposed in registers if the unit needs that."""
_NVIDIA_LANES = 32
_POWERS = (32, 32, 16)
"""Powers of two that rows, columns and warps of a tile can be."""


@dataclass(frozen=True)
class _StagedOperand:
    """The tiles of one operand."""

    block: Ints
    """block_m or block_n."""
    element: float
    """Bytes of an element in memory."""
    as_element: int
    """Bytes of an element when it is multiplied."""
    along_k: bool

    def bytes(self, tiles: Tiles) -> Ints:
        return (self.block * tiles.block_k * self.element).astype(np.int64)

    def converted_bytes(self, tiles: Tiles) -> Ints:
        return self.block * tiles.block_k * self.as_element

    def run(self, tiles: Tiles) -> Ints:
        """Return the elements of a row."""
        return tiles.block_k if self.along_k else self.block


def shared_bytes(
    problem: MatmulProblem, tiles: Tiles, unit: Ints, instructions: dict[int, Instruction], spec: GpuSpec
) -> Ints:
    """Return the bytes of shared memory of a block of every tile.

    Parameters
    ----------
    unit : array of int64, (num_tiles,)
        Codes of `DotUnit`.
    instructions : dict
        Code of `DotUnit` -> instruction.
    """
    total = np.zeros(len(tiles), dtype=np.int64)
    for code, instruction in instructions.items():
        chosen = np.flatnonzero(unit == code)
        if len(chosen):
            total[chosen] = _unit_bytes(problem, tiles.take(chosen), instruction, spec)
    return total


def _unit_bytes(problem: MatmulProblem, tiles: Tiles, instruction: Instruction, spec: GpuSpec) -> Ints:
    converted = DTYPES[instruction.as_dtype] if instruction.emulated else problem.element_bytes
    left = _StagedOperand(tiles.block_m, problem.element_bytes, converted, problem.a_along_k)
    right = _StagedOperand(tiles.block_n, problem.right_element_bytes, converted, not problem.b_along_n)
    if spec.vendor == "amd":
        return _amd_bytes(left, right, tiles, instruction, spec)
    if (spec.compute_capability or 0.0) < 8.0:
        return left.bytes(tiles) + right.bytes(tiles)
    if instruction.unit <= DotUnit.MMA:
        loop = _register_loop_bytes(left, right, tiles, instruction)
    elif instruction.unit == DotUnit.WGMMA:
        loop = _wgmma_bytes(left, right, tiles)
    else:
        loop = _tcgen05_bytes(left, right, tiles)
    # tensor descriptors store results from shared memory: after the loop, or beside it in persistent programs
    stored = tiles.block_m * tiles.block_n * np.where(tiles.split_k > 1, 4, problem.result_bytes)
    by_descriptors = tiles.descriptors == 1
    behind = np.where(by_descriptors, stored, _exchange_bytes(problem, tiles, instruction.unit, spec))
    loop = np.where(tiles.warp_specialize == 1, _specialised_bytes(left, right, tiles), loop)
    return np.where(by_descriptors & (tiles.persistent == 1), loop + stored, np.maximum(loop, behind))


def _is_unpiped(operand: _StagedOperand, tiles: Tiles) -> Flags:
    turned_bytes = operand.element == 1 and not operand.along_k
    whole_row = (operand.block == _ROW) & (operand.bytes(tiles) == _ROW * tiles.num_warps * _NVIDIA_LANES)
    unpiped: Flags = (_is_narrow(operand, tiles, _NVIDIA_LANES) | (turned_bytes & whole_row)) & (tiles.descriptors == 0)
    return unpiped


def _is_narrow(operand: _StagedOperand, tiles: Tiles, lanes: int) -> Flags:
    narrow: Flags = np.maximum(operand.bytes(tiles) // (tiles.num_warps * lanes), operand.element) < _COPY_BYTES
    return narrow


def _register_loop_bytes(left: _StagedOperand, right: _StagedOperand, tiles: Tiles, instruction: Instruction) -> Ints:
    """Return the bytes of the loop of mma.sync and FMA: one buffer fewer than stages; registers hold that one."""
    buffers = np.maximum(1, tiles.num_stages - 1)
    sizes = [left.bytes(tiles), right.bytes(tiles)]
    single = tiles.num_stages == 1
    loose = [single | _is_unpiped(side, tiles) for side in (left, right)]
    after = [side.converted_bytes(tiles) for side in (left, right)] if instruction.emulated else sizes
    parts = [np.where(one & ~single, want, size * buffers) for one, want, size in zip(loose, after, sizes, strict=True)]
    total = parts[0] + parts[1]
    in_turn = loose[0] & loose[1] & (instruction.emulated | ((tiles.descriptors == 1) & single))
    total = np.where(in_turn, np.maximum(*parts), total)
    apart = not left.along_k or instruction.emulated
    barriers = np.where(single, _BARRIER_BYTES, _barrier_bytes(buffers, buffers * apart))
    return np.where(tiles.descriptors == 1, total + barriers, total)


def _wgmma_bytes(left: _StagedOperand, right: _StagedOperand, tiles: Tiles) -> Ints:
    """Return the bytes of the loop of wgmma. It reads operands from shared memory, 8-bit and tf32 ones along k only."""
    total = np.zeros(len(tiles), dtype=np.int64)
    counts = []
    by_descriptors, single = tiles.descriptors == 1, tiles.num_stages == 1
    for side in (left, right):
        size, buffers = side.bytes(tiles), tiles.num_stages
        if side.element != side.as_element:  # weights that the kernel converts
            buffers = np.maximum(1, buffers - 1)
            once = np.maximum(side.converted_bytes(tiles) - by_descriptors * _BARRIER_BYTES, size)
            total = total + np.where(single, once, size * buffers + side.converted_bytes(tiles))
        elif side.element != 2 and not side.along_k:
            buffers = np.maximum(1, buffers - 1)
            alone = single | (~by_descriptors & (side.element == 1))
            total = total + np.where(alone, size, size * (buffers + 1))
        else:
            total = total + size * np.where(_is_unpiped(side, tiles), 1, buffers)
        counts.append(buffers)
    apart = (counts[0] != counts[1]) | (not left.along_k)
    barriers = np.where(single, _BARRIER_BYTES, _barrier_bytes(counts[0], np.where(apart, counts[1], 0)))
    return np.where(by_descriptors, total + barriers, total)


def _tcgen05_bytes(left: _StagedOperand, right: _StagedOperand, tiles: Tiles) -> Ints:
    """Return the bytes of the loop of tcgen05: like those of wgmma, with additional barriers."""
    by_descriptors, single = tiles.descriptors == 1, tiles.num_stages == 1
    total = np.zeros(len(tiles), dtype=np.int64)
    counts = []
    for side in (left, right):
        size, buffers = side.bytes(tiles), tiles.num_stages
        if side.element != side.as_element:
            buffers = np.maximum(1, buffers - 1)
            total = total + np.where(single, 0, size * buffers) + side.converted_bytes(tiles)
        else:
            total = total + size * np.where(_is_unpiped(side, tiles), np.where(single, 1, 2), buffers)
        if side.element == 4 and not side.along_k:
            total = total + np.where(by_descriptors & ~single, 2 * size, 0)
        counts.append(buffers)
    apart = (counts[0] != counts[1]) | (not left.along_k)
    rings = _barrier_bytes(counts[0] * by_descriptors, np.where(apart, counts[1], 0) * by_descriptors, further=2)
    whole: Ints = total + np.where(single, _BARRIER_BYTES, rings)
    return whole


def _specialised_bytes(left: _StagedOperand, right: _StagedOperand, tiles: Tiles) -> Ints:
    """Return the bytes of the loop of specialised warps: every stage, and their barriers.

    There are full and empty barriers of each stage and of both accumulators, and a byte for each of four warps.
    """
    stages = 2 * _align(tiles.num_stages * _BARRIER_BYTES) + 2 * _ALIGNED_BYTES + _WARP_STATES
    barriers = np.where(tiles.num_stages == 1, 4 * _ALIGNED_BYTES + _BARRIER_BYTES, stages)
    return (left.bytes(tiles) + right.bytes(tiles)) * tiles.num_stages + barriers


def _barrier_bytes(first: Ints, second: Ints, further: int = 0) -> Ints:
    """Return the bytes of up to three rings of barriers. The shortest comes last, the others are rounded up."""
    rings = np.stack([first, second, np.full_like(first, further)]) * _BARRIER_BYTES
    shortest = np.where(rings > 0, rings, 2**31).min(axis=0)
    total: Ints = _align(rings).sum(axis=0) - _align(shortest) + shortest
    return total


def _align(size: Ints) -> Ints:
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


def _exchange_bytes(problem: MatmulProblem, tiles: Tiles, unit: DotUnit, spec: GpuSpec) -> Ints:
    """Return the bytes in which results change their layout for the stores, after the loop's buffers are free."""
    bits = 8 * problem.result_bytes
    matrix_stores = (spec.compute_capability or 0.0) >= _STORE_MATRIX_SINCE
    widest = _WIDEST_INT8 if problem.dtype == "int8" else _WIDEST
    sizes = np.stack([tiles.block_m, tiles.block_n, tiles.num_warps])
    usable = (sizes & (sizes - 1) == 0).all(axis=0) & (sizes[:2] >= 16).all(axis=0) & (unit != DotUnit.FMA)
    powers = np.frexp(sizes)[1] - 1
    codes = np.where(usable, np.ravel_multi_index(powers, _POWERS, mode="clip"), 0)
    need = np.zeros(math.prod(_POWERS), dtype=np.int64)
    for code in np.flatnonzero(np.bincount(codes)[1:]) + 1:
        m, n, warps = (1 << int(power) for power in np.unravel_index(code, _POWERS))
        need[code] = _tile_exchange_bytes(m, n, warps, unit, bits, widest, matrix_stores)
    return need[codes]


@lru_cache(maxsize=4096)
def _tile_exchange_bytes(m: int, n: int, warps: int, unit: DotUnit, bits: int, widest: int, matrix_stores: bool) -> int:
    """Return the bytes of one tile; `widest`: the most columns of one wgmma."""
    if unit == DotUnit.TCGEN05:
        sums = tcgen05_layout(m, n, warps)
    elif unit == DotUnit.WGMMA:
        warps_m, warps_n = warps_of_wgmma(m, warps)
        sums = mma_layout(m, n, warps_m, warps_n, min(widest, max(8, n // warps_n)))
    else:
        sums = mma_layout(m, n, *warps_of_mma(m, n, warps))
    after = store_layout(m, n, warps, bits)
    return exchange_bytes(sums, after, bits, matrix_loads=True, matrix_stores=matrix_stores)


def _amd_bytes(
    left: _StagedOperand, right: _StagedOperand, tiles: Tiles, instruction: Instruction, spec: GpuSpec
) -> Ints:
    """Return the bytes of LDS. Before gfx950 the next stage waits in registers, so that there is one buffer fewer."""
    single = tiles.num_stages == 1
    direct = spec.arch == DIRECT_ARCH
    buffers = tiles.num_stages if direct else np.maximum(1, tiles.num_stages - 1)
    parts, loose = [], []
    for side in (left, right):
        is_loose = single | (_is_narrow(side, tiles, WAVE) & (not direct))
        size = side.bytes(tiles) * buffers
        if direct:
            size = size + np.where(single, 0, _padding_bytes(side, tiles, instruction, size))
        parts.append(np.where(is_loose, np.where(single, side.bytes(tiles), side.converted_bytes(tiles)), size))
        loose.append(is_loose)
    large, small = np.maximum(*parts), np.minimum(*parts)
    total: Ints = np.where(loose[0] & loose[1], large, _align(large) + small)
    return total


def _padding_bytes(side: _StagedOperand, tiles: Tiles, instruction: Instruction, size: Ints) -> Ints:
    """Return the bytes between rows that avoid bank conflicts. Small tiles have none.

    Source: composePaddedLayoutForAsyncCopyCDNA4 of Triton 3.9's AMD back end.
    """
    if side.element > 2:
        return np.zeros(len(tiles), dtype=np.int64)
    square = square_of(tiles)
    times = np.where(square == 32, 1, 2)
    whole = tiles.block_k >= times * instruction.depth
    depth = times * np.where(whole, instruction.depth, instruction.least_depth)
    per_lane = np.minimum(depth * square // WAVE, 16)
    vector = 16 // side.element
    wide = side.along_k & (per_lane * side.element == 16)
    turning = (not side.along_k) & (per_lane * side.element >= 8)
    pad = np.where(wide, np.where(square == 16, 2 * per_lane, per_lane), 8 // side.element)
    pad = np.where(turning, np.where(square == 16, 16, 32), pad)
    run, rows = side.run(tiles), side.block if side.along_k else tiles.block_k
    wrap = np.minimum(run, np.where(wide | turning, 64, 32) * 4 // side.element) // pad
    needed = WAVE * vector // np.maximum(run, vector) * wrap
    most = np.where(wide, 1, 2)
    padded = (wrap > 0) & (rows * most >= needed) & (per_lane >= 4) & (run >= vector) & ~_is_narrow(side, tiles, WAVE)
    lines = size // side.element // (WAVE * vector)
    return np.where(padded, np.maximum(lines - 1, 0) * pad * side.element, 0)
