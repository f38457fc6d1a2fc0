"""The analytical model of products with scales and of products of experts, for one workload on one device."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import numpy as np

from anatune.core.workload.routing import parse_routing
from anatune.core.workload.scaling import SIDE
from anatune.templates.base.model import Floats, Points
from anatune.templates.gpu.io_bound import chip_bytes, sm_bytes
from anatune.templates.triton.grouped.needs import Scaling, scaling_of
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.rules import PROMOTED_DEPTH, dot_type
from anatune.templates.triton.grouped.space import GroupedSpace
from anatune.templates.triton.grouped.times import score_grouped, score_scaled
from anatune.templates.triton.model import WARM_CONSTANTS, TritonModel
from anatune.templates.triton.problem import MatmulProblem
from anatune.templates.triton.rules import loses_sums_of
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import TileScores

__all__ = ["GroupedModel"]


class GroupedModel(TritonModel):
    """Predicts the time of Triton's kernels of `workload` on `hardware`, and ranks them exactly.

    4-bit floats are timed as half as many 8-bit floats, because units multiply them at twice the rate. Scales add bytes
    to each stage and to DRAM. Conversion of weights adds instructions (`needs`). The time in which scales of mx formats
    reach the units is not modelled.

    Models are deterministic, and threads may share them. Every prediction depends on its own point only.

    Raises
    ------
    SpaceError
        The template does not take the workload or device (`rules.check_supported`).
    SpecError
        The spec does not have the rates of the device's matrix units.
    """

    space: GroupedSpace
    constants = WARM_CONSTANTS

    def _set_up(self, accuracy: str) -> None:
        self.space = GroupedSpace(self.workload, self.hardware, self._is_legal)
        p = self._scaled_product = self.space.problem
        self._pairs = 2 if p.format.data_bits == 4 else 1
        self._scaled = SIDE if p.scales == "blocks" else 0
        right = p.format.weight_bits / 8 if p.format.converts else 0
        dtype, k = dot_type(p), p.k // self._pairs
        self._grouped: GroupedProblem | None = None
        share = 1.0
        if p.experts:
            spread = parse_routing(p.routing, p.tokens, p.experts, p.top_k)
            share = spread.num_active / p.experts
            self._grouped = GroupedProblem(
                p.tokens, p.top_k, p.experts, p.columns, k, spread, dtype, right, self._scaled,
                gathered=not p.expanded, out_bytes=1 if p.activation else 2,
            )  # fmt: skip
            self.problem = self._grouped.product
        else:
            self.problem = MatmulProblem(
                p.rows, p.columns, k, dtype, out_bytes=2, b_along_n=False, right_bytes=right, atomic=False
            )

        of_scales = (read for read in self.workload.reads if read.tensor.endswith(("_scales", "_zeros")))
        self._scale_bytes = sum(read.num_bytes * (share if read.tensor[0] == "w" else 1.0) for read in of_scales)

    def _scaling_of(self, tiles: Tiles) -> Scaling:
        return scaling_of(self._scaled_product, self._scale_bytes, tiles, self.hardware)

    def _scores_of(self, tiles: Tiles, compiled: Floats | None) -> TileScores:
        scaling = self._scaling_of(tiles)
        tiles = replace(tiles, block_k=tiles.block_k // self._pairs)
        if not self._scaled and loses_sums_of(self.problem.dtype, self.hardware):
            tiles = replace(tiles, promote=np.minimum(tiles.block_k, PROMOTED_DEPTH))
        spec, constants = self.hardware, self.constants
        if self._grouped is not None:
            return score_grouped(
                self._grouped, tiles, spec, cold=True, compiled=compiled, kernel=scaling, constants=constants
            )
        return score_scaled(
            self.problem, self._scaled, tiles, spec, compiled=compiled, kernel=scaling, constants=constants
        )

    def tiles(self, points: Points) -> Tiles:
        """Return points (num_points, len(space.columns)) as a batch of tiles."""
        columns = self.space.columns_of(points, Tiles.__dataclass_fields__)
        return Tiles(**{"split_k": np.ones(len(np.atleast_2d(points)), dtype=np.int64), **columns})

    @cached_property
    def floor_s(self) -> float:
        """A time that no schedule of the space can beat, in seconds: all matrix units busy, plus the launch."""
        launch_s = self.hardware.launch.overhead_s
        return (super().floor_s - launch_s) / self._pairs + launch_s

    @cached_property
    def io_bounds(self) -> dict[str, float]:
        """Memory level -> lower bound on the bytes that cross it: each operand once, or Hong and Kung's bound.

        The bounds of experts add up: 2 m n k / sqrt(S) elements for a memory of S elements. Source: [IOLB] Sec. 6.
        """
        compulsory = float(self.workload.compulsory_bytes)
        size = min(self._scaled_product.format.data_bits, self._scaled_product.format.weight_bits) / 8
        bounds = {}
        for level, capacity in (("dram", chip_bytes(self.hardware)), ("l2", sm_bytes(self.hardware))):
            bounds[level] = max(compulsory, self.workload.flop / math.sqrt(capacity / size) * size)
        return bounds
