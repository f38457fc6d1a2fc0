"""Building blocks of exact rankings: the best points so far, exhaustive evaluation, and one point of each time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import AnalyticalModel, Guarantee, Model, Ranking
from anatune.templates.base.watch import Watch

__all__ = [
    "EQUAL_SHARE",
    "SLAB_POINTS",
    "BestPoints",
    "ExhaustiveModel",
    "LegalSlabs",
    "count_rejected",
    "gap",
    "group_sizes",
    "mark_distinct_times",
    "rank_all_points",
]  # fmt: skip

Points = NDArray[np.int64]
Floats = NDArray[np.float64]
TieKeys = Callable[[Points], Sequence[NDArray[np.int64]]]
"""Maps points to the keys that order points of equal time, the least important first, as np.lexsort expects."""

SLAB_POINTS = 100_000
"""Points that are evaluated in one call of the compiled function."""
EQUAL_SHARE = 1e-12
"""Relative difference below which two times count as equal in a distinct ranking."""
_MOST_TIED = 200_000
"""Most points kept to count ties, before those slower than the last of the best points are dropped."""


def mark_distinct_times(times: Floats) -> NDArray[np.bool_]:
    """Mark the first of each group of equal times in ascending times > 0, (num_points,)."""
    return np.asarray(np.diff(times, prepend=0.0) > EQUAL_SHARE * times)


def group_sizes(first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the size of each group, where `first` marks the first entry of each group."""
    return np.diff(np.append(np.flatnonzero(first), len(first)))


def gap(time_s: float, bound_s: float) -> float:
    """Return the share by which a time can exceed the best possible time, which is at least `bound_s`."""
    return max(0.0, time_s / bound_s - 1.0) if math.isfinite(time_s) else math.inf


def count_rejected(model: Model, counts: Floats) -> dict[str, int]:
    """Return rule id -> number of rejected points, from the counts of each rule code, (1 + num_rules,)."""
    return {rule.id: round(count) for rule, count in zip(model.rules, counts[1:].tolist(), strict=True)}


class BestPoints:
    """The `top_k` best points so far, in ranking order; with `distinct`, one point of each predicted time."""

    def __init__(self, num_columns: int, top_k: int, tie_keys: TieKeys, *, distinct: bool) -> None:
        self._top_k, self._tie_keys, self._distinct = top_k, tie_keys, distinct
        self.points: Points = np.empty((0, num_columns), dtype=np.int64)
        self.times: Floats = np.empty(0)
        self._tied: list[tuple[Points, Floats]] = []
        self._num_tied, self._most_tied = 0, _MOST_TIED

    @property
    def limit_s(self) -> float:
        """Largest time, in seconds, of a point that `add` can still keep."""
        return float(self.times[-1]) if len(self.times) == self._top_k else math.inf

    @property
    def fastest_s(self) -> float:
        """Seconds of the best point, inf if there is none."""
        return float(self.times[0]) if len(self.times) else math.inf

    def add(self, points: Points, times: Floats) -> None:
        """Keep those legal points that are among the best."""
        is_fast = times <= self.limit_s
        if not is_fast.any():
            return
        if self._distinct:
            self._keep_tied(points[is_fast], times[is_fast])
        points = np.concatenate([self.points, points[is_fast]])
        times = np.concatenate([self.times, times[is_fast]])
        if len(times) > 50 * self._top_k:  # sort few points: first drop those slower than the k-th time
            near = times <= self._last(times)
            points, times = points[near], times[near]
        points, times = self._sort_points(points, times)
        if self._distinct:
            first = mark_distinct_times(times)
            points, times = points[first], times[first]
        self.points, self.times = points[: self._top_k], times[: self._top_k]

    def num_alike(self) -> NDArray[np.int64] | None:
        """Return the number of other points with the time of each best point, (num_points,); None unless `distinct`."""
        if not self._distinct:
            return None
        _, times = self._select_tied()
        return group_sizes(mark_distinct_times(np.sort(times)))[: len(self.times)] - 1

    def _keep_tied(self, points: Points, times: Floats) -> None:
        """Keep points for the count of ties."""
        self._tied.append((points, times))
        self._num_tied += len(times)
        if self._num_tied > self._most_tied:
            self._tied = [self._select_tied()]
            self._num_tied = len(self._tied[0][1])
            self._most_tied = max(_MOST_TIED, 2 * self._num_tied)

    def _select_tied(self) -> tuple[Points, Floats]:
        """Return the points so far that are no slower than the last of the best, each once, and their times."""
        if not self._tied:
            return self.points, self.times
        batches = [(points[times <= self.limit_s], times[times <= self.limit_s]) for points, times in self._tied]
        points, first = np.unique(np.concatenate([points for points, _ in batches]), axis=0, return_index=True)
        return points, np.concatenate([times for _, times in batches])[first]

    def _last(self, times: Floats) -> float:
        """Return the `top_k`-th smallest of the times."""
        if not self._distinct:
            return float(np.partition(times, self._top_k - 1)[self._top_k - 1])
        times = np.sort(times)
        times = times[mark_distinct_times(times)]
        return float(times[self._top_k - 1]) if len(times) >= self._top_k else math.inf

    def _sort_points(self, points: Points, times: Floats) -> tuple[Points, Floats]:
        """Return points in ranking order, each once."""
        points, first = np.unique(points, axis=0, return_index=True)  # also lexicographic order
        times = times[first]
        order = np.lexsort((*self._tie_keys(points), times))
        return points[order], times[order]


class LegalSlabs:
    """All legal points of a space, one slab of points after another, as (numbers, points, times).

    Attributes
    ----------
    counts : (1 + num_rules,) float64
        Number of points of each rule code so far.
    done : int
        Number of points so far; less than all if the time limit ended the iteration.
    """

    def __init__(self, model: Model, watch: Watch) -> None:
        self._model, self._watch = model, watch
        self.counts: Floats = np.zeros(1 + len(model.rules))
        self.done = 0

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], Points, Floats]]:
        size = self._model.space.size
        while self.done < size and not (self.done and self._watch.is_over):
            numbers = np.arange(self.done, min(self.done + SLAB_POINTS, size))
            points = self._model.space.points_at(numbers)
            times, rules = self._model.times(points)
            self.counts += np.bincount(rules, minlength=len(self.counts))
            legal = rules == 0
            self.done += len(numbers)
            yield numbers[legal], points[legal], times[legal]
            self._watch.report(self.done / size)

    def ranking(self, points: Points, num_alike: NDArray[np.int64] | None, *, alike_is_exact: bool) -> Ranking:
        """Return the ranking of a space of which every point was evaluated."""
        counts = int(self.counts[0]), count_rejected(self._model, self.counts)
        return Ranking(points, Guarantee("exhaustive", 0.0, self.done, 0), *counts, num_alike, alike_is_exact)


def rank_all_points(model: Model, best: BestPoints, floor_s: float, watch: Watch) -> Ranking:
    """Evaluate every point of a space and return the best ones, with the guarantee and exact counts.

    If the time limit ends the evaluation, they are the best of the points so far. No point of the space is predicted to
    be faster than `floor_s`.
    """
    slabs = LegalSlabs(model, watch)
    for _, points, times in slabs:
        best.add(points, times)
    if slabs.done == model.space.size:
        return slabs.ranking(best.points, best.num_alike(), alike_is_exact=True)
    guarantee = Guarantee("best_found", gap(best.fastest_s, floor_s), slabs.done, 0)
    return Ranking(best.points, guarantee, None, None, best.num_alike())


class ExhaustiveModel(AnalyticalModel):
    """A model that ranks its space by evaluating every point, unless a subclass ranks in another way.

    A pickle holds the arguments only; all else is computed again.
    """

    def __reduce__(self) -> tuple[object, ...]:
        accuracy = getattr(self.space, "accuracy", None)
        return type(self), (self.workload, self.hardware, *([] if accuracy is None else [accuracy]))

    def tie_keys(self, points: Points) -> tuple[NDArray[np.int64], ...]:
        """Return the keys that order points of equal time, the least important first; without keys: lexicographic."""
        return ()

    def best_points(self, top_k: int, *, distinct: bool) -> BestPoints:
        """Return an empty collector of the best points of the space."""
        return BestPoints(len(self.space.columns), top_k, self.tie_keys, distinct=distinct)

    def _rank(self, top_k: int, watch: Watch, *, distinct: bool) -> Ranking:
        """Return the `top_k` legal points of smallest predicted time; with `distinct`, one point of each time."""
        return rank_all_points(self, self.best_points(top_k, distinct=distinct), self.floor_s, watch)
