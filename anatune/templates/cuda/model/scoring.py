"""Times, bounds and rules of schedules for CUDA cores, for batches of points of one workload on one device."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Rule
from anatune.templates.base.rules import sort_rules
from anatune.templates.cuda.space import GpuSpace, staged_tensors
from anatune.templates.cuda.times.batch import ANY_BOUND, BOUND, MACRO_BOUND, run_points
from anatune.templates.cuda.times.shared_memory import conflict_table
from anatune.templates.cuda.times.tile import MAX_LOCAL_BYTES, CudaRule
from anatune.templates.gpu.model import (
    BLOCK_RESOURCES,
    MEMORY_LANES,
    REGISTER_BYTES,
    SPLIT_PARTS,
    TRAFFIC,
    BaseGpuModel,
)  # fmt: skip
from anatune.templates.gpu.pack import pack_chunk, pack_nest
from anatune.templates.gpu.rules import GRID_RULE, SPLIT_RULE, block_rules
from anatune.templates.gpu.times.columns import Col, Gpu, NestArrays
from anatune.templates.gpu.times.waves import SECTOR

__all__ = ["PARTS", "RESOURCES", "CudaScoring", "least_time_s"]

PARTS = ("fma_s", "issue_s", "shared_s", "spill_s", "l2_s", "dram_s", "latency_s", "tail_s", "launch_s")
_REGISTERS = ("registers_per_thread", "counted_registers", "spilled_registers")
RESOURCES = (*_REGISTERS, *BLOCK_RESOURCES, "bank_conflicts", *TRAFFIC)
UNROLL_PREFERENCE = {512: 0, 1024: 1, 64: 2, 16: 3, 0: 4}
"""Unroll depth -> its rank among points of equal time."""
_CAPABILITY_TEXT = "compute capability that the dtype needs"


def least_time_s(workload: Workload, nest: NestArrays, gpu: Gpu) -> float:
    """Return seconds that no schedule beats: all SMs multiply-adding or compulsory bytes, plus the launch overhead."""
    fma_s = workload.num_points / gpu.fma_per_cycle / gpu.num_sms / gpu.clock_hz
    dram_s = float(nest.tensor_bytes.sum()) / gpu.dram_bytes_cycle / gpu.clock_hz
    return max(fma_s, dram_s) + gpu.launch_s


class CudaScoring(BaseGpuModel):
    """Times, bounds and rules of points. `CudaModel` ranks and explains them.

    Objects own scratch memory. Threads must not share an object; make one for each thread.

    Parameters
    ----------
    workload, hardware
        Workload and device.
    stages, pad : int
        Buffers of the staging pipeline, and elements between rows of staged tiles; the same for all points. The
        template "cuda" has 1 and 0, `PipelinedModel` chooses them.
    accuracy : {"standard", "relaxed"}
        Accuracy of the schedules' arithmetic (`gpu.split_space`).
    plain : bool
        Perfect divisors only and no splits, as in `GpuSpace`.
    """

    space: GpuSpace
    parts, own_parts, resources, rows = PARTS, SPLIT_PARTS, RESOURCES, Col.__members__
    composition = Composition(
        lanes=(Lane(("fma_s", "issue_s", "shared_s", "spill_s"), ("latency_s", "tail_s")), *MEMORY_LANES),
        added=("launch_s", "combine_s"),
    )

    def __init__(
        self,
        workload: Workload,
        hardware: GpuSpec,
        accuracy: str = STANDARD,
        *,
        stages: int = 1,
        pad: int = 0,
        plain: bool = False,
    ) -> None:
        super().__init__(workload, hardware)
        self.space = GpuSpace(workload, hardware, self._is_legal, accuracy, plain=plain)
        self._pipeline = (stages, pad)
        splits = self.space.splits is not None
        staged = bool(staged_tensors(workload))
        self._nest = pack_nest(workload, staged=staged, stages=stages, pad=pad, splits=splits)
        self._chunk = pack_chunk(self._nest)
        rules = [
            *block_rules(hardware, "bytes of the staged tiles"),
            Rule("local_bytes_per_thread", "bytes of a thread's results", MAX_LOCAL_BYTES),
            GRID_RULE,
        ]
        if splits:
            rules.append(SPLIT_RULE)
        needed = hardware.needed_capability(workload.dtypes)
        if needed is not None:
            capability = float(hardware.compute_capability or 0.0)
            rules.append(Rule("compute_capability", _CAPABILITY_TEXT, capability, needed))
        self.rules = sort_rules(CudaRule, *rules)
        self.refusal: Rule | None = next((rule for rule in self.rules if (rule.needed or 0.0) > rule.limit), None)
        """The rule that rejects every point, or None; points may break other rules, too."""

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        return conflict_table()

    @property
    def _sharing_threads(self) -> int:
        return int(bool(self._nest.staged))

    def _fill(
        self, points: Points, task: int, compiled: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        run_points(points, task, self._nest, self._gpu, self._table, self._chunk, rules, times, columns, compiled)
        if self.refusal is not None:
            rules[:] = 1 + self.rules.index(self.refusal)

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1 that differ by template, and resources.

        OI_Shared_Mem and Reg_Reuse_Factor deviate from the paper. OI_Shared_Mem counts cycles of the shared-memory pipe
        (bank conflicts included), one 128-byte access each. Reg_Reuse_Factor counts the bytes of the 32-byte sectors
        that the stores of a warp touch; counting results would give the same constant for all schedules, because each
        is written once.
        """
        element = float(DTYPE_BYTES[self.workload.dtype])
        steps, accumulators, threads = out[Col.STEPS], out[Col.ACCUMULATORS], out[Col.THREADS]
        moved = out[Col.TILE_BYTES] if self._nest.staged else out[Col.STEP_BYTES]
        flop = float(self.workload.flop_per_point or 1)
        loaded = out[Col.FRAGMENTS] * steps * element + out[Col.LOCAL] * REGISTER_BYTES
        tiles = out[Col.BLOCKS] - out[Col.SPLIT_TILES] * (out[Col.SPLIT] - 1.0)
        shared_bytes = loaded * threads * out[Col.STAGES] * tiles
        sectors = np.minimum(1.0, out[Col.STORE_SECTORS] * out[Col.WARPS] / np.maximum(threads, 1.0))  # per result
        return {
            "OI_Global_Mem": flop * accumulators * threads * steps / np.maximum(moved, 1.0),
            "OI_Shared_Mem": flop * accumulators * steps * 32.0 / np.maximum(out[Col.WAVEFRONTS] * 128.0, 1.0),
            "Reg_Reuse_Factor": flop * steps * out[Col.STAGES] / np.maximum(sectors * SECTOR, element),
            "ILP": accumulators,
            "dram_bytes": out[Col.DRAM_BYTES] + out[Col.LOCAL_DRAM_BYTES],
            "l2_bytes": out[Col.L2_BYTES] + out[Col.LOCAL_L2_BYTES],
            "shared_traffic_bytes": shared_bytes if self._nest.staged else np.zeros(out.shape[1]),
            "counted_registers": out[Col.REGISTERS],
            "spilled_registers": out[Col.SPILLED],
            "bank_conflicts": out[Col.CONFLICT],
        }

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds; see `least_time_s`."""
        return least_time_s(self.workload, self._nest, self._gpu)

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the tie-break keys, least important first, as np.lexsort takes them."""
        column = {name: index for index, name in enumerate(self.space.columns)}
        unroll = points[:, column["unroll"]]
        preference = np.full(len(points), len(UNROLL_PREFERENCE), dtype=np.int64)
        for depth, rank in UNROLL_PREFERENCE.items():
            preference[unroll == depth] = rank
        outer = np.ones(len(points), dtype=np.int64)
        k2 = np.ones(len(points), dtype=np.int64)
        for name, index in column.items():
            if name.endswith(".reg_outer"):
                outer *= points[:, index]
            elif name.endswith(".k2"):
                k2 *= points[:, index]
        return k2, outer, preference

    def macro_bounds(self, points: Points) -> tuple[Floats, NDArray[np.int64]]:
        """Return (seconds, rule codes): no point with the same sizes of blocks, threads and staging steps is faster."""
        rules, times, _ = self._run(points, MACRO_BOUND)
        return times, rules

    def split_bounds(self, points: Points) -> Floats:
        """Return a bound in seconds for all splits of the reduction of each macro choice.

        `points` are macro choices without a split.
        """
        return self._run(points, ANY_BOUND)[1]

    def class_bounds(self, points: Points) -> Floats:
        """Return bounds in seconds for the points that differ from `points` only in loop splits and unrolling."""
        return self._run(points, BOUND)[1]
