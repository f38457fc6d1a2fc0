"""The analytical model of tensor-core schedules: one workload on one device, batches of points."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.implicit_gemm import fetch_pattern
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.errors import SpaceError
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Ranking, Rule
from anatune.templates.base.watch import Watch
from anatune.templates.gpu.model import (
    BLOCK_RESOURCES,
    GRID_RULE,
    MEMORY_LANES,
    OWN_PARTS,
    SPLIT_RULE,
    TRAFFIC,
    BaseGpuModel,
    block_rules,
)
from anatune.templates.gpu.pack import address_instructions, rows_are_loose
from anatune.templates.tensorcore.ranking import EXHAUSTIVE_POINTS, rank_splits
from anatune.templates.tensorcore.space import INSTRUCTION, TensorCoreSpace, check_supported
from anatune.templates.tensorcore.times.block import MOST_COPIES
from anatune.templates.tensorcore.times.columns import Product, TensorCol, TensorUnits
from anatune.templates.tensorcore.times.time import run_products

__all__ = ["TensorCoreModel"]

PARTS = ("mma_s", "issue_s", "shared_s", "l2_s", "dram_s", "latency_s", "tail_s", "launch_s")
RESOURCES = ("registers_per_thread", *BLOCK_RESOURCES, "useful_share", *TRAFFIC)
_STAGE_RANK = np.array([9, 3, 2, 0, 1])
"""Place of a number of stages among equals."""
_REACHABLE = 0.95
"""Share of mma.sync's rate that a stream of independent instructions reaches. Assumed."""


class TensorCoreModel(BaseGpuModel):
    """Predicts the time of tensor-core schedules of `workload` on `hardware`, and ranks them exactly.

    Guarantees: deterministic; every prediction depends on its own point only; safe for concurrent use.

    Raises
    ------
    SpaceError
        The template does not apply (`check_supported`), or the spec does not say what the tensor cores do.
    """

    space: TensorCoreSpace
    parts, own_parts, resources, rows = PARTS, OWN_PARTS, RESOURCES, TensorCol.__members__
    composition = Composition(
        lanes=(Lane(("mma_s", "issue_s", "shared_s"), ("latency_s", "tail_s")), *MEMORY_LANES),
        added=("launch_s", "combine_s"),
    )

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        check_supported(workload, hardware)
        super().__init__(workload, hardware)
        self.space = TensorCoreSpace(workload, hardware, self._is_legal, accuracy)
        self._product = _pack_product(self.space)
        self._units = _pack_units(workload, hardware)
        self.rules = (
            *block_rules(hardware, "bytes of the ring of stages", "accumulators, fragments and addresses of a thread"),
            Rule("copies_per_thread", "copies of a thread and stage", float(MOST_COPIES)),
            GRID_RULE,
        )
        if self.space.splits is not None:
            self.rules += (SPLIT_RULE,)

    @property
    def _sharing_threads(self) -> int:
        return self.hardware.compute.warp_size

    def _fill(
        self, points: Points, task: int, known: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        run_products(points, self._product, self._gpu, self._units, known, rules, times, columns)

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1 for a warp's instructions."""
        flop, accumulators = float(self.workload.flop), out[TensorCol.ACCUMULATORS]
        return {
            "OI_Global_Mem": flop / np.maximum(out[TensorCol.L2_BYTES], 1.0),
            "OI_Shared_Mem": flop / np.maximum(out[TensorCol.SHARED_TRAFFIC], 1.0),
            "Reg_Reuse_Factor": np.full(out.shape[1], 2.0 * self.workload.num_points)
            / np.maximum(out[TensorCol.BLOCKS] * out[TensorCol.THREADS] * accumulators, 1.0),
            "ILP": accumulators / 4.0,
            "shared_traffic_bytes": out[TensorCol.SHARED_TRAFFIC],
            "useful_share": out[TensorCol.USEFUL],
        }

    @cached_property
    def floor_s(self) -> float:
        """Seconds that no schedule can beat here: all tensor cores busy, or the compulsory bytes, and the launch."""
        gpu = self._gpu
        mma_s = self.workload.num_points / self._units.fma_per_cycle / gpu.num_sms / gpu.clock_hz
        dram_s = self.workload.compulsory_bytes / gpu.dram_bytes_cycle / gpu.clock_hz
        return max(mma_s, dram_s) + gpu.launch_s

    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time: every unsplit point is evaluated."""
        if self.space.splits is None or self.space.size <= EXHAUSTIVE_POINTS:
            return super()._rank(top_k, watch, distinct=distinct)
        return rank_splits(self, self.space, self.best_points(top_k, distinct=distinct), watch)

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys of points of equal time, least important first.

        The number of stages (3, 4, 2, 1: a third buffer costs nothing and forgives late copies), then the widest
        fetches, then the smallest group of rows.
        """
        return points[:, 6], -points[:, 7] * points[:, 8], _STAGE_RANK[points[:, 5]]


def _pack_units(workload: Workload, hardware: GpuSpec) -> TensorUnits:
    peak = hardware.tensor_flop_per_s(workload.dtype)
    if peak is None or hardware.tensor_cores is None:
        raise SpaceError(
            f"{hardware.name}: the spec does not say what its tensor cores do; add a [tensor_cores] group, as "
            "`anatune hw show a100` has one, or leave out the template"
        )
    compute, cores = hardware.compute, hardware.tensor_cores
    rate = peak * cores.mma_sync_fraction * _REACHABLE / 2.0 / compute.num_sms / compute.clock_hz
    return TensorUnits(fma_per_cycle=rate, latency=cores.latency_cycles)


def _pack_product(space: TensorCoreSpace) -> Product:
    workload, gemm = space.workload, space.gemm
    fetched = [(operand, fetch_pattern(operand, gemm, workload)) for operand in gemm.operands]
    element = DTYPE_BYTES[workload.dtype]

    def ints(values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)

    return Product(
        batch=gemm.extents["batch"],
        m=gemm.extents["m"],
        n=gemm.extents["n"],
        k=gemm.extents["k"],
        instruction_k=INSTRUCTION[workload.dtype][2],
        element_bytes=element,
        result_bytes=float(workload.write.num_bytes),
        epilogue_bytes=float(sum(access.num_bytes for access in workload.epilogue_reads)),
        store_width=gemm.store_width,
        convert=int(element == 4),
        along_k=ints([int(operand.along_k) for operand in gemm.operands]),
        run=ints([pattern.run for _, pattern in fetched]),
        step=ints([pattern.step for _, pattern in fetched]),
        misaligned=ints([rows_are_loose(operand.width, pattern.run, element) for operand, pattern in fetched]),
        matrix=ints([int(operand.along_k or element == 2) for operand in gemm.operands]),
        address=ints([address_instructions(gemm.k, operand.guarded, workload) for operand in gemm.operands]),
        splits=int(space.splits is not None),
        whole_bytes=ints([operand.access.touched_elements(workload.extents) * element for operand in gemm.operands]),
    )
