"""The analytical model of Triton's kernels of products: one workload on one device, batches of points."""

from __future__ import annotations

from enum import IntEnum
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Rule
from anatune.templates.gpu.model import BLOCK_RESOURCES, TRAFFIC, BaseGpuModel
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.instructions import instructions_of, operand_type
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import multiply_adds_per_cycle, rules
from anatune.templates.triton.rules import multiplied_dtype
from anatune.templates.triton.space import TileSpace, TritonSpace
from anatune.templates.triton.tiles import Tiles, stage_preference
from anatune.templates.triton.times import PARTS as TILE_PARTS
from anatune.templates.triton.times import TileScores, score_tiles

__all__ = ["WARM_CONSTANTS", "TritonCol", "TritonModel", "problem_of"]

PARTS = ("mma_s", *TILE_PARTS[1:])
"""Those of `times.score_tiles`, "compute_s" as other templates on matrix units call it."""
RESOURCES = ("registers_per_thread", *BLOCK_RESOURCES, *TRAFFIC)


WARM_CONSTANTS = msgspec.structs.replace(CONSTANTS, cold_s=0.0)
"""Times are compared with those of other templates, which do not count what a launch after others costs either."""


class TritonCol(IntEnum):
    """Rows of what a model fills, (COUNT, num_points): the parts of the time in their order, then the rest."""

    MMA_S = 0
    ISSUE_S = 1
    SHARED_S = 2
    L2_S = 3
    DRAM_S = 4
    POWER_S = 5
    LATENCY_S = 6
    TAIL_S = 7
    SPLIT_S = 8
    LAUNCH_S = 9
    THREADS = 10
    WARPS = 11
    BLOCKS = 12
    REGISTERS = 13
    SHARED_BYTES = 14
    RESIDENT = 15
    LIMITER = 16
    HELD = 17
    WAVES = 18
    DRAM_BYTES = 19
    L2_BYTES = 20
    ACCUMULATORS = 21
    COUNT = 22


_OWN_RULE = Rule("persistent", "programs that walk tiles in parts of sums, or without descriptors (no pipeline)", 0.0)


class TritonModel(BaseGpuModel):
    """Predicts the time of Triton's kernels of `workload` on `hardware`, and ranks them exactly.

    Guarantees: deterministic; every prediction depends on its own point only; safe for concurrent use.

    Raises
    ------
    SpaceError
        The template does not apply (`rules.check_supported`).
    SpecError
        The spec does not say what the device's matrix units do.
    """

    space: TileSpace
    problem: MatmulProblem
    parts, resources, rows = PARTS, RESOURCES, TritonCol
    composition = Composition(
        lanes=(
            Lane(("mma_s", "issue_s", "shared_s"), ("latency_s", "tail_s")),
            Lane(("l2_s",)),
            Lane(("dram_s",)),
            Lane(("power_s",)),
        ),
        added=("split_s", "launch_s"),
    )

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        super().__init__(workload, hardware)
        self._set_up(accuracy)
        self.rules = (*rules(hardware, self.problem.dtype), _OWN_RULE)

    def _set_up(self, accuracy: str) -> None:
        """Make the space and the product behind the workload."""
        space = TritonSpace(self.workload, self.hardware, self._is_legal, accuracy)
        self.space, self.problem = space, problem_of(space)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (
            self.workload,
            self.hardware,
            getattr(self.space, "accuracy", STANDARD),
        )  # its tables are made again

    @property
    def _sharing_threads(self) -> int:
        return 0  # matrix units read operands where they lie: in shared memory, in registers of several warps

    def tiles(self, points: Points) -> Tiles:
        """Return points (num_points, len(space.columns)) as a batch of tiles."""
        return Tiles(**self.space.columns_of(points, Tiles.__dataclass_fields__))

    def _scores(self, tiles: Tiles, known: Floats | None) -> TileScores:
        """Return what the model says of tiles; `known`: what a compiler said of them."""
        return score_tiles(self.problem, tiles, self.hardware, known=known, constants=WARM_CONSTANTS)

    def _fill(
        self, points: Points, task: int, known: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        tiles = self.tiles(points)
        scores = self._scores(tiles, known if known.size else None)
        need = scores.resources
        rules[:] = need.rule
        unfit = (tiles.persistent == 1) & ((tiles.split_k > 1) | (tiles.descriptors == 0))
        rules[(need.rule == 0) & unfit] = len(self.rules)
        times[:] = scores.time_s
        if not len(columns):
            return
        num_sms = self.hardware.compute.num_sms
        blocks = np.rint(scores.waves * num_sms * need.resident)  # of experts: as many as have rows
        held = np.minimum(need.resident, np.ceil(blocks / num_sms))
        columns[: len(PARTS)] = [scores.parts[name] for name in TILE_PARTS]
        columns[len(PARTS) :] = [
            need.threads,
            need.threads // self.hardware.compute.warp_size,
            blocks,
            need.registers,
            need.shared_bytes,
            need.resident,
            need.limiter,
            held,
            scores.waves,
            scores.moved.dram,
            scores.moved.l2,
            need.accumulators,
        ]

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1."""
        flop, accumulators = float(self.workload.flop), out[TritonCol.ACCUMULATORS]
        l2_bytes = np.maximum(out[TritonCol.L2_BYTES], 1.0)
        threads = out[TritonCol.BLOCKS] * out[TritonCol.THREADS]
        return {
            "OI_Global_Mem": flop / l2_bytes,
            "OI_Shared_Mem": flop / l2_bytes,  # what is staged is what came from L2
            "Reg_Reuse_Factor": flop / np.maximum(threads * accumulators, 1.0),
            "ILP": accumulators / 4.0,
        }

    @cached_property
    def floor_s(self) -> float:
        """Seconds that no schedule can beat here: all matrix units busy, and the launch."""
        compute = self.hardware.compute
        known = instructions_of(self.hardware.arch, self.problem.dtype) or ()
        rate = max(multiply_adds_per_cycle(self.hardware, self.problem.dtype, kind.unit) for kind in known)
        math_s = self.workload.flop / 2.0 / rate / compute.num_sms / compute.clock_hz
        return math_s + self.hardware.launch.overhead_s

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys of points of equal time, least important first: three stages, then four, more, two, one."""
        stages = stage_preference(points[:, self.space.columns.index("num_stages")])
        return (points[:, self.space.columns.index("group_m")], stages)


def problem_of(space: TritonSpace) -> MatmulProblem:
    """Return the product behind a workload as the model of tiles takes it."""
    workload, gemm = space.workload, space.gemm
    return MatmulProblem(
        gemm.extents["m"],
        gemm.extents["n"],
        gemm.extents["k"],
        batch=gemm.extents["batch"],
        right_bytes=DTYPE_BYTES[gemm.right.access.dtype],
        atomic=False,
        touched=(
            gemm.left.access.touched_elements(workload.extents) // gemm.extents["batch"],
            gemm.right.access.touched_elements(workload.extents) // gemm.extents["batch"],
        ),
        dtype=operand_type(multiplied_dtype(workload)),
        out_bytes=DTYPE_BYTES[workload.write.dtype],
        a_along_k=gemm.left.along_k,
        b_along_n=not gemm.right.along_k,
    )
