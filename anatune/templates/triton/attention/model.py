"""The analytical model of attention, for batches of points of one workload on one device."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.accuracy import STANDARD
from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.nest import Workload
from anatune.templates.base.composition import Composition, Lane
from anatune.templates.base.model import Floats, Points
from anatune.templates.gpu.io_bound import chip_bytes, sm_bytes
from anatune.templates.gpu.model import MEMORY_LANES
from anatune.templates.triton.attention.constants import ATTENTION
from anatune.templates.triton.attention.problem import AttentionTiles
from anatune.templates.triton.attention.resources import attention_rules
from anatune.templates.triton.attention.space import AttentionSpace
from anatune.templates.triton.attention.times import PARTS, score_attention
from anatune.templates.triton.constants import CONSTANTS
from anatune.templates.triton.instructions import instruction_of
from anatune.templates.triton.model import TileModel, rows_of
from anatune.templates.triton.times import TileScores

__all__ = ["AttentionModel"]

_CONSTANTS = msgspec.structs.replace(ATTENTION, common=msgspec.structs.replace(CONSTANTS, cold_s=0.0))
"""Constants without the cost of a first launch, which the times of other templates do not include either."""


class AttentionModel(TileModel):
    """Predicts the time of attention kernels of `workload` on `hardware`, and ranks them exactly.

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.

    Raises
    ------
    SpaceError
        The template does not take the workload or device (`rules.check_supported`).
    SpecError
        The spec does not have the rates of the device's matrix units.
    """

    space: AttentionSpace
    parts, rows = PARTS, rows_of(PARTS)
    composition = Composition(
        lanes=(Lane(("shared_s",), ("mma_s", "exp_s", "latency_s", "tail_s")), *MEMORY_LANES, Lane(("power_s",))),
        added=("combine_s", "launch_s"),
    )

    def __init__(self, workload: Workload, hardware: GpuSpec, accuracy: str = STANDARD) -> None:
        super().__init__(workload, hardware)
        self.space = AttentionSpace(workload, hardware, self._is_legal)
        self.problem = self.space.problem
        self.rules = attention_rules(self.problem, hardware)

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Memory level -> lower bound on the bytes that cross it: each operand once, or [FlashAttention] Theorem 2.

        A memory of M elements reads at least in the order of ``pairs * d^2 / M`` elements, because every key and value
        is read again for each group of M / d queries. Here pairs are those of a query and a key that it sees.
        """
        problem, compulsory = self.problem, float(self.workload.compulsory_bytes)
        pairs = self.workload.flop / self.workload.flop_per_point / problem.head_dim
        bounds = {}
        for level, capacity in (("dram", chip_bytes(self.hardware)), ("l2", sm_bytes(self.hardware))):
            elements = capacity / problem.element_bytes
            again = pairs * problem.head_dim**2 / elements * problem.element_bytes
            bounds[level] = max(compulsory, again)
        return bounds

    def tiles(self, points: Points) -> AttentionTiles:
        """Return points (num_points, len(space.columns)) as a batch of tiles."""
        return AttentionTiles(**self.space.columns_of(points, AttentionTiles.__dataclass_fields__))

    def _scores(self, points: Points, compiled: Floats | None) -> TileScores:
        return score_attention(self.problem, self.tiles(points), self.hardware, compiled=compiled, costs=_CONSTANTS)

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds: all matrix units busy, plus the launch."""
        return self._products_s(self.problem.dtype, [instruction_of(self.hardware, self.problem.dtype).unit])

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the tie-break keys, least important first. Two stages are best, then three, one, more."""
        stages = np.array([9, 2, 0, 1, 3, 4])[np.minimum(points[:, self.space.columns.index("num_stages")], 5)]
        return (points[:, self.space.columns.index("split_kv")], stages)
