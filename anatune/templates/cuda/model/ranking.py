"""Exact ranking of a large space of the template "cuda" by branch and bound.

Small spaces are evaluated whole. Larger ones are searched in three levels:

- A *macro choice* fixes the sizes of blocks, threads and staging steps, and the split of the reduction.
- A *class* fixes in addition the number of consecutive results of a thread along each axis, and the fetch widths.
- A *point* fixes everything: the order of the register tile, k1/k2 and the unroll depth, too.

Every macro choice gets a lower bound of the predicted times of its points. Choices are then refined in the order of
their bounds, first to classes, which are bounded again, then to points, whose times are exact. The search ends when the
next bound is above the time of the k-th best point: then no point that was left out is predicted to be faster.

Why the bounds hold
-------------------
A bound is the model's own time (`times.time.fill_time`) in which each quantity that is still open has its best value.

1. The macro quantities (`times.tile`) follow from the macro choice alone. They are exact in every bound.
2. The time does not fall if one of the micro quantities (`times.micro`) LOADS, WAVEFRONTS, FETCHES, FETCHES_BLOCK,
   STORE_SECTORS or SPILLED grows, or if REUSE shrinks. There is one exception: more FETCHES_BLOCK alone would lower the
   share of fetches that miss L1. No point has more of them without more FETCHES of each thread, which cost more.
3. MACRO_BOUND: `fill_best_micro` sets each micro quantity to a value that no point of the macro choice can beat.
4. BOUND, for classes: the micro quantities are exact except DYNAMIC and REUSE, which depend on loops and unrolling.
   Their best values are no dynamically indexed accumulators, and spilled accumulators that are kept over a whole step.
5. ANY_BOUND, for all splits of a macro choice: `fill_even_time` divides the work among the SMs evenly, without waves
   and waiting, and counts compulsory bytes and a second launch. If it is low enough, each split gets a MACRO_BOUND.

Property tests compare the bounds with the times of points (tests/property/test_gpu_ranking.py).

Points of equal predicted time are ordered by unroll depth (512, 1024, 64, 16, 0), then by the fewest loop levels (small
reg_outer and k2), then lexicographically.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Floats, Guarantee, Points, Ranking
from anatune.templates.base.ranking import BestPoints, LegalSlabs, count_rejected, gap
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.scoring import CudaScoring
from anatune.templates.cuda.space import GpuSpace
from anatune.templates.cuda.times.search import AxisTable, list_macros
from anatune.templates.cuda.times.tile import CudaRule
from anatune.templates.gpu.split_space import SPLIT_COLUMNS, find_broken_splits

__all__ = ["EXHAUSTIVE_POINTS", "BranchAndBound", "options_of", "points_within"]

EXHAUSTIVE_POINTS = 1_000_000
SLAB_MACROS = 50_000
SEED_POINTS = 2_000
_BOUNDING = 0.9
"""Share of the progress that is reported when all macro choices are bounded, before refining."""
_BOUNDING_WITHIN = 0.5
"""Share of the progress that is reported when all macro choices are bounded, before `points_within` collects points."""


class BranchAndBound:
    """The search for one exact ranking of a large space; see the module's docstring."""

    def __init__(self, model: CudaScoring, best: BestPoints, watch: Watch) -> None:
        self._model = model
        self._watch = watch
        self._space = model.space
        self._best = best
        self._spatial = [axis.name for axis in model.workload.spatial_axes]
        self._reduction = [axis.name for axis in model.workload.reduction_axes]
        self._options = options_of(model)
        self._splits = _split_rows(model.space)
        self._first_split = self._space.columns.index("unroll") + 1 + len(self._space.staged)
        self._evaluated = 0
        self._bounded = 0

    def run(self) -> Ranking:
        """Search the space and return the ranking."""
        seeds = self._space.sample_points(SEED_POINTS, 0)
        self._evaluate(seeds)
        counts = np.zeros(len(self._model.rules) + 1)
        bounds, numbers, complete = self.bound_all(counts)
        open_bound = math.inf if complete else self._model.floor_s
        order = np.argsort(bounds, kind="stable")
        for number, position in enumerate(order):
            if bounds[position] > self._best.limit_s:
                break
            self._watch.report(_BOUNDING + (1.0 - _BOUNDING) * number / len(order))
            if self._watch.is_over:
                open_bound = min(open_bound, float(bounds[position]))
                break
            self.refine(int(numbers[position]))
        self._watch.report(1.0)
        num_legal, broken = (int(counts[0]), count_rejected(self._model, counts)) if complete else (None, None)
        if open_bound <= self._best.limit_s and not (complete and math.isinf(open_bound)):
            share = gap(self._best.fastest_s, open_bound)
            guarantee = Guarantee("best_found", share, self._evaluated, self._bounded)
        else:
            guarantee = Guarantee("certified", 0.0, self._evaluated, self._bounded)
        alike_is_exact = guarantee.kind == "certified"  # all points up to the time of the last best one were evaluated
        return Ranking(self._best.points, guarantee, num_legal, broken, self._best.num_alike(), alike_is_exact)

    def _evaluate(self, points: Points) -> None:
        times, rules = self._model.times(points)
        self._evaluated += len(points)
        self._best.add(points[rules == 0], times[rules == 0])

    def bound_all(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], Points, bool]:
        """Return the bounds and numbers of macro choices that may be among the best, and whether all were bounded.

        Macro choices are numbered within one split of the reduction, and the splits follow each other, no split first.
        """
        total = int(self._options.below[0] * self._options.num_options[0])
        max_threads = self._model.hardware.compute.max_threads_per_block
        points = np.ones((SLAB_MACROS, len(self._space.columns)), dtype=np.int64)
        slab_numbers, weights = np.empty(SLAB_MACROS, dtype=np.int64), np.empty(SLAB_MACROS)
        bounds, numbers = np.empty(0), np.empty(0, dtype=np.int64)
        number = 0
        while number < total:
            if self._watch.is_over:
                return bounds, numbers, False
            number, listed, skipped = list_macros(
                number, total, len(self._spatial), self._options, max_threads, points, slab_numbers, weights
            )
            counts[CudaRule.threads_per_block] += skipped * len(self._splits)
            for new_bounds, new_numbers in self._slab_bounds(
                points[:listed], slab_numbers[:listed], weights, total, counts
            ):
                if len(new_bounds):
                    self.refine(int(new_numbers[np.argmin(new_bounds)]))
                bounds = np.concatenate([bounds, new_bounds])
                numbers = np.concatenate([numbers, new_numbers])
            near = bounds <= self._best.limit_s
            bounds, numbers = bounds[near], numbers[near]
            self._watch.report(_BOUNDING * number / total)
        return bounds, numbers, True

    def _slab_bounds(
        self, points: Points, numbers: Points, weights: NDArray[np.float64], total: int, counts: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.float64], Points]]:
        """Yield the bounds and numbers of macro choices that may enter, split by split. Count points by rule."""
        if len(self._splits) > 1:
            points[:, self._first_split : self._first_split + len(SPLIT_COLUMNS)] = self._splits[0]
        weights = weights[: len(points)]
        slab_bounds, rules = self._model.macro_bounds(points)
        counts += np.bincount(rules, weights=weights, minlength=len(counts))
        self._bounded += len(points)
        inside = (rules == 0) & (slab_bounds <= self._best.limit_s)
        yield slab_bounds[inside], numbers[inside]
        if len(self._splits) == 1:
            return
        tiles = points[:, [5 * axis for axis in range(len(self._spatial))]].prod(axis=1)
        first = 5 * len(self._spatial)
        steps = points[:, [first + 3 * axis for axis in range(len(self._reduction))]].prod(axis=1)
        any_bounds = self._model.split_bounds(points)
        self._bounded += len(points)
        for split_number, row in enumerate(self._splits[1:], 1):
            broken = find_broken_splits(row, tiles, steps, self._model.hardware.compute.num_sms)
            codes = np.where((rules == 0) & broken, CudaRule.split_parts, rules)
            counts += np.bincount(codes, weights=weights, minlength=len(counts))
            chosen = np.flatnonzero((codes == 0) & (any_bounds <= self._best.limit_s))
            candidates = points[chosen]
            candidates[:, self._first_split : self._first_split + len(row)] = row
            candidate_bounds, _ = self._model.macro_bounds(candidates)
            self._bounded += len(candidates)
            inside = candidate_bounds <= self._best.limit_s
            yield candidate_bounds[inside], numbers[chosen[inside]] + split_number * total

    def refine(self, number: int) -> None:
        """Evaluate all points of the classes of a macro choice that may be among the best."""
        space, macro = self._space, np.ones(len(self._space.columns), dtype=np.int64)
        split, number = divmod(number, int(self._options.below[0] * self._options.num_options[0]))
        for index, axis in enumerate((*self._spatial, *self._reduction)):
            option, number = divmod(number, int(self._options.below[index]))
            grid, thread, inner = (table[index, option] for table in self._options[1:4])
            first = space.columns.index(f"{axis}.{space.levels[axis][0]}")
            if index < len(self._spatial):
                macro[[first, first + 2, first + 4]] = grid, thread, inner
            else:
                macro[[first, first + 2]] = grid, inner
        macro[space.columns.index("unroll")] = space.unroll_depths[-1]
        if len(self._splits) > 1:
            macro[self._first_split :] = self._splits[split]
        classes = space.classes(macro)
        bounds = self._model.class_bounds(classes)
        self._bounded += len(classes)
        for row in np.argsort(bounds, kind="stable"):
            if bounds[row] > self._best.limit_s:
                break
            self._evaluate(space.members(classes[row]))


def _split_rows(space: GpuSpace) -> Points:
    """Return the splits of the reduction, (num_splits, 3); the first row splits nothing."""
    return np.array([(1, 0, 0)], dtype=np.int64) if space.splits is None else space.splits.table


def options_of(model: CudaScoring) -> AxisTable:
    """Return the macro options of every axis, spatial axes first, in the order of the space's tables."""
    axes = [*model.workload.spatial_axes, *model.workload.reduction_axes]
    rows = []
    for axis in axes:
        factors = model.space.table(axis.name)
        ones = np.ones(len(factors), dtype=np.int64)
        if axis.kind == "spatial":
            option = np.column_stack([factors[:, 0], factors[:, 2], factors[:, [1, 3, 4]].prod(axis=1)])
        else:
            option = np.column_stack([factors[:, 0], ones, factors[:, 1:].prod(axis=1)])
        rows.append(np.unique(option, axis=0, return_counts=True))
    longest = max(len(weight) for _, weight in rows)
    tables = np.ones((3, len(axes), longest), dtype=np.int64)
    multiplicity = np.zeros((len(axes), longest))
    for index, (table, weight) in enumerate(rows):
        tables[:, index, : len(weight)] = table.T
        multiplicity[index, : len(weight)] = weight
    count = np.array([len(weight) for _, weight in rows], dtype=np.int64)
    below = np.array([math.prod(count[index + 1 :].tolist()) for index in range(len(axes))], dtype=np.int64)
    space = model.space
    shared = float(len(space.unroll_depths) * len(space.fetch_widths) ** len(space.staged))
    multiplicity[0] *= shared  # the unroll depths and fetch widths of each point, counted for one axis only
    sums = multiplicity.sum(axis=1)
    points_below = np.array([math.prod(sums[index + 1 :].tolist()) for index in range(len(axes))])
    return AxisTable(count, tables[0], tables[1], tables[2], multiplicity, below, points_below)


class _PointsWithin(BestPoints):
    """All points up to a fixed time; it takes the place of the k best points in a search."""

    def __init__(self, model: CudaScoring, limit_s: float) -> None:
        super().__init__(len(model.space.columns), 1, model.tie_keys, distinct=False)
        self._limit_s = limit_s
        self._found: list[tuple[Points, Floats]] = []

    @property
    def limit_s(self) -> float:
        return self._limit_s

    def add(self, points: Points, times: Floats) -> None:
        inside = times <= self._limit_s
        if inside.any():
            self._found.append((points[inside], times[inside]))

    def all_points(self) -> tuple[Points, Floats]:
        """Return the points and their times in ranking order, each point once."""
        if not self._found:
            return self.points, self.times
        points, times = zip(*self._found, strict=True)
        return self._sort_points(np.concatenate(points), np.concatenate(times))


def points_within(model: CudaScoring, limit_s: float, watch: Watch) -> tuple[Points, Floats]:
    """Return all legal points with a predicted time up to `limit_s`, and their times, in ranking order."""
    within = _PointsWithin(model, limit_s)
    if model.space.size > EXHAUSTIVE_POINTS:
        search = BranchAndBound(model, within, watch.part(0.0, _BOUNDING_WITHIN))
        bounds, numbers, _ = search.bound_all(np.zeros(len(model.rules) + 1))
        chosen = numbers[bounds <= limit_s]
        for done, number in enumerate(chosen.tolist()):
            search.refine(number)
            watch.report(_BOUNDING_WITHIN + (1.0 - _BOUNDING_WITHIN) * (done + 1) / len(chosen))
        return within.all_points()
    for _, points, times in LegalSlabs(model, watch):
        within.add(points, times)
    return within.all_points()
