"""The analytical model of Winograd schedules, for batches of points of one 3x3 convolution on one CPU."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import RELAXED
from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import PREDICT, Columns, Floats, Points, Rule, Scores, Shown
from anatune.templates.base.ranking import ExhaustiveModel
from anatune.templates.base.rules import sort_rules
from anatune.templates.cpu.model.pack import pack_machine
from anatune.templates.cpu.model.scoring import microkernel_rules, parallel_rule
from anatune.templates.winograd.pack import pack_tiling, product_group
from anatune.templates.winograd.rules import OUTPUT_TILES
from anatune.templates.winograd.space import WinogradSpace
from anatune.templates.winograd.times.columns import WinogradCol, WinogradPoint
from anatune.templates.winograd.times.time import WinogradRule, run_points

__all__ = ["WinogradModel"]

PARTS = ("product_s", "input_s", "output_s", "overhead_s", "l2_s", "l3_s", "dram_s", "start_s")
"""Parts of a prediction, seconds: three phases (overhead_s is a part of the first), transfers, parallel starts."""
FEATURES = ("useful_share", "product_share", "transform_share", "output_tile", "error_growth")
RESOURCES = ("registers", "accumulators", "unrolled_fma", "threads", "weight_bytes", "data_bytes", "product_bytes")
_STEPS = 4
_OWN = tuple(col for col in WinogradCol if col not in (WinogradCol.TIME_S, WinogradCol.USEFUL, WinogradCol.COUNT))


class WinogradModel(ExhaustiveModel):
    """Predicts the times of Winograd schedules of `workload` on `hardware`, and ranks them exactly.

    `accuracy` is the lowest accuracy of the schedules in its space, "standard" or "relaxed".

    Guarantees: deterministic; every prediction depends on its own point only; safe for concurrent use.

    Raises
    ------
    SpaceError
        The template does not take the workload (`winograd.convolution3x3`), or the accuracy is unknown.
    """

    composition = Composition(
        lanes=(Lane((), ("product_s", "input_s", "output_s")), Lane(("l2_s",)), Lane(("l3_s",)), Lane(("dram_s",))),
        added=("start_s",),
    )
    """Composition of the time; ``overhead_s`` is a part of ``product_s``."""
    hardware: CpuSpec
    space: WinogradSpace

    def __init__(self, workload: Workload, hardware: CpuSpec, accuracy: str = RELAXED) -> None:
        super().__init__(workload, hardware)
        self.space = WinogradSpace(workload, hardware, self._is_legal, accuracy)
        convolution = self.space.convolution
        self.machine = pack_machine(hardware, product_group(workload, convolution))
        self._tiling = pack_tiling(workload, convolution, self.machine.core, self.space.lanes)
        self.rules = sort_rules(
            WinogradRule,
            *microkernel_rules(hardware.compute.num_vector_registers, self.machine.core.multiply_add_limit),
            Rule("block_size", "tiles and channels of a block beyond those of the workload", 0),
            parallel_rule(hardware),
        )

    def _run(
        self, points: Points, task: int = PREDICT, *, full: bool = False, compiled: Floats | None = None
    ) -> Scores:
        """Return (rule codes, seconds, columns of WinogradCol if `full`) of `points`."""
        points = np.require(np.atleast_2d(points), np.int64, ["C", "W"])  # numba recompiles for read-only arrays
        count = len(points)
        rules, times = np.empty(count, dtype=np.int64), np.empty(count)
        columns = np.empty((int(WinogradCol.COUNT), count) if full else (0, 0))
        run_points(points, task, self._tiling, self.machine, rules, times, columns)
        if full:
            columns = np.vstack([columns, points[:, WinogradPoint.OUTPUT_TILE].astype(np.float64)])
        return rules, times, columns

    def _columns(self, out: Floats, time_s: Floats) -> Columns:
        """Name the quantities of a prediction: those of `WinogradCol`, shares, and "<level>_over_bound"."""
        columns = {col.name.lower(): out[col] for col in _OWN}
        output_tile = out[WinogradCol.COUNT]
        columns["occupancy"] = columns["threads"] / self.hardware.compute.num_cores
        columns["waves"] = columns["chunks"] / columns["threads"]
        columns["useful_share"] = out[WinogradCol.USEFUL]
        columns["product_share"] = columns["product_s"] / time_s
        columns["transform_share"] = (columns["input_s"] + columns["output_s"]) / time_s
        columns["output_tile"] = output_tile
        growth = {size: self.space.error_growth(size) for size in OUTPUT_TILES}
        columns["error_growth"] = np.array([growth[int(size)] for size in output_tile.tolist()])
        for level, bound in self.io_bounds.items():
            # The bound does not hold for tensors that stay in a cache between runs.
            columns[f"{level}_over_bound"] = np.maximum(1.0, columns[f"{level}_bytes"] / bound)
        return columns

    def _select_shown(self, columns: Columns) -> Shown:
        over_bound = {level: columns[f"{level}_over_bound"] for level in self.io_bounds}
        return Shown(PARTS, FEATURES, RESOURCES, over_bound, ["parallel_loop"] * len(columns["occupancy"]))

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Cache level -> bytes that every schedule moves into it if they are not there yet: all tensors, once.

        There are fewer products than in the workload, so bounds that follow from its products do not hold here.
        """
        levels = ("l1", "l2", "l3")[: len(self.machine.size_bytes)]
        return {level: float(self.workload.compulsory_bytes) for level in levels}

    @property
    def least_flop(self) -> float:
        """Operations of the products alone, for the output tile with the fewest in the space."""
        tiling = self._tiling
        admitted = np.isin(tiling.output_tiles, self.space.choices["output_tile"])
        products = (tiling.num_tiles * tiling.frequencies)[admitted]
        return 2.0 * float(products.min()) * tiling.channels * tiling.filters

    @cached_property
    def floor_s(self) -> float:
        """A lower bound on the seconds of every schedule: all products, on all cores at their peak."""
        tiling, core = self._tiling, self.machine.core
        return (
            self.least_flop / 2.0 / (tiling.lanes * tiling.group) / core.fma_per_cycle / core.num_cores / core.clock_hz
        )

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys that order points of equal time, least important first: small blocks, nearest to 4 steps."""
        steps = np.abs(points[:, WinogradPoint.UNROLL] - _STEPS)
        return points[:, WinogradPoint.CALLS] * points[:, WinogradPoint.ROWS], steps
