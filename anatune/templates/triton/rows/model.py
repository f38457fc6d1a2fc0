"""The analytical model of kernels on rows: one workload on one device, batches of points."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Rule
from anatune.templates.gpu.model import BLOCK_RESOURCES, GRID_RULE, TRAFFIC, BaseGpuModel, block_rules
from anatune.templates.triton.rows.space import RowSpace
from anatune.templates.triton.rows.times import MOST_ELEMENTS, PARTS, score_rows

__all__ = ["RowCol", "RowModel"]


class RowCol(IntEnum):
    """Rows of what a model fills, (COUNT, num_points): the parts of the time in their order, then the rest."""

    ISSUE_S = 0
    FUNCTIONS_S = 1
    L2_S = 2
    DRAM_S = 3
    LATENCY_S = 4
    TAIL_S = 5
    LAUNCH_S = 6
    THREADS = 7
    WARPS = 8
    BLOCKS = 9
    REGISTERS = 10
    SHARED_BYTES = 11
    RESIDENT = 12
    LIMITER = 13
    HELD = 14
    WAVES = 15
    DRAM_BYTES = 16
    L2_BYTES = 17
    ACCUMULATORS = 18
    COUNT = 19


class RowModel(BaseGpuModel):
    """Predicts the time of Triton's kernels on rows of `workload` on `hardware`, and ranks them exactly.

    Guarantees: deterministic; every prediction depends on its own point only; safe for concurrent use.

    Raises
    ------
    SpaceError
        The template does not apply (`rules.check_supported`).
    """

    space: RowSpace
    parts = PARTS
    resources = ("registers_per_thread", *BLOCK_RESOURCES, *TRAFFIC)
    rows = RowCol
    composition = Composition(
        lanes=(Lane(("issue_s", "functions_s"), ("latency_s", "tail_s")), Lane(("l2_s",)), Lane(("dram_s",))),
        added=("launch_s",),
    )

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        super().__init__(workload, hardware)
        self.space = RowSpace(workload, hardware, self._is_legal, accuracy)
        self.rules = (
            Rule("warp_elements", "elements of a warp's part of a tile", float(MOST_ELEMENTS)),
            *block_rules(hardware, "bytes in which warps meet", "a thread's elements of a row, and addresses"),
            GRID_RULE,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.workload, self.hardware, self.space.accuracy)  # its tables are made again

    @property
    def _sharing_threads(self) -> int:
        return 0  # rows are in registers

    def _fill(
        self, points: Points, task: int, known: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        found = score_rows(self.workload, points, self.hardware, known=known if known.size else None)
        rules[:], times[:] = found.rule, found.time_s
        if not len(columns):
            return
        columns[: len(PARTS)] = [found.parts[name] for name in PARTS]
        columns[len(PARTS) :] = [
            found.threads,
            points[:, 2],
            found.blocks,
            found.registers,
            found.shared,
            found.resident,
            found.limiter,
            found.held,
            found.waves,
            found.dram_bytes,
            found.l2_bytes,
            found.elements,
        ]

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1; nothing is staged in shared memory."""
        l2_bytes = np.maximum(out[RowCol.L2_BYTES], 1.0)
        intensity = float(self.workload.flop) / l2_bytes
        ones = np.ones_like(intensity)
        return {
            "OI_Global_Mem": intensity,
            "OI_Shared_Mem": intensity,
            "Reg_Reuse_Factor": ones,
            "ILP": out[RowCol.ACCUMULATORS],
        }

    @cached_property
    def floor_s(self) -> float:
        """Seconds that no schedule can beat here: every byte through DRAM once, and the launch."""
        dram = self.hardware.dram
        reached = dram.bandwidth_bytes_per_s * dram.reachable_fraction
        return self.workload.compulsory_bytes / reached + self.hardware.launch.overhead_s

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys of points of equal time, least important first: whole rows, then fewer warps."""
        return (points[:, 2], -points[:, 1])
