"""The analytical model of Triton's kernels of products: one workload on one device, batches of points."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Floats, Points, Rule
from anatune.templates.gpu.model import MEMORY_LANES, KernelModel, rows_of
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.instructions import instructions_of, operand_type
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import multiply_adds_per_cycle, rules
from anatune.templates.triton.rules import multiplied_dtype
from anatune.templates.triton.space import TileSpace, TritonSpace
from anatune.templates.triton.tiles import Tiles, stage_preference
from anatune.templates.triton.times import PARTS as TILE_PARTS
from anatune.templates.triton.times import TileScores, score_tiles

__all__ = ["WARM_CONSTANTS", "TritonModel", "problem_of"]

PARTS = ("mma_s", *TILE_PARTS[1:])
"""Those of `times.score_tiles`, "compute_s" as other templates on matrix units call it."""

WARM_CONSTANTS = msgspec.structs.replace(CONSTANTS, cold_s=0.0)
"""Times are compared with those of other templates, which do not count what a launch after others costs either."""

_OWN_RULE = Rule("persistent", "programs that walk tiles in parts of sums, or without descriptors (no pipeline)", 0.0)


class TritonModel(KernelModel):
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
    parts, rows = PARTS, rows_of(PARTS)
    composition = Composition(
        lanes=(Lane(("mma_s", "issue_s", "shared_s"), ("latency_s", "tail_s")), *MEMORY_LANES, Lane(("power_s",))),
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
        # of experts: as many blocks as have rows
        blocks = np.rint(scores.waves * self.hardware.compute.num_sms * need.resident)
        needs = need.threads, need.registers, need.shared_bytes, need.resident, need.limiter, need.accumulators
        parts = (scores.parts[name] for name in TILE_PARTS)
        self._write(columns, parts, needs, blocks, scores.waves, (scores.moved.dram, scores.moved.l2))

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
