"""Exact ranking of the CPU space.

Order of points
---------------
Points are ordered by time, in steps of 0.1 %. Points in one step are ties, and are ordered by these keys in turn:

1. fewer copies, and more operands packed ahead,
2. sequential before parallel,
3. more accumulators,
4. unrolled steps nearest to 8,
5. tiles from the inside out: larger volume of the L1 tile, its smaller extents axis by axis, calls and register
factors, order of l1, larger L2 tile, larger chunk, orders of l2, l3 and outer.

Of points with the same loop nest only the first one is listed. Such points differ in the level of a loop, or in the
order of loops of one iteration.

Method
------
Small spaces are evaluated exhaustively. In larger ones, `cpu.times.search` finds the best time of every microkernel on
every L1 tile exactly, for each packing and each distribution over the cores that a lower bound does not exclude. Then
outer tiles and orders of the best ones are written out (`cpu.model.points`), in the order above, until there are enough
points.
"""

from __future__ import annotations

import math

import numpy as np

from anatune.templates.base.model import Guarantee, Ranking
from anatune.templates.base.ranking import LegalSlabs
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
"""Nodes kept for each point wanted. If they do not suffice, a second search keeps four times as many."""
_SAMPLE = 2_000
"""Points drawn at random if the time suffices for nothing else."""
_SEARCHING = 0.9
"""Share of the progress that the search counts for; the rest is writing out points."""
_SEARCH_TIME = 0.75
"""Share of the remaining time that the search may take."""


def rank(model: CpuScoring, top_k: int, watch: Watch | None = None, *, distinct: bool = False) -> Ranking:
    """Return the first `top_k` legal points, in the order of the module docstring.

    Parameters
    ----------
    model
        The model of the workload on the CPU.
    top_k
        Points wanted, >= 1. Fewer are returned only if there are fewer legal loop nests, or the time is up.
    watch
        The time limit. If it ends the search, the guarantee is the largest possible speedup of an unseen point.
    distinct
        Return the first point of each predicted time, of as many points as `FirstPoints` looks at.
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
    """Return the ranking of `rank` by evaluating every point of the space, without a time limit."""
    slabs = LegalSlabs(model, Watch(progress=watch.report if watch else None))
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
        end = int(np.searchsorted(step, step[most - 1], side="right"))  # only whole tie steps
        first.take(model.space.points_at(legal[begin:end]))
        begin = end
    return slabs.ranking(first.points, first.num_alike, alike_is_exact=False)
