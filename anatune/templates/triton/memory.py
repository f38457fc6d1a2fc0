"""Bytes that the blocks of Triton's tiles move through L2 and DRAM."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import Resources
from anatune.templates.triton.tiles import Tiles

__all__ = ["PART_BYTES", "Grid", "Traffic", "adding_s", "combining_s", "fill_bytes", "kept_share", "traffic"]

Floats = NDArray[np.float64]

_SECTOR = 32.0
PART_BYTES = 4.0
"""Bytes of a part of a sum: float32 or int32."""
_LINE = 128.0


@dataclass(frozen=True)
class Grid:
    """The blocks that cover the product, (num_tiles,) each."""

    rows: Floats
    columns: Floats
    """Blocks along m and n."""
    depth: Floats
    """Products that a block adds up for one result."""
    steps: Floats
    """Stages of a block."""
    blocks: Floats
    resident: Floats
    """Blocks that an SM can hold at once."""

    @classmethod
    def of(cls, problem: MatmulProblem, tiles: Tiles, need: Resources) -> Grid:
        """Return the grid of every tile."""
        depth = problem.k / tiles.split_k
        return cls(
            rows=np.ceil(problem.m / tiles.block_m),
            columns=np.ceil(problem.n / tiles.block_n),
            depth=depth,
            steps=np.maximum(1.0, np.ceil(depth / tiles.block_k)),
            blocks=need.blocks.astype(np.float64),
            resident=need.resident.astype(np.float64),
        )


@dataclass(frozen=True)
class Traffic:
    """Bytes that cross the boundaries of L2, (num_tiles,) each."""

    stage: Floats
    """Bytes that one stage of a block takes from L2."""
    l2: Floats
    """Bytes that SMs and L2 exchange. Results that several blocks add up count once for each block."""
    dram: Floats
    kept: float
    """Share of the operands that L2 holds from the start."""


def traffic(problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec, *, warm: int, pieces: float) -> Traffic:
    """Return the bytes that every tile moves. `warm`: number of right operands that take turns in repeated products."""
    shallow = np.minimum(tiles.block_k.astype(np.float64), grid.depth)
    stage = fill_bytes(problem, problem.m / grid.rows, problem.n / grid.columns, shallow)
    results = float(problem.batch) * problem.m * problem.n * problem.result_bytes
    split = tiles.split_k > 1
    kept = _kept_share(problem, spec, warm) if warm else 0.0
    window = np.minimum(spec.compute.num_sms * grid.resident, grid.blocks / problem.batch)
    operands = _dram_bytes(problem, tiles, grid, window, spec, pieces)
    # L2 executes atomic additions; a launch before sets their results to zero
    dram = (operands + results * (1 + split * problem.atomic) + problem.epilogue_bytes) * (1.0 - kept)
    parts = results * tiles.split_k * (1.0 if problem.atomic else PART_BYTES / problem.result_bytes)
    l2 = stage * grid.steps * grid.blocks + np.where(split, parts, results) + problem.epilogue_bytes
    return Traffic(stage, l2, dram, kept)


def adding_s(problem: MatmulProblem, tiles: Tiles, spec: GpuSpec, start_cycles: float) -> Floats:
    """Return the seconds of the kernel that adds up parts of sums, without its launch; 0 if nothing is split."""
    results = float(problem.batch) * problem.m * problem.n
    seconds = combining_s(
        results * PART_BYTES * tiles.split_k.astype(np.float64), results * problem.result_bytes, spec, start_cycles
    )
    return np.where(tiles.split_k > 1, seconds, 0.0)


def combining_s(parts: Floats, results: float, spec: GpuSpec, start_cycles: float) -> Floats:
    """Return the seconds to read `parts` bytes, from L2 if they fit in half of it, and write `results` bytes."""
    dram = spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
    rate = np.where(parts <= 0.5 * spec.l2.size_bytes, spec.l2.bandwidth_bytes_per_s, dram)
    seconds: Floats = (parts + results) / rate + start_cycles / spec.compute.clock_hz
    return seconds


def fill_bytes(problem: MatmulProblem, rows: Floats, columns: Floats, depth: Floats) -> Floats:
    """Return the bytes of the sectors that one stage of a block takes from L2. Padding is not fetched."""
    left_bytes, right_bytes = float(problem.element_bytes), float(problem.right_element_bytes)

    def sectors(length: Floats, pitch: int, element: float, run: int) -> Floats:
        if run:  # runs begin at multiples of their common divisor with a sector
            parts: Floats = np.maximum(1.0, length / run) * _run_bytes(np.minimum(length, run), run, element)
            return parts
        astray = 0.0 if pitch * element % _SECTOR == 0 else 1.0
        whole: Floats = (np.ceil(length * element / _SECTOR) + astray) * _SECTOR
        return whole

    along_k = problem.a_along_k
    first, second = problem.runs
    if along_k:
        left = rows * sectors(depth, problem.k, left_bytes, first)
    else:
        left = depth * sectors(rows, problem.m, left_bytes, first)
    if problem.b_along_n:
        return left + depth * sectors(columns, problem.n, right_bytes, second)
    return left + columns * sectors(depth, problem.k, right_bytes, second)


def _run_bytes(length: Floats | float, run: int, element: float) -> Floats | float:
    """Return the average bytes of the sectors that hold `length` elements of a run."""
    return length * element + _SECTOR - math.gcd(int(_SECTOR), int(run * element))


def _dram_bytes(
    problem: MatmulProblem, tiles: Tiles, grid: Grid, window: Floats, spec: GpuSpec, pieces: float
) -> Floats:
    """Return the bytes of the operands that cross the DRAM boundary, for blocks in groups of `group_m` rows."""
    half = 0.5 * spec.l2.size_bytes
    run = _run(tiles.block_k if problem.a_along_k else tiles.block_m, problem.runs[0])
    elements = problem.touched[0] or problem.m * problem.k
    left = elements * problem.element_bytes * _pieces(run, problem.element_bytes, pieces)
    run = _run(tiles.block_n if problem.b_along_n else tiles.block_k, problem.runs[1])
    elements = problem.touched[1] or problem.n * problem.k
    right = elements * problem.right_element_bytes * _pieces(run, problem.right_element_bytes, pieces)
    depth_bytes = problem.k * problem.element_bytes / tiles.split_k
    window = np.maximum(1.0, window / tiles.split_k)
    at_once = np.maximum(np.minimum(tiles.group_m, grid.rows), window / grid.columns)
    again = np.where(right >= half, right * (np.maximum(1.0, grid.rows / at_once) - 1.0), 0.0)
    columns_at_once = np.maximum(1.0, window / at_once)
    strip = at_once * tiles.block_m * depth_bytes
    more = left * (np.maximum(1.0, grid.columns / columns_at_once) - 1.0)
    once = left + right + again + np.where((left >= half) & (strip >= half), more, 0.0)
    return problem.batch * once


def _run(length: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Return the neighbouring elements that a stage reads of a row. `run`: see `MatmulProblem.runs`."""
    return np.minimum(length, run) if run else length


def _pieces(run: NDArray[np.int64], element: float, pieces: float) -> Floats:
    """Return the factor of additional DRAM work if a stage reads part of a line, and a later stage the rest."""
    factor: Floats = 1.0 + pieces * (1.0 - np.minimum(1.0, run * element / _LINE))
    return factor


def _kept_share(problem: MatmulProblem, spec: GpuSpec, turns: int) -> float:
    """Return the share of the operands that L2 still holds in a repeated product, where right operands take turns."""
    right = turns * problem.n * problem.k * problem.right_element_bytes
    left = problem.m * problem.k * problem.element_bytes
    return kept_share(problem.batch * (left + right + problem.m * problem.n * problem.result_bytes), spec)


def kept_share(num_bytes: float, spec: GpuSpec) -> float:
    """Return the share of `num_bytes` that L2 still holds when they are used again.

    It is 1 up to 0.8 of the size of L2, 0 from twice its size on, and linear in between. Assumed.
    """
    return float(np.clip((2.0 - num_bytes / spec.l2.size_bytes) / 1.2, 0.0, 1.0))
