"""Knobs and genes: the choices that make up a point, as strategies change and exchange them.

A *knob* is one choice with a sorted list of values: an inner factor of an axis (divisors of its extent; the outermost
factor follows from the others), the number of calls of two microkernels, an unroll depth, a fetch width, an order, a
packing. A step of a knob leads to the next larger or smaller value. Source: [ICS24] Sec. 5.1 (hops); [Droplet24] Def.
3.2.

A *gene* is a part that two points can exchange so that both stay tilings: the whole tiling of an axis, as its number in
the sorted list of tilings, or another choice. Source: [BO24] Sec. 3.3.1; the knobs of AutoTVM, which [NoSE] uses, are
the same.

Published searches for GPUs have limits in addition to those of the device. Of the legal points of anatune's spaces 6 to
13 % keep them (six of the benchmarks of [ICS24] on an RTX 3090): most others have blocks smaller than a warp, or
threads with more results than registers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache, singledispatch
from typing import NamedTuple

import numpy as np

from anatune.search.points import Booleans, Floats, Integers, drop_repeats
from anatune.templates.base.model import Model
from anatune.templates.base.space import SpacePart
from anatune.templates.cpu.space import ORDER_LEVELS
from anatune.templates.gpu.model import BaseGpuModel

_MOST_NEIGHBOURS = 4096
"""Largest number of neighbours at one distance that are listed; if there are more, a sample is taken."""


@lru_cache(maxsize=64)
def _list_steps(num_knobs: int, hops: int) -> Integers:
    """Return all vectors of steps with `hops` entries of +1 or -1, (count, num_knobs)."""
    chosen = np.array(list(itertools.combinations(range(num_knobs), hops)), dtype=np.int64)
    signs = np.array(list(itertools.product((1, -1), repeat=hops)), dtype=np.int64)
    steps = np.zeros((len(chosen), len(signs), num_knobs), dtype=np.int64)
    for hop in range(hops):
        steps[np.arange(len(chosen))[:, None], np.arange(len(signs))[None, :], chosen[:, hop][:, None]] = signs[:, hop]
    flat = steps.reshape(-1, num_knobs)
    flat.setflags(write=False)
    return flat


class _ColumnGroup(NamedTuple):
    """Columns of a point that one coordinate of the space decides together, such as the tiling of an axis."""

    columns: list[int]
    derived: int
    """Column that follows from the others of its axis (the outermost factor); -1 if there is none."""
    factors: list[int]
    """Columns whose product with the derived column is the extent."""
    extent: int
    values: list[Integers]
    """Sorted values of each column."""
    keys: Integers
    """Keys of the rows of the table, sorted."""
    order: Integers


class Knobs:
    """The knobs and genes of a model's space, for any template: how strategies move through its points.

    Parameters
    ----------
    model
        A model with ``space``, ``check``, ``times`` and ``evaluate``.

    Attributes
    ----------
    names : tuple of str
        Names of the knobs with more than one value.
    radices : (K,) int64
        Number of values of each knob.
    gene_radices : (G,) int64
        Number of values of each gene.
    """

    names: tuple[str, ...]
    radices: Integers
    gene_radices: Integers

    def __init__(self, model: Model) -> None:
        self.model, self.space = model, model.space
        self.gene_radices = np.array(self.space.radices, dtype=np.int64)
        self._base: Integers = self.space.decode(np.zeros((1, len(self.gene_radices)), dtype=np.int64))[0]
        self._groups = [
            self._group(part, places) for part, places in zip(self.space.parts, self.space.places, strict=True)
        ]
        free = [
            (c, values)
            for group in self._groups
            for c, values in zip(group.columns, group.values, strict=True)
            if c != group.derived
        ]
        self.names = tuple(self.space.columns[c] for c, _ in free)
        self._places, self._values = [c for c, _ in free], [values for _, values in free]
        self.radices = np.array([len(values) for values in self._values], dtype=np.int64)
        orders = [f"order.{level}" for level in ORDER_LEVELS]
        self._orders = [c for c, name in enumerate(self.space.columns) if name in orders]

    @staticmethod
    def _group(part: SpacePart, places: list[int]) -> _ColumnGroup:
        """Return the columns that a part of the space decides, without constant ones."""
        varies = np.flatnonzero((part.table != part.table[0]).any(axis=0)).tolist()
        table = np.ascontiguousarray(part.table[:, varies])
        factors = [at for at in varies if not part.columns[at].startswith("pair.")]
        product = part.table[:, factors].prod(axis=1)
        is_tiling = len(factors) > 1 and bool((product == product[0]).all())
        values = [np.unique(column) for column in table.T]
        keys = _row_keys(table, values)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        inner = [places[at] for at in factors[1:]]
        derived = places[factors[0]] if is_tiling else -1
        return _ColumnGroup([places[at] for at in varies], derived, inner, int(product[0]), values, keys[order], order)

    def indices(self, points: Integers) -> Integers:
        """Return the index of each knob's value, (num_points, K)."""
        columns = [
            np.searchsorted(values, points[:, at]) for at, values in zip(self._places, self._values, strict=True)
        ]
        if not columns:
            return np.empty((len(points), 0), dtype=np.int64)
        return np.column_stack(columns).astype(np.int64)

    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return (points, mask of the legal ones) for indices of values, which may be out of range."""
        good: Booleans = np.asarray(((indices >= 0) & (indices < self.radices)).all(axis=1))
        inside = np.clip(indices, 0, self.radices - 1)
        points = np.repeat(self._base[None, :], len(indices), axis=0)
        for knob, (column, values) in enumerate(zip(self._places, self._values, strict=True)):
            points[:, column] = values[inside[:, knob]]
        for group in self._groups:
            if group.derived >= 0:
                product = points[:, group.factors].astype(np.float64).prod(axis=1)  # cannot overflow; exact below 2**53
                points[:, group.derived] = np.maximum(1, group.extent // np.minimum(product, 2.0**53).astype(np.int64))
            if len(group.columns) > 1:
                good &= self._rows(group, points) >= 0
        good_rows = np.flatnonzero(good)
        if len(good_rows):
            good[good_rows] = self.model.check(points[good_rows]) == 0
        return points, good

    def genes(self, points: Integers) -> Integers:
        """Return the genes of points, (num_points, G)."""
        return np.column_stack([self._rows(group, points) for group in self._groups]).astype(np.int64)

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return (points, mask of the legal ones) for genes in range."""
        points = self.space.decode(genes)
        return points, self.model.check(points) == 0

    def draw(self, count: int, seed: Sequence[int]) -> Integers:
        """Return `count` points drawn uniformly from the legal ones, with replacement."""
        state = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
        points: Integers = self.space.sample_points(count, state)
        return points

    def neighbours(self, point: Integers, hops: int, seed: Sequence[int] = (0,)) -> Integers:
        """Return the legal points that differ in exactly `hops` knobs, by one step each, (num_points, C) int64.

        If there are very many, a sample is returned, which `seed` decides.
        """
        if not 0 < hops <= len(self.names):
            return np.empty((0, len(point)), dtype=np.int64)
        steps = _list_steps(len(self.names), hops)
        if len(steps) > _MOST_NEIGHBOURS:
            chosen = np.random.default_rng(list(seed)).choice(len(steps), _MOST_NEIGHBOURS, replace=False)
            steps = steps[np.sort(chosen)]
        points, legal = self.at(self.indices(point[None, :]) + steps)
        return points[legal]

    def repeat_change(self, last: Integers, now: Integers) -> Integers | None:
        """Return the point that repeats the change from `last` to `now`, or None if there is none."""
        both = self.indices(np.stack([last, now]))
        goal = np.clip(2 * both[1] - both[0], 0, self.radices - 1)
        points, legal = self.at(goal[None, :])
        repeated: Integers = points[0]
        return repeated if legal[0] and not np.array_equal(repeated, now) else None

    def values(self, points: Integers) -> Floats:
        """Return the values from which distances are computed, (num_points, columns), >= 0."""
        out = points.astype(np.float64)
        out[:, self._orders] += 1.0  # an order is a name, not a quantity; 0 would be closer to none
        return out

    @staticmethod
    def _rows(group: _ColumnGroup, points: Integers) -> Integers:
        """Return the row of each point's choice in the table of a group; -1 if the table does not contain it."""
        if not group.columns:
            return np.zeros(len(points), dtype=np.int64)
        keys = _row_keys(points[:, group.columns], group.values)
        position = np.minimum(np.searchsorted(group.keys, keys), len(group.keys) - 1)
        rows: Integers = np.where(group.keys[position] == keys, group.order[position], -1)
        return rows


def _row_keys(rows: Integers, values: list[Integers]) -> Integers:
    """Return a number for each row, different for different rows; -1 if a value is not in the list."""
    keys = np.zeros(len(rows), dtype=np.int64)
    is_known = np.ones(len(rows), dtype=np.bool_)
    for column, sorted_values in zip(rows.T, values, strict=True):
        position = np.minimum(np.searchsorted(sorted_values, column), len(sorted_values) - 1)
        is_known &= sorted_values[position] == column
        keys = keys * len(sorted_values) + position
    return np.where(is_known, keys, -1)


@singledispatch
def make_knobs(model: Model) -> Knobs:
    """Return the knobs of a model's space; models of other kinds of spaces register their own function."""
    return Knobs(model)


FEWEST_THREADS = 32
"""Smallest number of threads in a block. Source: the code of [ICS24]; 32 is a warp."""
MOST_RESULTS = 256
"""Largest number of results that a thread keeps in registers. Source: the code of [ICS24]."""
_SHARE = 8
"""Number of legal points that are drawn for each one that shall keep the limits."""
_DRAWS = 40
"""Number of draws without success after which the limits count as impossible in a space."""


def is_within_limits(model: Model, points: Integers) -> Booleans:
    """Return a mask of the points whose blocks fill a warp and whose threads keep all results in registers."""
    columns = model.evaluate(points).columns
    results = columns["accumulators_per_thread"]
    good: Booleans = (columns["threads_per_block"] >= FEWEST_THREADS) & (results <= MOST_RESULTS)
    good &= columns["spilled_registers"] == 0
    return good


class _LimitedKnobs(Knobs):
    """Knobs that lead only to points within the limits."""

    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return (points, mask of those that are legal and within the limits), as `Knobs.at`."""
        return self._keep_limits(*super().at(indices))

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return (points, mask of those that are legal and within the limits), as `Knobs.from_genes`."""
        return self._keep_limits(*super().from_genes(genes))

    def draw(self, count: int, seed: Sequence[int]) -> Integers:
        """Return up to `count` points drawn uniformly within the limits; fewer if almost none are."""
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
        rows = np.flatnonzero(legal)
        legal[rows] = is_within_limits(self.model, points[rows])
        return points, legal


def make_limited_knobs(model: Model) -> Knobs:
    """Return the knobs of a space without the points beyond the limits.

    The knobs have no limits for CPUs, for templates that generate no code for CUDA cores, for lists of recorded points,
    and if (almost) no point keeps the limits.
    """
    plain = model.plain  # a learned correction changes times, not limits
    if isinstance(plain, BaseGpuModel) and "spilled_registers" in plain.resources:
        limited = _LimitedKnobs(model)
        if len(limited.draw(1, (0,))):
            return limited
    return make_knobs(model)


_DRAWN = 20
"""Number of random points for each kept one if the model chooses the first population."""


def make_first_population(knobs: Knobs, size: int, draw: Callable[..., Integers], ranked: Integers | None) -> Integers:
    """Return up to `size` different points: random ones; with `ranked`, these and the best predicted of many."""
    if ranked is None:
        return drop_repeats(draw(size, 0))
    candidates = draw(_DRAWN * size, 0)
    candidates = candidates[np.argsort(knobs.model.times(candidates)[0], kind="stable")]
    return drop_repeats(np.concatenate([ranked, candidates]))[:size]


def roulette(fitness: Floats, count: int, rng: np.random.Generator) -> Integers:
    """Return `count` indices drawn with probabilities proportional to `fitness` >= 0 (equal ones if all are 0)."""
    total = float(fitness.sum())
    chances = fitness / total if total > 0 else None
    return np.asarray(rng.choice(len(fitness), count, p=chances), dtype=np.int64)


def single_point_crossover(first: Integers, second: Integers, rng: np.random.Generator) -> Integers:
    """Return children with the first genes of one parent and the last of the other, (num_children, G)."""
    cut = rng.integers(1, max(first.shape[1], 2), len(first))
    return np.where(np.arange(first.shape[1])[None, :] < cut[:, None], first, second)


def mutate(genes: Integers, radices: Integers, chance: float, rng: np.random.Generator) -> Integers:
    """Return genes each of which is replaced, with probability `chance`, by a uniform random one."""
    drawn = (rng.random(genes.shape) * radices).astype(np.int64)
    return np.where(rng.random(genes.shape) < chance, drawn, genes)
