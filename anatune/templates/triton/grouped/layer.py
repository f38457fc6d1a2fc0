"""A layer of experts as inference servers run it: sorted rows, two grouped products with an activation, sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.core.hardware.spec import GpuSpec
from anatune.core.workload.routing import Routing
from anatune.templates.triton.constants import CONSTANTS, Constants
from anatune.templates.triton.grouped.problem import GroupedProblem
from anatune.templates.triton.grouped.scales import LATEST, Served
from anatune.templates.triton.grouped.times import score_grouped
from anatune.templates.triton.memory import kept_share
from anatune.templates.triton.problem import DTYPES
from anatune.templates.triton.tiles import Tiles
from anatune.templates.triton.times import TileScores

__all__ = ["ExpertLayer", "LayerScores", "score_layer"]

Floats = NDArray[np.float64]

_ROW_BYTES = 2
"""Bytes of an element between the kernels: bfloat16 or float16."""


@dataclass(frozen=True)
class ExpertLayer:
    """A layer of experts on one rank.

    Attributes
    ----------
    tokens, hidden, intermediate, experts, top_k : int
        `intermediate` is the size of an expert on this rank. Up and gate products together have twice as many columns.
    dtype, right_bytes, scaled
        The fields of `GroupedProblem`.
    routing
        Number of rows of each expert.
    """

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    routing: Routing
    dtype: str = "bfloat16"
    right_bytes: float = 0
    scaled: int = 0

    def products(self) -> tuple[GroupedProblem, GroupedProblem]:
        """Return the up (and gate) product and the down product."""

        def product(n: int, k: int, gathered: bool) -> GroupedProblem:
            return GroupedProblem(
                self.tokens, self.top_k, self.experts, n, k, self.routing, gathered=gathered,
                dtype=self.dtype, right_bytes=self.right_bytes, scaled=self.scaled,
            )  # fmt: skip

        return product(2 * self.intermediate, self.hidden, True), product(self.hidden, self.intermediate, False)

    @property
    def quantises(self) -> bool:
        """True if rows are quantised before each product."""
        return DTYPES[self.dtype] == 1


@dataclass(frozen=True)
class LayerScores:
    """Seconds of a layer whose two products use the same tile, (num_tiles,) each."""

    up: TileScores
    down: TileScores
    rest_s: float
    """Seconds of all other kernels."""

    @property
    def time_s(self) -> Floats:
        """Seconds of the whole layer."""
        total_s: Floats = self.up.time_s + self.down.time_s + self.rest_s
        return total_s

    @property
    def is_legal(self) -> NDArray[np.bool_]:
        """True if the tile breaks no rule in either product."""
        legal: NDArray[np.bool_] = (self.up.resources.rule == 0) & (self.down.resources.rule == 0)
        return legal


def score_layer(
    layer: ExpertLayer,
    tiles: Tiles,
    spec: GpuSpec,
    *,
    warm: bool = False,
    constants: Constants = CONSTANTS,
    served: tuple[int, int] = LATEST,
) -> LayerScores:
    """Predict the time of a layer with every tile.

    Parameters
    ----------
    warm
        Whether the layer is repeated with the same weights, so that L2 holds what fits. Otherwise weights come from
        DRAM, as in a model of many layers.
    served
        Version of Triton that compiles the kernels.

    Raises
    ------
    SpaceError, SpecError
        The errors of `score_tiles`.
    """
    up, down = layer.products()
    held = 0.0
    if warm:
        weights = layer.routing.num_active * sum(p.n * p.k * p.product.right_element_bytes for p in (up, down))
        held = kept_share(weights, spec)
    scores = [score_grouped(p, tiles, spec, held=held, kernel=Served(served), constants=constants) for p in (up, down)]
    return LayerScores(scores[0], scores[1], rest_s(layer, spec))


def rest_s(layer: ExpertLayer, spec: GpuSpec) -> float:
    """Return the seconds of the kernels beside the products. Each is a launch, and bytes at the rate of L2 or DRAM.

    Rows are counted and sorted by expert (two kernels). The activation reads both halves of the up product's results
    and writes one. The results of a token's experts are added up. 8-bit operands are quantised before each product.
    """
    rows = layer.routing.num_rows
    moved = [4.0 * rows, 4.0 * rows]
    moved.append(rows * 3.0 * layer.intermediate * _ROW_BYTES)
    moved.append((rows + layer.tokens) * layer.hidden * _ROW_BYTES)
    if layer.quantises:
        moved += [(_ROW_BYTES + 1.0) * layer.tokens * layer.hidden, (_ROW_BYTES + 1.0) * rows * layer.intermediate]
    dram = spec.dram.bandwidth_bytes_per_s * spec.dram.reachable_fraction
    cached = spec.l2.bandwidth_bytes_per_s
    seconds = [size / (cached if size <= 0.5 * spec.l2.size_bytes else dram) for size in moved]
    return sum(seconds) + len(moved) * spec.launch.overhead_s
