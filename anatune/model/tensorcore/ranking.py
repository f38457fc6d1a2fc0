"""Exact ranking of the tensor-core space: every point is evaluated.

Ties: points of equal predicted time are ordered by the number of stages (3, 4, 2, 1: a third buffer costs nothing and
forgives late copies), then the widest fetches, then the smallest group of rows, then lexicographically.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from anatune.model.base import Guarantee, Progress, Ranking

if TYPE_CHECKING:
    from anatune.model.tensorcore.model import TensorCoreModel

__all__ = ["rank_whole"]

SLAB_POINTS = 65_536
STAGE_RANK = np.array([9, 3, 2, 0, 1])
"""Place of a number of stages among equals."""
EQUAL_SHARE = 1e-12
"""Times closer than this share are one time to a distinct ranking."""


def rank_whole(
    model: TensorCoreModel, top_k: int, time_limit_s: float | None, *, distinct: bool, progress: Progress | None
) -> Ranking:
    """Return the `top_k` legal points of smallest predicted time, with the guarantee and exact counts.

    Parameters
    ----------
    time_limit_s : float or None
        Stop after this many seconds; the guarantee is then "best_found" with its proven gap.
    distinct : bool
        Return one point (the first of the tie order) of each predicted time.
    progress : callable, optional
        Called with the share of the space that is done, in [0, 1].
    """
    space = model.space
    deadline = math.inf if time_limit_s is None else time.monotonic() + time_limit_s
    counts = np.zeros(len(model.rules) + 1)
    points: NDArray[np.int64] = np.empty((0, len(space.columns)), dtype=np.int64)
    times = np.empty(0)
    done = 0
    while done < space.size and time.monotonic() <= deadline:
        numbers = np.arange(done, min(done + SLAB_POINTS, space.size))
        slab = space.decode(np.column_stack(np.unravel_index(numbers, space.radices)).astype(np.int64))
        slab_times, rules = model.times(slab)
        counts += np.bincount(rules, minlength=len(counts))
        legal = rules == 0
        points, times = _best(
            np.concatenate([points, slab[legal]]), np.concatenate([times, slab_times[legal]]), top_k, distinct=distinct
        )
        done += len(numbers)
        if progress is not None:
            progress(done / space.size)
    if done == space.size:
        rejected = {rule.id: round(count) for rule, count in zip(model.rules, counts[1:], strict=True)}
        return Ranking(points, Guarantee("exhaustive", 0.0, done, 0), int(counts[0]), rejected)
    gap = max(0.0, float(times[0]) / model.floor_s - 1.0) if len(times) else math.inf
    return Ranking(points, Guarantee("best_found", gap, done, 0), None, None)


def _best(
    points: NDArray[np.int64], times: NDArray[np.float64], top_k: int, *, distinct: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the first `top_k` in ranking order."""
    if len(times) > 50 * top_k and not distinct:  # sort few
        near = times <= np.partition(times, top_k - 1)[top_k - 1]
        points, times = points[near], times[near]
    widths = points[:, 7] * points[:, 8] if len(points) else np.empty(0, dtype=np.int64)
    keys = (*points.T[::-1], points[:, 6], -widths, STAGE_RANK[points[:, 5]], times)
    order = np.lexsort(keys)
    if distinct and len(order):
        apart = np.diff(times[order]) > EQUAL_SHARE * times[order][1:]
        order = order[np.concatenate([[True], apart])]
    order = order[:top_k]
    return points[order], times[order]
