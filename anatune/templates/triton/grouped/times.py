"""Predicted time of kernels of grouped products, and of products whose operands have a scale for every block.

Kernels are launched as vLLM and SGLang do: rows are sorted by expert, those of each expert are padded to whole blocks,
and one launch computes all blocks. As many blocks are launched as the worst routing needs; those without rows end at
once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.grouped.needs import Scaling
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.scales import Served, column_loads, needs_with_columns
from anatune.templates.triton.instructions import DotUnit
from anatune.templates.triton.memory import Grid, Traffic, fill_bytes, kept_share
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import WARP, ExtraNeeds, Resources, is_wide
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import TileScores, score_tiles
from anatune.templates.triton.work import KernelModel, Work, stage_work

__all__ = ["score_grouped", "score_scaled"]

Floats = NDArray[np.float64]

_READ_WARPS = 4.0
"""Warps that read a word of each lane from tensor memory per cycle. Assumed: each sub-partition has its own lanes."""
_READ_CYCLES, _DRAIN_CYCLES = 100.0, 60.0
"""Cycles from the last product of a step to its sums, for tcgen05 and wgmma: commit, barrier, wait. Assumed."""
_INSTRUCTION_CYCLES = 3.0
"""Cycles between two instructions of a warp that is alone on its scheduler, including waits. Fitted by hand to the
cases in which servers' files for a B200 have eight warps (2.5 to 4 fit as well). Layers of experts agree
(bench/README.md)."""
_DESCRIBED = 30.0
"""Instructions per warp and stage that descriptors save. Read off 6 kernels of Triton 3.9 for sm_90."""
_CONVERTED = 0.5
"""Cycles to convert an 8-bit float, relative to `work.stage_work`: code of Triton 3.3 and later does not unpack."""
_STRAIGHT_SINCE, _TURNED, _COPY_BYTES = (3, 3), 64.0, 16.0
"""Version of Triton since which small tiles of 8-bit floats on Hopper are not transposed in registers. Before, this
took 64 instructions of a warp per copy of 16 bytes per thread. Read off 7 kernels of Triton 3.2."""
_ONE_SUM_SINCE = (3, 4)
"""Version of Triton since which kernels of two stages have one set of sums in tensor memory. Before, they had two: the
products of a step ran while the sums of the last step were scaled. Read off kernels of Triton 3.3, 3.4 and 3.9."""
_LANES = 128
"""Rows of tensor memory. Products of 64 rows take as long as those of 128. Source: [PTX-ISA] tcgen05.mma."""
_COPIED_ROWS = 4.0
"""Rows of 128 bytes that one instruction copies."""


def score_scaled(
    problem: MatmulProblem,
    scaled: int,
    tiles: Tiles,
    spec: GpuSpec,
    *,
    warm: int = 0,
    compiled: Floats | None = None,
    kernel: Scaling | Served | None = None,
    constants: Constants = CONSTANTS,
) -> TileScores:
    """Predict the time of every tile of a product whose operands have a scale for every `scaled` elements of k.

    Parameters
    ----------
    kernel
        Scaling: the resources of scales and conversions in anatune's kernel. Served: the kernel is one of the servers',
        which loads a scale for every column (`scales`) and wraps rows and columns around. None: neither is counted.

    Raises
    ------
    SpaceError, SpecError
        The errors of `score_tiles`.
    """
    leaving, model = _promote_each_step(tiles, scaled), _Scaled(scaled, kernel)
    if isinstance(kernel, Served) and scaled and compiled is None:
        compiled = needs_with_columns(problem, leaving, spec)
    return score_tiles(problem, leaving, spec, warm=warm, compiled=compiled, constants=constants, kernel=model)


def score_grouped(
    problem: GroupedProblem,
    tiles: Tiles,
    spec: GpuSpec,
    *,
    held: float = 0.0,
    cold: bool = False,
    compiled: Floats | None = None,
    kernel: Scaling | Served | None = None,
    constants: Constants = CONSTANTS,
) -> TileScores:
    """Predict the time of every tile of a kernel of grouped products.

    Parameters
    ----------
    held
        Share of the weights that L2 holds from the start, in [0, 1].
    cold
        Whether rows come from DRAM and go there. Otherwise L2 holds as much of them as fits, for the kernels around.
    kernel
        As in `score_scaled`, but rows do not wrap around.

    Raises
    ------
    SpaceError, SpecError
        The errors of `score_tiles`.
    """
    model = _Grouped(problem.scaled, kernel, problem, held, cold)
    leaving = _promote_each_step(tiles, problem.scaled)
    if isinstance(kernel, Served) and problem.scaled and compiled is None:
        compiled = needs_with_columns(problem.product, leaving, spec)
    return score_tiles(problem.product, leaving, spec, warm=1, compiled=compiled, constants=constants, kernel=model)


def _promote_each_step(tiles: Tiles, scaled: int) -> Tiles:
    """Return tiles whose sums leave the matrix units after each step, if they have to be scaled there."""
    return Tiles(**{**vars(tiles), "promote": tiles.block_k}) if scaled else tiles


@dataclass(frozen=True)
class _Scaled(KernelModel):
    """A product whose sums are multiplied with scales after each step of k.

    Programs of Triton for sm_90 and sm_100 wait for the products of a step. Then they execute a multiplication and a
    multiply-add for every result. The next products wait for these, and the warps of a block do nothing else meanwhile.
    """

    scaled: int
    kernel: Scaling | Served | None
    turns: ClassVar[bool] = True
    """True if the transposition of operands by old versions of Triton counts."""

    @property
    def scaling(self) -> Scaling | None:
        """Resources of scales in anatune's kernel; None for a server's kernel."""
        return self.kernel if isinstance(self.kernel, Scaling) else None

    @property
    def served(self) -> tuple[int, int] | None:
        """Version of Triton that compiles a server's kernel; None for other kernels."""
        return self.kernel.triton if isinstance(self.kernel, Served) else None

    def extra_needs(self) -> ExtraNeeds | None:
        """Return the resources of blocks in addition to operands and sums."""
        return self.scaling

    def traffic(
        self, problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec, *, warm: int, pieces: float
    ) -> Traffic:
        """Return the bytes that blocks take from L2 and DRAM. Servers' kernels fetch other rows in place of padding.

        Equal rows of one copying instruction are fetched once.
        """
        moved = super().traffic(problem, tiles, grid, spec, warm=warm, pieces=pieces)
        if not self.served:
            return self._with_scales(moved, grid)
        rows, columns = problem.m / grid.rows, problem.n / grid.columns
        depth = np.minimum(tiles.block_k, problem.k) * float(problem.element_bytes)
        again = (tiles.block_m - rows) * min(1.0, problem.m / _COPIED_ROWS) + tiles.block_n - columns
        return replace(moved, stage=moved.stage + again * depth, l2=moved.l2 + again * depth * grid.steps * grid.blocks)

    def _with_scales(self, moved: Traffic, grid: Grid) -> Traffic:
        """Return the traffic with scales: those of each stage from L2, and all of them once from DRAM."""
        if self.scaling is None:
            return moved
        stage = self.scaling.stage_bytes
        l2, dram = moved.l2 + stage * grid.steps * grid.blocks, moved.dram + self.scaling.dram_bytes
        return replace(moved, stage=moved.stage + stage, l2=l2, dram=dram)

    def work(self, problem: MatmulProblem, tiles: Tiles, need: Resources, spec: GpuSpec, constants: Constants) -> Work:
        """Return the work of one stage of a block, with the scaling of results and what waits for it."""
        work = stage_work(problem, tiles, need, spec, constants)
        if self.scaling is not None:
            work = replace(work, issue=work.issue + self.scaling.slots / spec.compute.issue_per_cycle_per_sm)
        if not self.scaled:
            return work
        each = tiles.block_m * tiles.block_n / WARP
        slots, parts = spec.compute.issue_per_cycle_per_sm, spec.registers.num_sub_partitions
        loads = column_loads(tiles, need.unit, spec) * tiles.num_warps if self.served else np.zeros(len(tiles))
        issue = work.issue + (each + loads - _DESCRIBED * tiles.descriptors * tiles.num_warps) / slots
        issue = np.maximum(issue, loads)  # an SM starts one load per cycle
        wide, by_memory = is_wide(need.unit), need.unit == DotUnit.TCGEN05
        is_old = self.turns and self.served is not None and self.served < _STRAIGHT_SINCE
        if is_old and spec.arch == "sm_90" and problem.is_float8:
            copies = (tiles.block_m + tiles.block_n) * tiles.block_k / (_COPY_BYTES * WARP)
            issue = issue + np.where(wide, 0.0, copies * _TURNED / slots)
        # results are independent of each other; other instructions wait for those before them
        scaling = 2.0 * each / slots
        of_warp = scaling + (issue - scaling) * _INSTRUCTION_CYCLES
        of_warp = of_warp * parts / np.maximum(tiles.num_warps, parts)
        chain = np.maximum(work.chain, np.where(need.unit == DotUnit.MMA, of_warp, 0.0))
        compute = work.compute * np.where(by_memory & (tiles.block_m < _LANES), 2.0, 1.0)
        # warps that start wide products wait for them before anything else; sums of tcgen05 are loaded first
        drained = np.where(by_memory, each / _READ_WARPS + _READ_CYCLES, _DRAIN_CYCLES)
        beside = by_memory & (tiles.num_stages == 2) & ((self.served or _ONE_SUM_SINCE) < _ONE_SUM_SINCE)
        serial = np.maximum(1.0, np.maximum(issue, of_warp) + drained - np.where(beside, compute, 0.0))
        lanes = min(slots, spec.compute.fp32_lanes_per_sm / WARP)
        serial = np.where(wide, serial, 2.0 * each / lanes)
        convert = work.convert * _CONVERTED
        return replace(work, compute=compute, issue=issue, convert=convert, chain=chain, serial=serial)


@dataclass(frozen=True)
class _Grouped(_Scaled):
    """Blocks over the rows of all experts.

    Transposition by old versions of Triton does not count here: files of experts that were tuned with Triton 3.1 and
    3.2 have the tiles whose operands it would transpose.
    """

    turns = False
    layer: GroupedProblem
    held: float
    cold: bool

    def grid(self, problem: MatmulProblem, tiles: Tiles, need: Resources) -> Grid:
        """Return the blocks that cover the rows of experts."""
        rows = self.layer.routing.blocks(tiles.block_m)
        columns = np.ceil(problem.n / tiles.block_n)
        depth = np.full(len(tiles), float(problem.k))
        return Grid(
            rows, columns, depth, np.ceil(depth / tiles.block_k), rows * columns, need.resident.astype(np.float64)
        )

    def traffic(
        self, problem: MatmulProblem, tiles: Tiles, grid: Grid, spec: GpuSpec, *, warm: int, pieces: float
    ) -> Traffic:
        """Return the bytes that blocks take from L2 and DRAM. Padded rows are not fetched.

        The weights of an expert come from DRAM once if its blocks run together. If they fill half of L2, they come
        again for every group of blocks. Rows that earlier kernels have just written are in L2 as far as they fit.
        """
        layer = self.layer
        rows = layer.routing.num_rows
        shallow = np.minimum(tiles.block_k.astype(np.float64), float(problem.k))
        stage = fill_bytes(problem, rows / grid.rows, problem.n / grid.columns, shallow)
        results = rows * problem.n * problem.result_bytes
        left = (layer.tokens if layer.gathered else rows) * problem.k * problem.element_bytes
        expert = problem.n * problem.k * problem.right_element_bytes
        window = np.minimum(spec.compute.num_sms * grid.resident, grid.blocks)
        at_once = np.maximum(np.minimum(tiles.group_m, grid.rows), window / grid.columns)
        again = np.maximum(1.0, grid.rows / layer.routing.num_active / at_once)
        half = 0.5 * spec.l2.size_bytes
        weights = layer.routing.num_active * expert * (again if expert >= half else 1.0) * (1.0 - self.held)
        strip = at_once * tiles.block_m * problem.k * problem.element_bytes
        passes = np.where((left >= half) & (strip >= half), grid.columns / np.maximum(1.0, window / at_once), 1.0)
        fresh = 1.0 if self.cold else 1.0 - kept_share(left + results, spec)
        dram = weights + left * np.maximum(1.0, passes) * fresh + results * fresh
        moved = Traffic(stage, stage * grid.steps * grid.blocks + results, dram, self.held)
        return self._with_scales(moved, grid)

    def idle_cycles(self, tiles: Tiles, grid: Grid, spec: GpuSpec, constants: Constants) -> Floats:
        """Return the cycles of blocks without rows, which are launched because the worst routing needs them."""
        layer = self.layer
        rows = layer.tokens * layer.top_k
        launched = rows + layer.experts * (tiles.block_m - 1.0)
        launched = np.where(layer.tokens < tiles.block_m, np.minimum(launched, rows * tiles.block_m), launched)
        idle = np.maximum(0.0, np.ceil(launched / tiles.block_m) - grid.rows) * grid.columns
        each = spec.l2.latency_cycles + constants.block_cycles
        cycles: Floats = idle * each / (spec.compute.num_sms * grid.resident)
        return cycles
