"""The base class of the GPU templates' models: the quantities of predictions, and those that a compiler replaces."""

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
from anatune.templates.base.ranking import ExhaustiveModel
from anatune.templates.gpu.io_bound import gpu_io_bounds
from anatune.templates.gpu.pack import pack_gpu
from anatune.templates.gpu.times.columns import Gpu, Limiter

__all__ = ["FEATURES", "MEMORY_LANES", "REGISTER_BYTES", "SPLIT_PARTS", "BaseGpuModel"]

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
BLOCK_RESOURCES = ("shared_bytes_per_block", "threads_per_block", "blocks", "blocks_per_sm", "accumulators_per_thread")
"""Resources of a block that the predictions of all templates show. Those of one template follow, then `TRAFFIC`."""
TRAFFIC = ("dram_bytes", "l2_bytes")
SPLIT_PARTS = ("combine_s",)
"""The part of the time that only split reductions have: the kernel that sums the parts, or zeroing and atomic
additions, with its launch."""
MEMORY_LANES = (Lane(("l2_s",)), Lane(("dram_s",)))
"""Transfers that overlap with everything else."""
REGISTER_BYTES = 4
_LIMITERS = {int(limiter): limiter.name.lower() for limiter in Limiter}
_LEVELS = {"dram": "dram_bytes", "l2": "l2_bytes", "shared": "shared_traffic_bytes"}
"""Memory level -> column of the bytes that cross it."""


class BaseGpuModel(ExhaustiveModel):
    """The analytical model of the schedules of one GPU template."""

    hardware: GpuSpec
    parts: ClassVar[tuple[str, ...]]
    """Names of the columns that are parts of the time."""
    own_parts: ClassVar[tuple[str, ...]] = ()
    resources: ClassVar[tuple[str, ...]]
    rows: ClassVar[Mapping[str, int]]
    """Name of a quantity -> the row of the compiled function's output that holds it. "COUNT" is the number of rows."""

    @cached_property
    def _gpu(self) -> Gpu:
        """The numbers of the device, as compiled functions take them."""
        return pack_gpu(self.hardware, self.workload.dtype)

    @abstractmethod
    def _fill(
        self, points: Points, task: int, compiled: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        """Run the compiled function, which writes rule codes, seconds and (unless it is empty) `columns`.

        `compiled` has a compiler's registers, shared bytes and spilled registers, (3, num_points). It may be empty.
        """

    @abstractmethod
    def _own_columns(self, out: Floats) -> Columns:
        """Return the quantities that differ by template: features of [ICS24] Sec. 4.1, and resources."""

    @property
    @abstractmethod
    def _sharing_threads(self) -> int:
        """Threads that share their registers: 1, or a warp for matrix units. 0: nothing is staged in shared memory."""

    @property
    @abstractmethod
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds."""

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Memory level -> lower bound on the bytes that cross it, see `gpu_io_bounds`."""
        return gpu_io_bounds(self.workload, self.hardware, self._sharing_threads)

    def _run(
        self, points: Points, task: int = PREDICT, *, full: bool = False, compiled: Floats | None = None
    ) -> Scores:
        """Return (rule codes, seconds, quantities) of `points`. Without `full` the quantities are empty."""
        points = np.require(np.atleast_2d(points), np.int64, ["C", "W"])  # not read-only: numba would recompile
        count = len(points)
        # compiled code reads beyond the end of rows that are too short
        assert not count or points.shape[1] == len(self.space.columns), (points.shape, len(self.space.columns))
        rules, times = np.empty(count, dtype=np.int64), np.empty(count)
        columns = np.empty((int(self.rows["COUNT"]), count) if full else (0, 0))
        compiled_table = np.empty((0, 0)) if compiled is None else np.ascontiguousarray(compiled, dtype=np.float64)
        self._fill(points, task, compiled_table, rules, times, columns)
        return rules, times, columns

    def _columns(self, out: Floats, time_s: Floats) -> Columns:
        """Return the quantities of a prediction by name.

        Estimated_Occupancy deviates from the paper: it takes the limits of the device, not 64 warps and 64 KB
        everywhere. The code of the paper has an eighth feature, the product of WLP and ILP, which the trees of
        published searches use (`search.learning.surrogate`).
        """

        def row(name: str) -> Floats:
            values: Floats = out[self.rows[name.upper()]]
            return values

        rounds = row("blocks") / self.hardware.compute.num_sms  # [ICS24] counts one block per SM
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

    def _select_shown(self, columns: Columns) -> Shown:
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
            One for each point, with the shared memory that the launch asks for.
        before : sequence of Prediction
            The predictions without the compiler. They say how many results a thread has: no more can be spilled.
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
