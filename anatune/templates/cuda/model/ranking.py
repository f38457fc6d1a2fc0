"""Exact ranking of the GPU space.

Small spaces are evaluated whole. In larger ones every macro choice (block, thread and stage sizes; the other levels
and choices left open) gets an admissible bound: the model's own time with the best values any completion can have.
Splits of the reduction are part of the macro choice; those of blocks that no split can make fast enough are left out
together. Choices are then refined in the order of their bounds, first to classes (how many consecutive results a
thread has along each axis, fetch widths), then to points, until the next bound is slower than the k-th best point.

Ties: points of equal predicted time are ordered by unroll depth (512, 1024, 64, 16, 0), then by the fewest loop
levels (reg_outer and k2 small), then lexicographically.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from anatune.templates.base.model import Floats, Guarantee, Points, Ranking
from anatune.templates.base.ranking import Best, Slabs, gap, rejected
from anatune.templates.base.watch import Watch
from anatune.templates.cuda.model.scoring import GpuScoring
from anatune.templates.cuda.space import GpuSpace
from anatune.templates.cuda.times.search import Options, list_macros
from anatune.templates.cuda.times.tile import CudaRule
from anatune.templates.gpu.split_space import SPLIT_COLUMNS, broken_splits

__all__ = ["EXHAUSTIVE_POINTS", "BranchAndBound", "options_of", "points_within"]

EXHAUSTIVE_POINTS = 1_000_000
SLAB_MACROS = 50_000
SEED_POINTS = 2_000
_BOUNDING = 0.9
"""Share of the work that bounding counts as, before what may enter is refined; only progress is told by it."""
_BOUNDING_WITHIN = 0.5
"""Share of the work that bounding the tile choices counts as, before points are collected."""


class BranchAndBound:
    """One exact ranking of a large space."""

    def __init__(self, model: GpuScoring, best: Best, watch: Watch) -> None:
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
        """Search."""
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
        num_legal, broken = (int(counts[0]), rejected(self._model, counts)) if complete else (None, None)
        if open_bound <= self._best.limit_s and not (complete and math.isinf(open_bound)):
            share = gap(self._best.fastest_s, open_bound)
            guarantee = Guarantee("best_found", share, self._evaluated, self._bounded)
        else:
            guarantee = Guarantee("certified", 0.0, self._evaluated, self._bounded)
        alike_is_exact = guarantee.kind == "certified"  # what is not slower than the last of the best was evaluated
        return Ranking(self._best.points, guarantee, num_legal, broken, self._best.num_alike(), alike_is_exact)

    def _evaluate(self, points: Points) -> None:
        times, rules = self._model.times(points)
        self._evaluated += len(points)
        self._best.add(points[rules == 0], times[rules == 0])

    def bound_all(self, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], Points, bool]:
        """Bound every macro choice; return the bounds and numbers of those that may beat the incumbents.

        Numbers count macro choices of one split of the reduction after the other, unsplit ones first.
        """
        total = int(self._options.below[0] * self._options.num_options[0])
        max_threads = self._model.hardware.compute.max_threads_per_block
        points = np.ones((SLAB_MACROS, len(self._space.columns)), dtype=np.int64)
        slab_numbers, weights = np.empty(SLAB_MACROS, dtype=np.int64), np.empty(SLAB_MACROS)
        bounds, numbers = np.empty(0), np.empty(0, dtype=np.int64)
        at = 0
        while at < total:
            if self._watch.is_over:
                return bounds, numbers, False
            at, listed, skipped = list_macros(
                at, total, len(self._spatial), self._options, max_threads, points, slab_numbers, weights
            )
            counts[CudaRule.threads_per_block] += skipped * len(self._splits)
            for found, found_numbers in self._slab_bounds(
                points[:listed], slab_numbers[:listed], weights, total, counts
            ):
                if len(found):
                    self.refine(int(found_numbers[np.argmin(found)]))
                bounds = np.concatenate([bounds, found])
                numbers = np.concatenate([numbers, found_numbers])
            near = bounds <= self._best.limit_s
            bounds, numbers = bounds[near], numbers[near]
            self._watch.report(_BOUNDING * at / total)
        return bounds, numbers, True

    def _slab_bounds(
        self, points: Points, numbers: Points, weights: NDArray[np.float64], total: int, counts: NDArray[np.float64]
    ) -> Iterator[tuple[NDArray[np.float64], Points]]:
        """Yield the bounds and numbers of macro choices that may enter, unsplit ones first; count points by rule."""
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
        for place, row in enumerate(self._splits[1:], 1):
            broken = broken_splits(row, tiles, steps, self._model.hardware.compute.num_sms)
            codes = np.where((rules == 0) & broken, CudaRule.split_parts, rules)
            counts += np.bincount(codes, weights=weights, minlength=len(counts))
            chosen = np.flatnonzero((codes == 0) & (any_bounds <= self._best.limit_s))
            few = points[chosen]
            few[:, self._first_split : self._first_split + len(row)] = row
            few_bounds, _ = self._model.macro_bounds(few)
            self._bounded += len(few)
            inside = few_bounds <= self._best.limit_s
            yield few_bounds[inside], numbers[chosen[inside]] + place * total

    def refine(self, number: int) -> None:
        """Evaluate every class of a macro choice, and every point of the classes that may enter."""
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
    """Return the splits of the reduction, (num_splits, 3), that of what is not split first."""
    return np.array([(1, 0, 0)], dtype=np.int64) if space.splits is None else space.splits.table


def options_of(model: GpuScoring) -> Options:
    """Return the macro options of every axis, spatial axes first, as they come in the rows of the space's lists."""
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
    multiplicity[0] *= shared  # every point's unroll depth and fetch widths, counted once
    sums = multiplicity.sum(axis=1)
    points_below = np.array([math.prod(sums[index + 1 :].tolist()) for index in range(len(axes))])
    return Options(count, tables[0], tables[1], tables[2], multiplicity, below, points_below)


class _Within(Best):
    """All points of a time up to a fixed limit, in the place of the k best."""

    def __init__(self, model: GpuScoring, limit_s: float) -> None:
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

    def all(self) -> tuple[Points, Floats]:
        """Return the points and their times in ranking order, each point once."""
        if not self._found:
            return self.points, self.times
        points, times = zip(*self._found, strict=True)
        return self._sorted(np.concatenate(points), np.concatenate(times))


def points_within(model: GpuScoring, limit_s: float, watch: Watch) -> tuple[Points, Floats]:
    """Return every legal point of a predicted time up to `limit_s`, and the times, in the order of ``model.rank``."""
    within = _Within(model, limit_s)
    if model.space.size > EXHAUSTIVE_POINTS:
        search = BranchAndBound(model, within, watch.part(0.0, _BOUNDING_WITHIN))
        bounds, numbers, _ = search.bound_all(np.zeros(len(model.rules) + 1))
        chosen = numbers[bounds <= limit_s]
        for done, number in enumerate(chosen.tolist()):
            search.refine(number)
            watch.report(_BOUNDING_WITHIN + (1.0 - _BOUNDING_WITHIN) * (done + 1) / len(chosen))
        return within.all()
    for _, points, times in Slabs(model, watch):
        within.add(points, times)
    return within.all()
