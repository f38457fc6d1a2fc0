"""The analytical model of Triton's products, for batches of points of one workload on one device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.implicit_gemm import GemmOperand, pattern_of
from anatune.core.workload.nest import DTYPE_BYTES, Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Columns, Floats, Points, Rule
from anatune.templates.gpu.model import BLOCK_RESOURCES, MEMORY_LANES, TRAFFIC, BaseGpuModel
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.instructions import DotUnit, instructions_of, operand_type
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.resources import multiply_adds_per_cycle, resources
from anatune.templates.triton.rules import multiplied_dtype
from anatune.templates.triton.space import TileSpace, TritonSpace
from anatune.templates.triton.tiles import Tiles, stage_preference
from anatune.templates.triton.times import PARTS as TILE_PARTS
from anatune.templates.triton.times import TileScores, score_tiles

__all__ = ["WARM_CONSTANTS", "TileModel", "TritonModel", "problem_of", "rows_of"]

PARTS = ("mma_s", *TILE_PARTS[1:])
"""Names of the parts of the time: those of `times.score_tiles`, but "mma_s" as in other templates for "compute_s"."""

WARM_CONSTANTS = msgspec.structs.replace(CONSTANTS, cold_s=0.0)
"""Constants without the cost of a first launch, which the times of other templates do not include either."""

_OWN_RULE = Rule("persistent", "persistent kernels with split_k or without descriptors", 0.0)
_BLOCK_ROWS = (
    "THREADS", "WARPS", "BLOCKS", "REGISTERS", "SHARED_BYTES", "RESIDENT", "LIMITER", "HELD", "WAVES", "DRAM_BYTES",
    "L2_BYTES", "ACCUMULATORS",
)  # fmt: skip


def rows_of(parts: Sequence[str]) -> dict[str, int]:
    """Return the rows of a `TileModel`: the parts of the time in order, then the quantities of its blocks."""
    names = (*(part.upper() for part in parts), *_BLOCK_ROWS, "COUNT")
    return {name: row for row, name in enumerate(names)}


class TileModel(BaseGpuModel):
    """The base class of models of Triton kernels, which compute whole batches with NumPy. See `rows_of`.

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.
    """

    resources = ("registers_per_thread", *BLOCK_RESOURCES, *TRAFFIC)
    space: TileSpace

    @abstractmethod
    def _scores(self, points: Points, compiled: Floats | None) -> TileScores:
        """Return the scores of points. `compiled`: a compiler's numbers of them, (3, num_points)."""

    @property
    def _sharing_threads(self) -> int:
        return 0  # matrix units read operands from shared memory, or from registers of several warps

    def _fill(
        self, points: Points, task: int, compiled: Floats, rules: NDArray[np.int64], times: Floats, columns: Floats
    ) -> None:
        scores = self._scores(points, compiled if compiled.size else None)
        need, compute = scores.resources, self.hardware.compute
        rules[:], times[:] = need.rule, scores.time_s
        if not len(columns):
            return
        # of all blocks of grouped products, only those that have rows
        blocks = np.rint(scores.waves * compute.num_sms * need.resident)
        held = np.minimum(need.resident, np.ceil(blocks / compute.num_sms))
        columns[:] = [
            *(scores.parts[name] for name in self.parts),
            need.threads, need.threads // compute.warp_size, blocks, need.registers, need.shared_bytes, need.resident,
            need.limiter, held, scores.waves, scores.moved.dram, scores.moved.l2, need.accumulators,
        ]  # fmt: skip

    def _own_columns(self, out: Floats) -> Columns:
        """Return the features of [ICS24] Sec. 4.1."""
        flop, accumulators = float(self.workload.flop), out[self.rows["ACCUMULATORS"]]
        l2_bytes = np.maximum(out[self.rows["L2_BYTES"]], 1.0)
        threads = out[self.rows["BLOCKS"]] * out[self.rows["THREADS"]]
        return {
            "OI_Global_Mem": flop / l2_bytes,
            "OI_Shared_Mem": flop / l2_bytes,  # all bytes from L2 are staged in shared memory
            "Reg_Reuse_Factor": flop / np.maximum(threads * accumulators, 1.0),
            "ILP": accumulators / 4.0,
        }

    def _products_s(self, dtype: str, units: Iterable[DotUnit]) -> float:
        """Return the seconds of all products on the fastest of some units, plus the launch."""
        compute = self.hardware.compute
        rate = max(multiply_adds_per_cycle(self.hardware, dtype, unit) for unit in units)
        math_s = self.workload.flop / 2.0 / rate / compute.num_sms / compute.clock_hz
        return math_s + self.hardware.launch.overhead_s


class TritonModel(TileModel):
    """Predicts the time of Triton's products of `workload` on `hardware`, and ranks them exactly.

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.

    Raises
    ------
    SpaceError
        The template does not take the workload or device (`rules.check_supported`).
    SpecError
        The spec does not have the rates of the device's matrix units.
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
        self.rules = (*resources(self.problem, Tiles.of([]), hardware).rules, _OWN_RULE)

    def _set_up(self, accuracy: str) -> None:
        """Set the space, and the matrix product that the workload computes."""
        space = TritonSpace(self.workload, self.hardware, self._is_legal, accuracy)
        self.space, self.problem = space, problem_of(space)

    def tiles(self, points: Points) -> Tiles:
        """Return points (num_points, len(space.columns)) as a batch of tiles."""
        return Tiles(**self.space.columns_of(points, Tiles.__dataclass_fields__))

    def _scores(self, points: Points, compiled: Floats | None) -> TileScores:
        tiles = self.tiles(points)
        scores = self._scores_of(tiles, compiled)
        need = scores.resources
        unfit = (tiles.persistent == 1) & ((tiles.split_k > 1) | (tiles.descriptors == 0))
        need.rule[(need.rule == 0) & unfit] = len(self.rules)
        return replace(scores, parts={"mma_s": scores.parts["compute_s"], **scores.parts})

    def _scores_of(self, tiles: Tiles, compiled: Floats | None) -> TileScores:
        """Return the scores of tiles. `compiled`: a compiler's numbers of them."""
        return score_tiles(self.problem, tiles, self.hardware, compiled=compiled, constants=WARM_CONSTANTS)

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds: all matrix units busy, plus the launch."""
        instructions = instructions_of(self.hardware.arch, self.problem.dtype) or ()
        return self._products_s(self.problem.dtype, [kind.unit for kind in instructions])

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the tie-break keys, least important first. Three stages are best, then four, more, two, one."""
        stages = stage_preference(points[:, self.space.columns.index("num_stages")])
        return (points[:, self.space.columns.index("group_m")], stages)


def problem_of(space: TritonSpace) -> MatmulProblem:
    """Return the matrix product that a workload computes, as the model of tiles takes it."""
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
        epilogue_bytes=sum(access.num_bytes for access in workload.epilogue_reads),
        runs=(_run_of(space, gemm.left), _run_of(space, gemm.right)),
        guards=(sum(gemm.left.guarded), sum(gemm.right.guarded)),
    )


def _run_of(space: TritonSpace, operand: GemmOperand) -> int:
    """Return the elements of a fetched row that lie next to each other; 0 if those of the whole row do."""
    gemm, index = space.gemm, "k" if operand.along_k else operand.rows
    run, step = pattern_of(operand.access, gemm.axes(index), space.workload)
    return 0 if run == gemm.extents[index] and step <= 1 else run if step == 1 else 1
