"""Exact ranking of tensor-core spaces whose k may be split: unsplit points first, then what a split may make faster.

Every unsplit point is evaluated, and bounded: no split of it beats all tensor cores being as busy as one block keeps
them. Only points whose bound is not above the last of the best are evaluated with each split.
"""

from __future__ import annotations

import math

import numpy as np

from anatune.templates.base.model import Floats, Guarantee, Points, Ranking
from anatune.templates.base.ranking import SLAB_POINTS, Best, gap, rejected
from anatune.templates.base.watch import Watch
from anatune.templates.gpu.model import BaseGpuModel
from anatune.templates.gpu.split_space import broken_splits
from anatune.templates.tensorcore.space import TensorCoreSpace
from anatune.templates.tensorcore.times.block import RULE_SPLIT
from anatune.templates.tensorcore.times.columns import TensorCol

__all__ = ["EXHAUSTIVE_POINTS", "rank_splits"]

EXHAUSTIVE_POINTS = 400_000
"""Points of a space with splits that is evaluated whole: about a second."""


def rank_splits(model: BaseGpuModel, space: TensorCoreSpace, best: Best, watch: Watch) -> Ranking:
    """Return the best legal points of a model's space with splits, with the guarantee and exact counts."""
    assert space.splits is not None
    splits = space.splits.table
    counts: Floats = np.zeros(1 + len(model.rules))
    unsplit, evaluated = space.size // len(splits), 0
    kept: list[tuple[Points, Floats]] = []
    for start in range(0, unsplit, SLAB_POINTS):
        if start and watch.is_over:
            guarantee = Guarantee("best_found", gap(best.fastest_s, model.floor_s), evaluated)
            return Ranking(best.points, guarantee, None, None, best.num_alike())
        # the split is the last part of a point, the fastest digit of its number
        points = space.points_at(np.arange(start, min(start + SLAB_POINTS, unsplit)) * len(splits))
        rules, times, columns = model.raw_columns(points)
        legal = rules == 0
        best.add(points[legal], times[legal])
        evaluated += len(points)
        counts += np.bincount(rules, minlength=len(counts))
        tiles, steps = columns[TensorCol.BLOCKS].astype(np.int64), columns[TensorCol.STEPS].astype(np.int64)
        for row in splits[1:]:
            codes = np.where(
                legal & broken_splits(row, tiles, steps, space.hardware.compute.num_sms), RULE_SPLIT, rules
            )
            counts += np.bincount(codes, minlength=len(counts))
        bounds = columns[TensorCol.EVEN_S]
        near = legal & (bounds <= best.limit_s)
        kept.append((points[near], bounds[near]))
        watch.report(0.5 * start / unsplit)
    points, bounds = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    order = np.argsort(bounds, kind="stable")
    points, bounds = points[order], bounds[order]
    for number, row in enumerate(splits[1:]):
        at = 0
        while at < len(points) and bounds[at] <= best.limit_s:
            some = points[at : at + math.ceil(SLAB_POINTS / len(splits))].copy()
            some[:, -len(row) :] = row
            rules, times, _ = model.raw_columns(some)
            best.add(some[rules == 0], times[rules == 0])
            evaluated += len(some)
            at += len(some)
        watch.report(0.5 + 0.5 * number / len(splits))
    bounded = space.size - evaluated
    guarantee = Guarantee("certified" if bounded else "exhaustive", 0.0, evaluated, bounded)
    return Ranking(
        best.points, guarantee, int(counts[0]), rejected(model, counts), best.num_alike(), alike_is_exact=True
    )
