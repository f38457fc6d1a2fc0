"""The limits that published searches put on kernels for GPUs, beside those of the device.

Of the legal points of anatune's spaces 6 to 13 % keep them (six of the benchmarks of [ICS24] on an RTX 3090): most
others have blocks smaller than a warp, or threads with more results than registers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anatune.search.knobs import Knobs, knobs_of
from anatune.search.points import Booleans, Integers
from anatune.templates.base.model import Model
from anatune.templates.gpu.model import BaseGpuModel

__all__ = ["FEWEST_THREADS", "MOST_RESULTS", "is_within_limits", "knobs_within_limits"]

FEWEST_THREADS = 32
"""Threads of a block. Source: the code of [ICS24]; 32 is a warp."""
MOST_RESULTS = 256
"""Results that a thread keeps in registers. Source: the code of [ICS24]."""
_SHARE = 8
"""Legal points that are drawn for each one that shall keep the limits."""
_DRAWS = 40
"""Draws after which the limits leave nothing of a space."""


def is_within_limits(model: Model, points: Integers) -> Booleans:
    """Say of each point whether its blocks fill a warp and its threads keep all results in registers, (num_points,)."""
    columns = model.evaluate(points).columns
    results = columns["accumulators_per_thread"]
    good: Booleans = (columns["threads_per_block"] >= FEWEST_THREADS) & (results <= MOST_RESULTS)
    good &= columns["spilled_registers"] == 0
    return good


class _LimitedKnobs(Knobs):
    """Knobs that lead to points within the limits only."""

    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal and within the limits), as `Knobs.at`."""
        return self._keep_limits(*super().at(indices))

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal and within the limits), as `Knobs.from_genes`."""
        return self._keep_limits(*super().from_genes(genes))

    def draw(self, count: int, seed: Sequence[int]) -> Integers:
        """Return up to `count` points drawn uniformly from those within the limits; fewer where next to none is."""
        drawn: list[Integers] = []
        num_missing = count
        for attempt in range(_DRAWS):
            points = super().draw(max(_SHARE * num_missing, 64), (*seed, attempt))
            drawn.append(points[is_within_limits(self.model, points)][:num_missing])
            num_missing -= len(drawn[-1])
            if not num_missing:
                break
        return np.concatenate(drawn)

    def _keep_limits(self, points: Integers, legal: Booleans) -> tuple[Integers, Booleans]:
        places = np.flatnonzero(legal)
        legal[places] = is_within_limits(self.model, points[places])
        return points, legal


def knobs_within_limits(model: Model) -> Knobs:
    """Return the knobs of a space without the points beyond the limits.

    All knobs, without limits: for CPUs, for templates that generate no code for CUDA cores, for lists of recorded
    points, and where (almost) no point keeps them.
    """
    plain = model.plain  # a learned correction changes times, no limits
    if isinstance(plain, BaseGpuModel) and "spilled_registers" in plain.resources:
        limited = _LimitedKnobs(model)
        if len(limited.draw(1, (0,))):
            return limited
    return knobs_of(model)
