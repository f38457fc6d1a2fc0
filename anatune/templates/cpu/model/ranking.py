"""Exact ranking of the CPU space.

Order of points: time in steps of 0.1 % (equal steps are ties), then fewer copies and more operands packed ahead,
sequential before parallel, more accumulators, unrolled steps nearest to 8, then tiles from the inside out: larger
volume of the L1 tile, its smaller extents axis by axis, calls and register factors, order of l1, larger L2 tile, larger
chunk, orders of l2, l3, outer.
Points that describe the same loop nest (a loop of the same trips at another named level, an order of loops that do not
exist) are listed once, the first of them.

Small spaces are evaluated whole. Larger ones: `cpu.times.search` finds the best time of every L1 tile with every
microkernel exactly, for each choice of packing and each distribution over the cores that a lower bound does not
exclude; then only the winners' outer tiles and orders are written out (`cpu.model.points`), in the order above, until
there are enough.
"""

from __future__ import annotations

import math

import numpy as np

from anatune.templates.base.model import Guarantee, Ranking
from anatune.templates.base.ranking import Slabs
from anatune.templates.base.watch import Watch
from anatune.templates.cpu.model.order import STEP, FirstPoints
from anatune.templates.cpu.model.points import PointWriter
from anatune.templates.cpu.model.rules import count_rules
from anatune.templates.cpu.model.scoring import CpuScoring
from anatune.templates.cpu.model.search import Search

__all__ = ["EXHAUSTIVE_LIMIT", "rank", "rank_exhaustively"]

EXHAUSTIVE_LIMIT = 400_000
"""Largest space that is evaluated point by point."""
_NODES, _NODES_DISTINCT = 2, 32
"""Nodes that are kept for each point wanted; four times as many, in a second search, where they do not suffice."""
_SAMPLE = 2_000
"""Points drawn where the time does not suffice for anything else."""
_SEARCHING = 0.9
"""Share of the work that the search counts as, before points are written out."""
_SEARCH_TIME = 0.75
"""Share of the time that is left which it may take."""


def rank(model: CpuScoring, top_k: int, watch: Watch | None = None, *, distinct: bool = False) -> Ranking:
    """Return the first `top_k` legal points of the order above.

    Parameters
    ----------
    model
        Of the workload on the CPU.
    top_k
        Points wanted, >= 1; fewer come back only where fewer different loop nests are legal, or the time is up.
    watch
        May end the search early; the guarantee then says how much faster an unseen point might be.
    distinct
        One point, the first, of each predicted time; of so many as `FirstPoints` finds.
    """
    watch = watch or Watch()
    if model.space.size <= EXHAUSTIVE_LIMIT:
        return rank_exhaustively(model, top_k, watch, distinct=distinct)
    first = FirstPoints(model, top_k, distinct=distinct)
    kept, step = (_NODES_DISTINCT if distinct else _NODES) * top_k + 32, -math.inf
    while True:
        left_s = watch.left_s
        search = Search(model, kept, watch.part(0.0, _SEARCHING, left_s and _SEARCH_TIME * left_s))
        writer = PointWriter(search, first, watch.part(_SEARCHING, 1.0), step)
        sufficed = writer.run()
        if sufficed or watch.is_over or search.gap is not None:
            break
        kept, step = 4 * kept, writer.step
    watch.report(1.0)
    if not first.size and search.gap is not None:  # not even one tile was completed in time
        first.take(model.space.sample_points(_SAMPLE, 0))
        best_s = float(model.times(first.points[:1])[0][0]) if first.size else math.inf
        search.gap = max(0.0, best_s / search.lowest_open_s - 1.0)
    if search.gap is None and sufficed:
        guarantee = Guarantee("certified", 0.0, search.num_evaluated, search.num_bounded)
    else:
        guarantee = Guarantee("best_found", search.gap or 0.0, search.num_evaluated, search.num_bounded)
    return Ranking(first.points, guarantee, *count_rules(model), first.num_alike)


def rank_exhaustively(model: CpuScoring, top_k: int, watch: Watch | None = None, *, distinct: bool = False) -> Ranking:
    """Return the same as `rank` by evaluating every point of the space, which no time limit ends."""
    slabs = Slabs(model, Watch(progress=watch.report if watch else None))
    numbers, steps = [], []
    for legal_numbers, _, times in slabs:
        numbers.append(legal_numbers)
        steps.append(np.floor(np.log(times) / STEP))
    legal, step = np.concatenate(numbers), np.concatenate(steps)
    order = np.argsort(step, kind="stable")
    legal, step = legal[order], step[order]
    first = FirstPoints(model, top_k, distinct=distinct)
    begin = 0
    while begin < len(legal) and not first.is_full:
        most = min(begin + max(4 * top_k, 1000), len(legal))
        end = int(np.searchsorted(step, step[most - 1], side="right"))  # steps are taken whole
        first.take(model.space.points_at(legal[begin:end]))
        begin = end
    return slabs.ranking(first.points, first.num_alike, alike_is_exact=False)
