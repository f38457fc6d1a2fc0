"""The choices that make up a point, as strategies vary them: steps on sorted lists, and genes to exchange.

A *knob* is one choice with a sorted list of values: an inner factor of an axis (divisors of its extent; the outermost
factor follows from the others), the calls of a pair of microkernels, an unroll depth, a fetch width, an order, a
packing. One step of a knob is the next larger or smaller value. Source: [ICS24] Sec. 5.1 (hops); [Droplet24] Def. 3.2.

A *gene* is what two points can exchange and both stay tilings: the whole tiling of an axis as its number in the sorted
list of tilings, and each other choice. Source: [BO24] Sec. 3.3.1; AutoTVM's knobs, that [NoSE] uses, are the same.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from anatune.search.table import TableSpace
from anatune.templates.base.model import Model
from anatune.templates.base.space import Part
from anatune.templates.cpu.space import ORDER_LEVELS

__all__ = ["Knobs", "TableKnobs", "TileKnobs", "knobs_of"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

_MOST_NEIGHBOURS = 4096
"""Neighbours of one distance that are listed; of more, a sample."""


class Knobs(abc.ABC):
    """How strategies move through the points of one model.

    Parameters
    ----------
    model
        With ``space``, ``check``, ``times`` and ``evaluate``.

    Attributes
    ----------
    names : tuple of str
        The knobs with more than one value.
    radices : (K,) int64
        Number of values of each of them.
    gene_radices : (G,) int64
        Number of values of each gene.
    """

    names: tuple[str, ...]
    radices: Integers
    gene_radices: Integers

    def __init__(self, model: Model) -> None:
        self.model = model
        self.space = model.space

    @abc.abstractmethod
    def indices(self, points: Integers) -> Integers:
        """Return the number of each knob's value, (num_points, K)."""

    @abc.abstractmethod
    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal points of the space) for numbers of values, in range or not."""

    @abc.abstractmethod
    def genes(self, points: Integers) -> Integers:
        """Return the genes of points, (num_points, G)."""

    @abc.abstractmethod
    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal) for genes in range."""

    def draw(self, count: int, seed: Sequence[int]) -> Integers:
        """Return `count` points drawn uniformly from the legal ones, with replacement."""
        state = int(np.random.SeedSequence(list(seed)).generate_state(1)[0])
        points: Integers = self.space.sample_points(count, state)
        return points

    def neighbours(self, point: Integers, hops: int, seed: Sequence[int] = (0,)) -> Integers:
        """Return the legal points that differ in exactly `hops` knobs, by one step each, (num_points, C) int64.

        Of very many, a sample that `seed` decides.
        """
        if not 0 < hops <= len(self.names):
            return np.empty((0, len(point)), dtype=np.int64)
        steps = _steps(len(self.names), hops)
        if len(steps) > _MOST_NEIGHBOURS:
            chosen = np.random.default_rng(list(seed)).choice(len(steps), _MOST_NEIGHBOURS, replace=False)
            steps = steps[np.sort(chosen)]
        points, legal = self.at(self.indices(point[None, :]) + steps)
        return points[legal]

    def beyond(self, last: Integers, now: Integers) -> Integers | None:
        """Return the point that repeats the change from `last` to `now`; None where there is none."""
        both = self.indices(np.stack([last, now]))
        goal = np.clip(2 * both[1] - both[0], 0, self.radices - 1)
        points, legal = self.at(goal[None, :])
        found: Integers = points[0]
        return found if legal[0] and not np.array_equal(found, now) else None

    def values(self, points: Integers) -> Floats:
        """Return the values that distances are taken of, (num_points, columns), >= 0."""
        return points.astype(np.float64)


@lru_cache(maxsize=64)
def _steps(num_knobs: int, hops: int) -> Integers:
    """Return all vectors of steps with `hops` entries of +1 or -1, (count, num_knobs)."""
    places = np.array(list(itertools.combinations(range(num_knobs), hops)), dtype=np.int64)
    signs = np.array(list(itertools.product((1, -1), repeat=hops)), dtype=np.int64)
    steps = np.zeros((len(places), len(signs), num_knobs), dtype=np.int64)
    for at in range(hops):
        steps[np.arange(len(places))[:, None], np.arange(len(signs))[None, :], places[:, at][:, None]] = signs[:, at]
    flat = steps.reshape(-1, num_knobs)
    flat.setflags(write=False)
    return flat


class _Group(NamedTuple):
    """The columns of a point that one coordinate of the space decides together, such as the tiling of an axis."""

    columns: list[int]
    derived: int
    """Column that follows from the others of its axis (the outermost factor), -1 where none does."""
    factors: list[int]
    """Columns whose product with the derived one is the extent."""
    extent: int
    values: list[Integers]
    """Column -> its sorted values."""
    keys: Integers
    """Of the rows of the table, sorted."""
    order: Integers


class TileKnobs(Knobs):
    """Knobs of a tile space, whatever its template."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
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
        self.radices = np.array([len(one) for one in self._values], dtype=np.int64)
        orders = [f"order.{level}" for level in ORDER_LEVELS]
        self._orders = [c for c, name in enumerate(self.space.columns) if name in orders]

    @staticmethod
    def _group(part: Part, places: list[int]) -> _Group:
        """Return the columns that a part of the space decides, without those that are always the same."""
        varies = np.flatnonzero((part.table != part.table[0]).any(axis=0)).tolist()
        table = np.ascontiguousarray(part.table[:, varies])
        factors = [at for at in varies if not part.columns[at].startswith("pair.")]
        product = part.table[:, factors].prod(axis=1)
        is_tiling = len(factors) > 1 and bool((product == product[0]).all())
        values = [np.unique(column) for column in table.T]
        keys = _keys(table, values)
        order = np.argsort(keys, kind="stable").astype(np.int64)
        inner = [places[at] for at in factors[1:]]
        derived = places[factors[0]] if is_tiling else -1
        return _Group([places[at] for at in varies], derived, inner, int(product[0]), values, keys[order], order)

    def indices(self, points: Integers) -> Integers:
        """Return the number of each knob's value, (num_points, K)."""
        columns = [
            np.searchsorted(values, points[:, at]) for at, values in zip(self._places, self._values, strict=True)
        ]
        if not columns:
            return np.empty((len(points), 0), dtype=np.int64)
        return np.column_stack(columns).astype(np.int64)

    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal points of the space) for numbers of values, in range or not."""
        good: Booleans = np.asarray(((indices >= 0) & (indices < self.radices)).all(axis=1))
        inside = np.clip(indices, 0, self.radices - 1)
        points = np.repeat(self._base[None, :], len(indices), axis=0)
        for knob, (at, values) in enumerate(zip(self._places, self._values, strict=True)):
            points[:, at] = values[inside[:, knob]]
        for group in self._groups:
            if group.derived >= 0:
                product = points[:, group.factors].astype(np.float64).prod(axis=1)  # no overflow; exact below 2**53
                points[:, group.derived] = np.maximum(1, group.extent // np.minimum(product, 2.0**53).astype(np.int64))
            if len(group.columns) > 1:
                good &= self._rows(group, points) >= 0
        at_good = np.flatnonzero(good)
        if len(at_good):
            good[at_good] = self.model.check(points[at_good]) == 0
        return points, good

    def genes(self, points: Integers) -> Integers:
        """Return the genes of points, (num_points, G)."""
        return np.column_stack([self._rows(group, points) for group in self._groups]).astype(np.int64)

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return (points, which of them are legal) for genes in range."""
        points = self.space.decode(genes)
        return points, self.model.check(points) == 0

    def values(self, points: Integers) -> Floats:
        """Return the values that distances are taken of, (num_points, columns)."""
        out = points.astype(np.float64)
        out[:, self._orders] += 1.0  # an order is a name, no quantity: the first is as far from the others as they are
        return out

    @staticmethod
    def _rows(group: _Group, points: Integers) -> Integers:
        """Return the number of each point's choice in the table of a group, -1 where it is none."""
        if not group.columns:
            return np.zeros(len(points), dtype=np.int64)
        wanted = _keys(points[:, group.columns], group.values)
        at = np.minimum(np.searchsorted(group.keys, wanted), len(group.keys) - 1)
        found: Integers = np.where(group.keys[at] == wanted, group.order[at], -1)
        return found


def _keys(rows: Integers, values: list[Integers]) -> Integers:
    """Return one number for each row, different for different rows of known values; -1 where a value is unknown."""
    keys = np.zeros(len(rows), dtype=np.int64)
    is_known = np.ones(len(rows), dtype=np.bool_)
    for column, known in zip(rows.T, values, strict=True):
        at = np.minimum(np.searchsorted(known, column), len(known) - 1)
        is_known &= known[at] == column
        keys = keys * len(known) + at
    return np.where(is_known, keys, -1)


class TableKnobs(Knobs):
    """Knobs of a list of points: the values that occur in it. What is not in the list is snapped to the nearest point.

    Nearest: fewest steps, summed over the knobs. Neighbours of sparse lists are the nearest points.
    """

    space: TableSpace

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        space = self.space
        columns = dict(space.knobs) or self._factors(space)
        found = {name: np.unique(column, return_inverse=True) for name, column in columns.items()}
        kept = {name: both for name, both in found.items() if len(both[0]) > 1}
        self.names = tuple(kept)
        self._at: Integers = np.zeros((space.size, 0), dtype=np.int64)
        if kept:
            self._at = np.column_stack([both[1].reshape(-1) for both in kept.values()]).astype(np.int64)
        self._tree = KDTree(self._at) if kept else None
        self.radices = np.array([len(both[0]) for both in kept.values()], dtype=np.int64)
        self._genes = self._at if space.knobs else self._tilings(space)
        self.gene_radices = np.asarray(self._genes.max(axis=0, initial=0) + 1, dtype=np.int64)
        self._row_of_genes = {row.tobytes(): number for number, row in enumerate(self._genes)}
        self._row_of_knobs = {row.tobytes(): number for number, row in enumerate(self._at)}
        self._knobs_of_genes = self._values_of_genes()
        some = self._at[np.linspace(0, space.size - 1, min(space.size, 16)).astype(np.int64)]
        counts = [int((np.abs(self._at - one).sum(axis=1) == 1).sum()) for one in some]
        self._is_sparse = 2 * float(np.median(counts)) < len(self.names)

    @staticmethod
    def _factors(space: TableSpace) -> dict[str, Integers]:
        """Return the columns of the points without the outermost factor of each axis."""
        outer = {f"{axis}.{space.levels[axis][0]}" for axis in space.axes}
        return {name: space.points[:, at] for at, name in enumerate(space.columns) if name not in outer}

    @staticmethod
    def _tilings(space: TableSpace) -> Integers:
        """Return the number of each axis's tiling among those that occur, and of each other choice."""
        found, at = [], 0
        for axis in space.axes:
            width = len(space.levels[axis])
            found.append(np.unique(space.points[:, at : at + width], axis=0, return_inverse=True)[1].reshape(-1))
            at += width
        found += [np.unique(column, return_inverse=True)[1].reshape(-1) for column in space.points[:, at:].T]
        return np.column_stack(found).astype(np.int64)

    def _values_of_genes(self) -> list[tuple[list[int], Integers]]:
        """Return for each gene the knobs it decides, and their values for each of its values."""
        found = []
        if self.space.knobs:
            groups = [[name] for name in self.names]
        else:
            groups = [[f"{axis}.{level}" for level in self.space.levels[axis]] for axis in self.space.axes]
            groups += [[name] for name in self.space.columns[sum(map(len, groups)) :]]
        for gene, group in enumerate(groups):
            knobs = [at for at, name in enumerate(self.names) if name in group]
            first = np.unique(self._genes[:, gene], return_index=True)[1]
            found.append((knobs, self._at[first][:, knobs]))
        return found

    def _rows(self, points: Integers) -> Integers:
        return np.array([self.space.row_of(point) for point in points], dtype=np.int64)

    def indices(self, points: Integers) -> Integers:
        """Return the number of each knob's value, (num_points, K)."""
        return self._at[self._rows(points)]

    def at(self, indices: Integers) -> tuple[Integers, Booleans]:
        """Return the nearest points of the list, and True for each."""
        indices = np.ascontiguousarray(indices, dtype=np.int64)
        rows = np.array([self._row_of_knobs.get(row.tobytes(), -1) for row in indices], dtype=np.int64)
        unknown = np.flatnonzero(rows < 0)
        if len(unknown) and self._tree is not None:
            rows[unknown] = self._tree.query(indices[unknown], p=1)[1]
        return self.space.points[rows], np.ones(len(rows), dtype=np.bool_)

    def genes(self, points: Integers) -> Integers:
        """Return the genes of points, (num_points, G)."""
        return self._genes[self._rows(points)]

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return the points with these genes, the nearest ones where there are none."""
        genes = np.ascontiguousarray(genes, dtype=np.int64)
        rows = np.array([self._row_of_genes.get(one.tobytes(), -1) for one in genes], dtype=np.int64)
        points = self.space.points[rows]
        unknown = np.flatnonzero(rows < 0)
        if len(unknown):
            indices = np.zeros((len(unknown), len(self.names)), dtype=np.int64)
            for gene, (knobs, values) in enumerate(self._knobs_of_genes):
                indices[:, knobs] = values[genes[unknown, gene]]
            points[unknown] = self.at(indices)[0]
        return points, np.ones(len(rows), dtype=np.bool_)

    def neighbours(self, point: Integers, hops: int, seed: Sequence[int] = (0,)) -> Integers:
        """Return the points of the list that are `hops` knobs away; of a sparse list, that ring of nearest points."""
        away = np.abs(self._at - self.indices(point[None, :]))
        distance = away.sum(axis=1)
        if not self._is_sparse:
            rows = np.flatnonzero((distance == hops) & (away.max(axis=1, initial=0) == 1))
        else:
            order = np.lexsort((np.arange(len(distance)), distance))[1:]
            size = 2 * len(self.names)
            first = [0, size, 3 * size, 7 * size]
            rows = order[first[hops - 1] : first[hops]] if hops < len(first) else order[:0]
        return self.space.points[rows]

    def values(self, points: Integers) -> Floats:
        """Return the values that distances are taken of: the tuner's own parameters where they are known."""
        if not self.space.knobs:
            return points.astype(np.float64)
        rows = self._rows(points)
        return np.column_stack([column[rows] for column in self.space.knobs.values()]).astype(np.float64)


def knobs_of(model: Model) -> Knobs:
    """Return the knobs of a model's space."""
    return TableKnobs(model) if model.space.listed is not None else TileKnobs(model)
