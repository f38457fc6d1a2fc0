"""What analytical models of GPUs share: what their predictions show, and what a compiler's numbers change."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from anatune.core.compiler_facts import CompilerFacts
from anatune.core.hardware.spec import GpuSpec
from anatune.core.prediction import Prediction
from anatune.templates.base.composition import Lane
from anatune.templates.base.model import PREDICT, Columns, Floats, Points, Scores, Shown
from anatune.templates.base.ranking import WholeModel
from anatune.templates.gpu.io_bound import gpu_io_bounds
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.times.columns import Gpu, Limiter

__all__ = ["FEATURES", "MEMORY_LANES", "OWN_PARTS", "REGISTER_BYTES", "BaseGpuModel"]

FEATURES = (
    "OI_Global_Mem",
    "OI_Shared_Mem",
    "Reg_Reuse_Factor",
    "ILP",
    "WLP",
    "Estimated_Occupancy",
    "Wave_Efficiency",
)
"""The seven features of [ICS24] Sec. 4.1, under the paper's names."""
BLOCK_RESOURCES = (
    "shared_bytes_per_block",
    "threads_per_block",
    "blocks",
    "blocks_per_sm",
    "accumulators_per_thread",
)
"""What predictions of all templates show of blocks; behind it what only one has, then `TRAFFIC`."""
TRAFFIC = ("dram_bytes", "l2_bytes")
OWN_PARTS = ("combine_s",)
"""Parts of the time of split points: the second kernel, or zeroing and atomic additions, with its launch."""
MEMORY_LANES = (Lane(("l2_s",)), Lane(("dram_s",)))
"""Transfers that pass beside everything else."""
REGISTER_BYTES = 4
_LIMITERS = {int(limiter): limiter.name.lower() for limiter in Limiter}
_LEVELS = {"dram": "dram_bytes", "l2": "l2_bytes", "shared": "shared_traffic_bytes"}
"""Memory level -> column of the bytes that cross it."""


class BaseGpuModel(WholeModel):
    """An analytical model of a GPU's schedules."""

    hardware: GpuSpec
    parts: ClassVar[tuple[str, ...]]
    """Columns that are parts of the time."""
    own_parts: ClassVar[tuple[str, ...]] = ()
    resources: ClassVar[tuple[str, ...]]
    rows: ClassVar[Mapping[str, int]]
    """Name of a quantity, and "COUNT" -> the row that `_fill` writes it to, and how many rows there are."""

    @cached_property
    def _gpu(self) -> Gpu:
        """The device's numbers, as compiled functions take them."""
        return pack_gpu(self.hardware, self.workload.dtype)

    @abstractmethod
    def _fill(
        self, points: Points, task: int, known: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        """Have the compiled function write rule codes, seconds and, unless it is empty, `columns`.

        `known`: (3, num_points), what a compiler said of them, or empty.
        """

    @abstractmethod
    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1 that differ by template, and resources that only this one has."""

    @property
    @abstractmethod
    def _sharing_threads(self) -> int:
        """Threads that use each other's registers: 1, or a warp; 0: nothing is staged in shared memory."""

    @property
    @abstractmethod
    def floor_s(self) -> float:
        """Seconds that no schedule can beat here."""

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Memory level -> lower bound on the bytes that cross it; see `gpu_io_bounds`."""
        return gpu_io_bounds(self.workload, self.hardware, self._sharing_threads)

    def _run(
        self, points: Points, task: int = PREDICT, *, full: bool = False, compiled: Floats | None = None
    ) -> Scores:
        """Return (rule codes, seconds, rows of the compiled function if `full`) of `points`."""
        points = np.require(np.atleast_2d(points), np.int64, ["C", "W"])  # compiled anew for what is read-only
        count = len(points)
        # compiled code reads what lies behind rows that are too short
        assert not count or points.shape[1] == len(self.space.columns), (points.shape, len(self.space.columns))
        rules, times = np.empty(count, dtype=np.int64), np.empty(count)
        columns = np.empty((int(self.rows["COUNT"]), count) if full else (0, 0))
        known = np.empty((0, 0)) if compiled is None else np.ascontiguousarray(compiled, dtype=np.float64)
        self._fill(points, task, known, rules, times, columns)
        return rules, times, columns

    def _columns(self, out: Floats, time_s: Floats) -> Columns:
        """Name the quantities of a prediction.

        Deviates: Estimated_Occupancy takes the device's own limits instead of 64 warps and 64 KB everywhere. Its code
        has an eighth feature, the product of WLP and ILP; the trees of published searches see it
        (`search.learning.surrogate`).
        """

        def row(name: str) -> Floats:
            values: Floats = out[self.rows[name.upper()]]
            return values

        rounds = row("blocks") / self.hardware.compute.num_sms  # [ICS24] counts one block for each SM
        columns = {name: row(name) for name in (*self.parts, *self.own_parts) if name != "launch_s"}
        columns["launch_s"] = np.full(out.shape[1], self.hardware.launch.overhead_s)
        max_warps = float(self.hardware.compute.max_warps_per_sm)
        columns |= {
            "occupancy": np.minimum(1.0, row("held") * row("warps") / max_warps),  # illegal blocks may be larger
            "limiter": np.where(row("held") < row("resident"), float(Limiter.GRID), row("limiter")),
            "waves": row("waves"),
            "WLP": row("held") * row("warps"),
            "Estimated_Occupancy": np.minimum(1.0, row("resident") * row("warps") / max_warps),
            "Wave_Efficiency": rounds / np.ceil(rounds),
            "dram_bytes": row("dram_bytes"),
            "l2_bytes": row("l2_bytes"),
            "registers_per_thread": row("registers"),
            "shared_bytes_per_block": row("shared_bytes"),
            "threads_per_block": row("threads"),
            "blocks": row("blocks"),
            "blocks_per_sm": row("held"),
            "accumulators_per_thread": row("accumulators"),
        }
        return columns | self._own_columns(out)

    def _shown(self, columns: Columns) -> Shown:
        over_bound = {level: columns[_LEVELS[level]] / bound for level, bound in self.io_bounds.items()}
        limiter = [_LIMITERS[code] for code in columns["limiter"].astype(np.int64).tolist()]
        return Shown(self.parts, FEATURES, self.resources, over_bound, limiter, self.own_parts)

    def compiled_predictions(
        self, points: Points, facts: Sequence[CompilerFacts], before: Sequence[Prediction]
    ) -> list[Prediction]:
        """Return the predictions of `points` with a compiler's registers, shared bytes and local memory.

        Parameters
        ----------
        points : (num_points, len(space.columns)) int64
        facts : sequence of CompilerFacts
            One a point, with the shared memory that the launch asks for.
        before : sequence of Prediction
            The model's own: they tell how many results a thread has, the most that can be spilled in the model's sense.
        """
        if not len(points):
            return []
        table = [
            [fact.registers for fact in facts],
            [fact.shared_bytes for fact in facts],
            [
                min(prediction.resources["accumulators_per_thread"], fact.local_bytes / REGISTER_BYTES)
                for fact, prediction in zip(facts, before, strict=True)
            ],
        ]
        return self.predictions(points, np.array(table, dtype=np.float64))
