"""A space restricted to a finite list of points, such as those that somebody recorded.

Strategies search it as they search a tile space: `TableKnobs` is how they step through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from anatune.core.prediction import Prediction
from anatune.core.schedule import Schedule
from anatune.errors import SpaceError
from anatune.search.knobs import Knobs, make_knobs
from anatune.templates.base.features import FeatureTable
from anatune.templates.base.model import Evaluation, Guarantee, Model, Progress, Ranking, Rule
from anatune.templates.base.space import Space, SpacePart, table_part

__all__ = ["TableKnobs", "TableModel", "TableSpace"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class TableSpace(Space):
    """The points of a list as a space: the one coordinate is the number of the row, and every point counts as legal.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    space
        Tile space that the points belong to.
    points : (num_points, num_columns) int64
        All different.
    knobs : mapping of str to (num_points,) int64, optional
        Names and values of the parameters that a tuner would vary, where they are not the factors of the points.

    Raises
    ------
    SpaceError
        No point, a point twice, a wrong number of columns, or knobs of another length.
    """

    def __init__(self, space: Space, points: Integers, knobs: Mapping[str, Sequence[int]] | None = None) -> None:
        points = np.ascontiguousarray(np.atleast_2d(points), dtype=np.int64)
        if points.shape[1] != len(space.columns) or not len(points):
            raise SpaceError(
                f"table of shape {points.shape}, expected at least one row of {len(space.columns)} columns: "
                "see space.columns"
            )
        super().__init__(space.workload, space.hardware, None)
        self.tiles = space
        self.points = self.listed = points
        self.knobs = {name: np.asarray(values, dtype=np.int64) for name, values in (knobs or {}).items()}
        for name, values in self.knobs.items():
            if values.shape != (len(points),):
                raise SpaceError(f"knob {name!r} has shape {values.shape}, expected one value for each of the points")
        self.template, self.axes, self.levels, self.extents = space.template, space.axes, space.levels, space.extents
        self._rows = {point.tobytes(): row for row, point in enumerate(points)}
        if len(self._rows) != len(points):
            raise SpaceError(f"{len(points) - len(self._rows)} points of the table are there twice; merge them first")

    def __repr__(self) -> str:
        return f"TableSpace({self.size} points of {self.tiles!r})"

    @cached_property
    def parts(self) -> tuple[SpacePart, ...]:
        """The list itself."""
        return (table_part("table", self.tiles.columns, self.points, "a recorded point"),)

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...] | None:
        """Return what the tile space does."""
        return self.tiles.microkernel(axis)

    def row_of(self, point: Integers) -> int | None:
        """Return the number of a point, None if it is not in the table."""
        return self._rows.get(np.ascontiguousarray(point, dtype=np.int64).tobytes())

    def schedule_of(self, point: Sequence[int] | Integers) -> Schedule:
        """Decode one point into a Schedule."""
        return self.tiles.schedule_of(point)

    def schedule(self, tiles: Mapping[str, Sequence[int]]) -> Schedule:
        """Build the schedule of the tile space with these factors."""
        return self.tiles.schedule(tiles)

    def point_of(self, schedule: Schedule) -> Integers:
        """Return the integer vector of `schedule`.

        Raises
        ------
        SpaceError
            The schedule is none of the tile space's, or not in the table.
        """
        point = self.tiles.point_of(schedule)
        if self.row_of(point) is None:
            raise SpaceError(f"schedule {schedule.describe()!r} is not in the table; only recorded points can be used")
        return point


class TableModel(Model):
    """A model whose space is a list of points: what was recorded, and nothing else.

    All points of the list count as legal, whatever the rules of `model` say: somebody ran them. Predictions are those
    of `model`.

    Parameters
    ----------
    model
        Analytical model of the workload on the device, or one with the same methods.
    points, knobs
        As for `TableSpace`.
    """

    space: TableSpace

    def __init__(self, model: Model, points: Integers, knobs: Mapping[str, Sequence[int]] | None = None) -> None:
        self.model = model
        self.space = TableSpace(model.space, points, knobs)
        self.workload, self.hardware = model.workload, model.hardware
        self.rules = (Rule("recorded", "points of the table", float(self.space.size)),)

    @cached_property
    def _evaluation(self) -> Evaluation:
        return self.model.evaluate(self.space.points)

    def row_of(self, schedule: Schedule) -> int | None:
        """Return the row of a schedule, None if it is not in the table."""
        try:
            return self.space.row_of(self.space.tiles.point_of(schedule))
        except SpaceError:
            return None

    def _numbers(self, points: Integers) -> Integers:
        """Return the row of each point, -1 where there is none."""
        rows = (self.space.row_of(point) for point in np.atleast_2d(points))
        return np.array([-1 if row is None else row for row in rows], dtype=np.int64)

    def check(self, points: Integers) -> Integers:
        """Return 0 for each point of the table, 1 for others."""
        return (self._numbers(points) < 0).astype(np.int64)

    def times(self, points: Integers) -> tuple[Floats, Integers]:
        """Return (predicted seconds, `check`) of points; inf for points outside the table."""
        rows = self._numbers(points)
        return np.where(rows < 0, np.inf, self._evaluation.time_s[rows]), (rows < 0).astype(np.int64)

    def evaluate(self, points: Integers) -> Evaluation:
        """Return the predictions of points of the table."""
        rows = self._numbers(points)
        columns = {name: values[rows] for name, values in self._evaluation.columns.items()}
        return Evaluation(self._evaluation.time_s[rows], (rows < 0).astype(np.int64), columns)

    def predictions(self, points: Integers) -> list[Prediction]:
        """Return the model's predictions."""
        return self.model.predictions(points)

    def feature_table(self, points: Integers) -> FeatureTable:
        """Return the model's features."""
        return self.model.feature_table(points)

    @property
    def is_corrected(self) -> bool:
        """Whether the model is."""
        return self.model.is_corrected

    def leaves(self, points: Integers) -> Integers:
        """Return those of the model."""
        return self.model.leaves(points)

    def rank(
        self, top_k: int, time_limit_s: float | None = None, *, distinct: bool = False, progress: Progress | None = None
    ) -> Ranking:
        """Return the `top_k` points of smallest predicted time, earlier rows first where they are equal."""
        order = np.argsort(self._evaluation.time_s, kind="stable")[:top_k]
        guarantee = Guarantee("exhaustive", 0.0, self.space.size, 0)
        return Ranking(self.space.points[order], guarantee, self.space.size, {})


@make_knobs.register(TableModel)
class TableKnobs(Knobs):
    """Knobs of a list of points: the values that occur in it. What is not in the list is snapped to the nearest point.

    Nearest: fewest steps, summed over the knobs. Neighbours of sparse lists are the nearest points.
    """

    space: TableSpace

    def __init__(self, model: TableModel) -> None:
        self.model = model
        self.space = space = model.space
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
        counts = [int((np.abs(self._at - row).sum(axis=1) == 1).sum()) for row in some]
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

    def _row_numbers(self, points: Integers) -> Integers:
        return np.array([self.space.row_of(point) for point in points], dtype=np.int64)

    def indices(self, points: Integers) -> Integers:
        """Return the number of each knob's value, (num_points, K)."""
        return self._at[self._row_numbers(points)]

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
        return self._genes[self._row_numbers(points)]

    def from_genes(self, genes: Integers) -> tuple[Integers, Booleans]:
        """Return the points with these genes, the nearest ones where there are none."""
        genes = np.ascontiguousarray(genes, dtype=np.int64)
        rows = np.array([self._row_of_genes.get(row.tobytes(), -1) for row in genes], dtype=np.int64)
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
        rows = self._row_numbers(points)
        return np.column_stack([column[rows] for column in self.space.knobs.values()]).astype(np.float64)
