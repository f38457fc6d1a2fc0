"""The analytical model of kernels on rows, for batches of points of one workload on one device."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points
from anatune.templates.gpu.model import MEMORY_LANES
from anatune.templates.triton.model import TileModel, rows_of
from anatune.templates.triton.rows.space import RowSpace
from anatune.templates.triton.rows.times import PARTS, row_rules, score_rows
from anatune.templates.triton.times import TileScores

__all__ = ["RowModel"]


class RowModel(TileModel):
    """Predicts the time of Triton's kernels on rows of `workload` on `hardware`, and ranks them exactly.

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.

    Raises
    ------
    SpaceError
        The template does not take the workload or device (`rules.check_supported`).
    """

    space: RowSpace
    parts, rows = PARTS, rows_of(PARTS)
    composition = Composition(
        lanes=(Lane(("issue_s", "functions_s"), ("latency_s", "tail_s")), *MEMORY_LANES), added=("launch_s",)
    )

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        super().__init__(workload, hardware)
        self.space = RowSpace(workload, hardware, self._is_legal, accuracy)
        self.rules = row_rules(hardware)

    def _scores(self, points: Points, compiled: Floats | None) -> TileScores:
        return score_rows(self.workload, points, self.hardware, compiled=compiled)

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1. Nothing is staged in shared memory."""
        columns = super()._own_columns(out)
        ones = np.ones_like(columns["ILP"])
        return columns | {"Reg_Reuse_Factor": ones, "ILP": out[self.rows["ACCUMULATORS"]]}

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds: every byte through DRAM once, plus the launch."""
        dram = self.hardware.dram
        reached = dram.bandwidth_bytes_per_s * dram.reachable_fraction
        return self.workload.compulsory_bytes / reached + self.hardware.launch.overhead_s

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the tie-break keys, least important first. Whole rows are best, then fewer warps."""
        return (points[:, 2], -points[:, 1])
