"""How smooth a space is to a Gaussian process over indices of sorted tilings, as [BO24] Sec. 4.4.1 looks at it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatune.search.knobs import make_knobs
from anatune.templates.base.model import Model
from bench.replay.table import TableModel

__all__ = ["Roughness", "roughness_of"]

_LINES, _MOST = 60, 400
"""Lines that are looked at along each gene, and values of a line: of more, so many neighbouring ones."""


@dataclass(frozen=True)
class Roughness:
    """What a process over genes (the number of an axis's tiling in its sorted list, and each choice) has to model.

    Attributes
    ----------
    size : float
        Points of the space, legal or not.
    num_genes : int
    legal : float
        Share of uniformly drawn genes that are a legal point (of a table: that ran).
    turns : float
        Share of the inner points of lines along a gene that are higher or lower than both neighbours: 0 of a monotone
        line, 2/3 of independent random numbers. Neighbours are legal ones next to each other in the list.
    jump : float
        Median of |log(time / time of the next point)| over the standard deviation of log(time) on the same line.
    """

    size: float
    num_genes: int
    legal: float
    turns: float | None = None
    jump: float | None = None


def roughness_of(model: Model, recorded_s: NDArray[np.float64] | None = None) -> Roughness:
    """Look at lines through random points of a space; of a table with its recorded times, at the share that ran only.

    A table is no product of genes: lines through its points have one point each.
    """
    knobs = make_knobs(model)
    radices = knobs.gene_radices
    if isinstance(model, TableModel) and recorded_s is not None:
        return Roughness(float(model.space.size), len(radices), float(np.isfinite(recorded_s).mean()))
    rng = np.random.default_rng(0)
    drawn = (rng.random((20_000, len(radices))) * radices).astype(np.int64)
    legal = knobs.from_genes(drawn)[1]
    turns: list[bool] = []
    jumps: list[float] = []
    for genes in drawn[legal][:_LINES]:
        for gene in np.flatnonzero(radices > 2):
            first = int(rng.integers(0, max(1, radices[gene] - _MOST + 1)))
            values = np.arange(first, min(radices[gene], first + _MOST))
            line = np.repeat(genes[None, :], len(values), axis=0)
            line[:, gene] = values
            points, fine = knobs.from_genes(line)
            times = np.where(fine, np.log(model.times(points)[0]), np.nan)
            steps = np.diff(times)
            both = steps[1:] * steps[:-1]
            turns += (both[np.isfinite(both)] < 0).tolist()
            spread = float(np.nanstd(times)) if fine.sum() > 2 else 0.0
            if spread > 0:
                jumps += (np.abs(steps[np.isfinite(steps)]) / spread).tolist()
    return Roughness(
        float(model.space.size),
        len(radices),
        float(legal.mean()),
        float(np.mean(turns)) if turns else None,
        float(np.median(jumps)) if jumps else None,
    )
