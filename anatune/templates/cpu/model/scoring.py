"""Predicted times and rules of CPU schedules, for batches of points of one workload on one CPU.

The physics is in `cpu.times.microkernel` (registers, ports, latency), `cpu.times.traffic` (caches) and
`cpu.times.point` (time).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from anatune.core.hardware.spec import CpuSpec
from anatune.core.workload.nest import ACCUMULATOR_DTYPE, DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import PREDICT, AnalyticalModel, Columns, Floats, Points, Rule, Scores, Shown
from anatune.templates.base.rules import sort_rules
from anatune.templates.cpu.model.pack import pack_machine, pack_nest
from anatune.templates.cpu.space import CpuSpace
from anatune.templates.cpu.times.columns import NUM_RESULTS, CpuCol, new_chunk
from anatune.templates.cpu.times.microkernel import CpuRule
from anatune.templates.cpu.times.point import run_points

__all__ = ["COLUMNS", "PARTS", "CpuScoring", "microkernel_rules", "parallel_rule"]

PARTS = (
    "fma_s", "load_s", "latency_s", "issue_s", "overhead_s", "l2_s", "l3_s", "dram_s", "packing_s", "start_s",
)  # fmt: skip
"""Parts of a prediction, in seconds.

The largest of fma_s, load_s, latency_s and issue_s is the time of the steps of the microkernel, to which overhead_s is
added. l2_s, l3_s and dram_s are the transfers from these levels.
"""
COLUMNS = tuple(column.name.lower() for column in CpuCol if CpuCol.TIME_S < column < CpuCol.RULE)
"""Names of those `Evaluation.columns` that `cpu.times.point.run_points` computes."""


_RESOURCES = (
    "registers", "accumulators", "unrolled_fma", "threads", "l1_tile_bytes", "l2_tile_bytes", "l3_tile_bytes",
)  # fmt: skip


def microkernel_rules(most_registers: float, most_multiply_adds: float) -> tuple[Rule, Rule]:
    """Return the rules that limit a microkernel."""
    return (
        Rule(
            "microkernel_registers",
            "vector registers of the microkernel: accumulators, held operands, one broadcast",
            most_registers,
        ),
        Rule("microkernel_code", "multiply-adds of the microkernel's straight-line code", most_multiply_adds),
    )


def parallel_rule(hardware: CpuSpec) -> Rule:
    """Return the rule for loops that are distributed over the cores."""
    text = "a parallel loop needs two iterations and two cores; cores of the device"
    return Rule("parallel_cores", text, hardware.compute.num_cores)


class CpuScoring(AnalyticalModel):
    """Legality and predicted times of points. `CpuModel` adds the ranking.

    Guarantees: safe to share between threads.

    Parameters
    ----------
    workload, hardware
        The computation and the spec of the CPU.
    space : CpuSpace, optional
        The space of the points; a new one by default.
    simd : str, optional
        Axis to vectorise in the new space instead of the choice of the rule.
    constants : sequence of str, optional
        Operands that the new space packs at no cost; by default those of the rule of `cpu.microkernels`.
    """

    composition = Composition(
        lanes=(
            Lane(("fma_s", "load_s", "latency_s", "issue_s"), ("overhead_s",)),
            Lane((), ("l2_s", "l3_s", "dram_s")),
        ),
        added=("packing_s", "start_s"),
    )
    hardware: CpuSpec
    space: CpuSpace

    def __init__(
        self,
        workload: Workload,
        hardware: CpuSpec,
        space: CpuSpace | None = None,
        simd: str | None = None,
        constants: Sequence[str] | None = None,
    ) -> None:
        super().__init__(workload, hardware)
        self.space = space or CpuSpace(workload, hardware, self._is_legal, simd, constants)
        self.nest = pack_nest(self.space)
        is_integer = ACCUMULATOR_DTYPE.get(workload.dtype) == "int32" and workload.body == "multiply_add"
        self.machine = pack_machine(hardware, self.space.dot, is_integer=is_integer)
        core = self.machine.core
        self.rules = sort_rules(
            CpuRule,
            Rule("microkernel_pairs", "axes that a pair of microkernels covers, beside the SIMD axis", 1),
            *microkernel_rules(core.register_limit * core.registers, core.multiply_add_limit),
            parallel_rule(hardware),
        )

    @property
    def least_flop(self) -> float:
        """Operations without those on padding."""
        return float(self.nest.inside_share.prod()) * self.workload.flop

    def raw(self, points: Points) -> Floats:
        """Score points: (num_points, NUM_RESULTS) float64, one column for each result of `CpuCol`."""
        return self._run(points, PREDICT, full=True)[2].T

    def _run(self, points: Points, task: int, *, full: bool = False, compiled: Floats | None = None) -> Scores:
        """Return rule codes, seconds and columns of `points` (NUM_RESULTS, num_points; no rows unless `full`)."""
        points = np.require(np.atleast_2d(points), np.int64, ["C", "W"])  # numba recompiles for read-only arrays
        size = len(points)
        chunk = new_chunk(
            points.shape[1], self.nest.uses.shape[1], self.nest.uses.shape[0], len(self.machine.size_bytes)
        )
        rules, times = np.empty(size, dtype=np.int64), np.empty(size)
        columns = np.empty((NUM_RESULTS, size) if full else (0, 0))
        run_points(points, task, self.nest, self.machine, chunk, rules, times, columns)
        return rules, times, columns

    def _columns(self, out: Floats, time_s: Floats) -> Columns:
        """Name the quantities of a prediction.

        They are `COLUMNS` (seconds, bytes, counts), "gflop_per_s", "occupancy", "waves", "<level>_over_bound" (traffic
        over the I/O lower bound), and the features "fma_share", "intensity_l1", ... (FLOP/byte).
        """
        columns = {name: out[row] for row, name in enumerate(COLUMNS, start=CpuCol.TIME_S.row + 1)}
        work = self.workload.flop or self.workload.num_points
        cores = self.hardware.compute.num_cores
        columns["gflop_per_s"] = self.workload.flop / time_s / 1e9
        columns["occupancy"] = columns["threads"] / cores
        columns["waves"] = columns["chunks"] / columns["threads"]
        columns["fma_share"] = columns["fma_s"] / time_s
        columns["register_reuse"] = columns["fma_s"] / np.maximum(columns["load_s"], 1e-300)
        columns["reduction_steps"] = columns["steps"]
        for name in self._level_names:
            columns[f"intensity_{name}"] = work / columns[f"{name}_bytes"]
            columns[f"{name}_over_bound"] = columns[f"{name}_bytes"] / self.io_bounds[name]
        return columns

    def _select_shown(self, columns: Columns) -> Shown:
        levels = self._level_names
        features = ("fma_share", "register_reuse", "reduction_steps", *(f"intensity_{level}" for level in levels))
        over_bound = {level: columns[f"{level}_over_bound"] for level in levels}
        return Shown(PARTS, features, _RESOURCES, over_bound, ["parallel_loop"] * len(columns["occupancy"]))

    @property
    def _level_names(self) -> tuple[str, ...]:
        return ("l1", "l2", "l3")[: len(self.machine.size_bytes)]

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Cache level -> least bytes that enter it: the compulsory ones, or ``2 * points * bytes / sqrt(S * window)``.

        For contractions of two operands, a cache of S elements serves at most ``(2 S)^1.5`` of the points of a phase
        that loads S. Windows let an input element serve several kernel positions. Source: [IOLB] Sec. 5; [IOOpt] Table
        1 (matmul, convolution).
        """
        workload = self.workload
        element = DTYPE_BYTES[workload.dtype]
        compulsory = float(
            sum(
                min(access.num_elements, access.footprint(self.space.extents)) * DTYPE_BYTES[access.dtype]
                for access in (*workload.reads, workload.write)
            )
        )
        bounds = {}
        window = math.prod(self.space.extents[axis] for axis in self.space.windows)
        for name in self._level_names:
            cache = getattr(self.hardware, name)
            bound = compulsory
            if len(workload.reads) == 2 and workload.reduction_axes and cache is not None:
                elements = cache.size_bytes / element
                phases = 2.0 * workload.num_points / math.sqrt(elements * window) - 2.0 * elements
                bound = max(bound, phases * element)
            bounds[name] = bound
        return bounds
