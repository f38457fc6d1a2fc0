"""The cost of a scale for every row and column of a tile, in each step of k, in the kernels of vLLM and SGLang.

These kernels load the scale of each column from a separate address, although blocks of 128 columns share one. In tiles
with fewer columns than threads, every thread loads the scales of all its columns into the layout of the sums. In other
tiles each thread loads one scale, and the scales pass through shared memory. Read off kernels of Triton 3.4 and 3.9 for
sm_90 and sm_100.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.instructions import DotUnit
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import WARP, is_wide, register_cap, resources
from anatune.templates.triton.tiles import Tiles

__all__ = ["LATEST", "Served", "column_loads", "needs_with_columns"]

Floats = NDArray[np.float64]

LATEST = (3, 9)
"""Latest version of Triton whose programs were examined."""


@dataclass(frozen=True)
class Served:
    """The marker of kernels of vLLM and SGLang, with the version of Triton that compiles them."""

    triton: tuple[int, int] = LATEST


_OWN_REGISTERS = 46.0
"""Registers of a thread beside sums and scales. Read off 22 kernels: 44 for sm_90, 48 for sm_100, each within 20."""
_ADDRESS = 2.0
"""Registers of an address."""
_RELOADED, _SPILLED = 0.45, 2.2
"""Instructions of a step for each missing register. Addresses are only loaded again, and not all of them (read off the
same kernels: 0.4 to 0.5). Sums are stored, too (read off: 1.1), and their loads wait for that (assumed: as much
again)."""


def _columns(tiles: Tiles, unit: NDArray[np.int64]) -> Floats:
    """Return the number of columns of whose sums a thread of `wgmma` or `tcgen05` holds some."""
    groups = np.maximum(1.0, tiles.num_warps / 4.0)
    beside = np.maximum(1.0, groups / np.maximum(1.0, tiles.block_m / 64.0))
    columns: Floats = np.where(
        unit == DotUnit.TCGEN05, tiles.block_n * tiles.block_m / 128.0 / groups, tiles.block_n / 4.0 / beside
    )
    return columns


def _is_direct(tiles: Tiles) -> NDArray[np.bool_]:
    """Return the tiles in which threads load the scales of all their columns."""
    is_direct: NDArray[np.bool_] = tiles.block_n < WARP * tiles.num_warps
    return is_direct


def column_loads(tiles: Tiles, unit: NDArray[np.int64], spec: GpuSpec) -> Floats:
    """Return the loads of a warp in each step: scales of columns, and registers that are missing."""
    wide = is_wide(unit)
    direct = _is_direct(tiles)
    lacking = np.maximum(0.0, _count_registers(tiles, unit) - register_cap(tiles.num_warps, spec))
    again = np.where(direct, _RELOADED, _SPILLED) * lacking
    loads: Floats = np.where(wide, np.where(direct, _columns(tiles, unit), 1.0) + again, 0.0)
    return loads


def _count_registers(tiles: Tiles, unit: NDArray[np.int64]) -> Floats:
    """Return the registers of a thread: sums, products of a step, scales of its columns and their addresses."""
    sums = tiles.block_m * tiles.block_n / (WARP * tiles.num_warps)
    of_column = np.where(_is_direct(tiles), 1.0 + _ADDRESS, 1.0)
    needed: Floats = np.ceil(_OWN_REGISTERS + 2.0 * sums + _columns(tiles, unit) * of_column)
    return needed


def needs_with_columns(problem: MatmulProblem, tiles: Tiles, spec: GpuSpec) -> Floats:
    """Return registers, shared bytes and spilled registers of a thread, (3, num_tiles), as `resources` takes them.

    The missing registers of wide units are not counted here, because `column_loads` counts them.
    """
    need = resources(problem, tiles, spec)
    wide = is_wide(need.unit)
    registers = np.minimum(_count_registers(tiles, need.unit), register_cap(tiles.num_warps, spec))
    return np.array(
        [np.where(wide, registers, need.registers), need.shared_bytes, np.where(wide, 0.0, need.spilled)], dtype=float
    )
