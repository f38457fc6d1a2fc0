"""What every tile space is: a product of lists (the tilings of each axis, then single choices), and points of it.

Notation: a *part* is one list; a *coordinate* is the number of a row of it; a *point* is the integer vector that the
rows make. Nothing is materialised beyond the lists; the size is exact.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import MOST_SEED, checked_flag, checked_integer, shown
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule, checked_schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import count_factorisations, factorisations
from anatune.templates.base.values import check_names, covering_factors

__all__ = ["MOST_POINTS", "LegalityCheck", "Part", "Space", "choice", "listed", "tilings"]

Integers = NDArray[np.int64]
LegalityCheck = Callable[[Integers], NDArray[np.bool_]]
"""(num_points, num_columns) int64 -> (num_points,) bool: the hardware's limits, given by the model layer."""
MOST_POINTS = 1_000_000
"""Most points of one sample: some hundred bytes each, as schedules some thousand."""
_MOST_DRAWN = 1 << 18
"""Points drawn at once."""
_ROUNDS = 400
"""Draws after which a space counts as having next to no legal point."""


class Part:
    """One list of a space: each of its rows fills the same columns of a point.

    Parameters
    ----------
    name : str
        Axis or choice, for messages.
    columns : sequence of str
        What a row fills.
    count : int
        Number of rows.
    rows : callable
        Makes the list, (count, len(columns)) int64, all rows different.
    expected : str
        What a row is, for messages.
    """

    def __init__(
        self, name: str, columns: Sequence[str], count: int, rows: Callable[[], Integers], expected: str
    ) -> None:
        self.name, self.columns, self.count = name, tuple(columns), count
        self._rows, self._expected = rows, expected

    def __reduce__(self) -> tuple[object, ...]:
        # What was made of the rows is not sent to other processes.
        return Part, (self.name, self.columns, self.count, self._rows, self._expected)

    @cached_property
    def table(self) -> Integers:
        """The rows, (count, len(columns)) int64."""
        return self._rows()

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        return {row.tobytes(): number for number, row in enumerate(np.ascontiguousarray(self.table))}

    def numbers(self, rows: Integers) -> list[int]:
        """Return the number of each row, (num_rows, len(columns)) int64.

        Raises
        ------
        SpaceError
            One is not in the list.
        """
        data, width, known = rows.tobytes(), 8 * len(self.columns), self._numbers
        try:
            return [known[data[at : at + width]] for at in range(0, len(data), width)]
        except KeyError:
            wrong = next(row for row in rows if row.tobytes() not in known).tolist()
            got = wrong if len(wrong) > 1 else wrong[0]
            raise SpaceError(f"{self.name}: got {got}, expected {self._expected}") from None


def listed(name: str, columns: Sequence[str], table: Integers, expected: str) -> Part:
    """Return the rows of a table."""
    return Part(name, columns, len(table), partial(np.asarray, table), expected)


def tilings(axis: str, levels: Sequence[str], extent: int) -> Part:
    """Return all ordered factorisations of an axis, lexicographic."""
    columns = [f"{axis}.{level}" for level in levels]
    rows = partial(factorisations, extent, len(levels))
    return Part(axis, columns, count_factorisations(extent, len(levels)), rows, f"perfect divisors of {extent}")


def choice(name: str, values: Sequence[int]) -> Part:
    """Return a choice of one of some values, a column of a point."""
    return listed(name, [name], np.array(values, dtype=np.int64)[:, None], f"one of {tuple(values)}")


class Space(ABC):
    """All schedules of one workload on one device that a template can express.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        What is computed, where.
    is_legal : callable, optional
        The hardware's limits; None where every point is legal.

    Attributes
    ----------
    extents : dict of str to int
        Axis -> its size.
    levels : dict of str to tuple of str
        Axis -> names of its factors in a point, outer to inner.
    choices : dict of str to tuple of int
        Column behind the tilings -> its values, ascending.
    """

    template: str
    levels: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[int, ...]]
    axis_word: str = "index"
    """What messages call an axis."""
    listed: Integers | None = None
    """All points, where the space is a list of them."""

    def __init__(self, workload: Workload, hardware: HardwareSpec, is_legal: LegalityCheck | None) -> None:
        self.workload = workload
        self.hardware = hardware
        self._is_legal = is_legal
        self.extents: dict[str, int] = dict(workload.extents)
        self.axes: tuple[str, ...] = tuple(self.extents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workload.describe()} on {self.hardware.name}: {self.size:.4g} points)"

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The lists that the space is the product of: one for each axis, in their order, then the choices."""
        choices = (choice(name, values) for name, values in self.choices.items())
        return (*(self._axis(axis) for axis in self.axes), *choices)

    def _axis(self, axis: str) -> Part:
        """Return what an axis can be: every perfect tiling, unless the template says otherwise."""
        return tilings(axis, self.levels[axis], self.extents[axis])

    def _tiles_of(self, axis: str, rows: Sequence[Sequence[int]]) -> Part:
        """Return the part of an axis of which these rows of factors are tried."""
        columns = [f"{axis}.{level}" for level in self.levels[axis]]
        return listed(axis, columns, np.array(rows, dtype=np.int64), "a tile of the space")

    @abstractmethod
    def schedule_of(self, point: Sequence[int] | Integers) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""

    @abstractmethod
    def schedule(self, tiles: Mapping[str, Sequence[int]]) -> Schedule:
        """Build the schedule with these factors; what is left out has a default, see the template's own."""

    @abstractmethod
    def point_of(self, schedule: Schedule) -> Integers:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or does not fit the space.
        """

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...] | None:
        """Return groups of columns of an axis whose products say what the innermost code does along it.

        None where the template does not tell that apart.
        """
        return None

    def lane_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of the lanes of points' vectors that hold results, (num_points,) float64."""
        return np.ones(len(points))

    def microkernel_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the share of the peak that points' microkernels reached when measured alone, (num_points,) float64.

        None where the hardware's spec has no such measurements, or they are not of this workload's microkernels.
        """
        return None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the entries of a point: factors axis by axis ("i.block", ...), then the choices."""
        return tuple(column for part in self.parts for column in part.columns)

    @cached_property
    def places(self) -> tuple[list[int], ...]:
        """The numbers of the columns that each part fills."""
        return tuple([self.columns.index(column) for column in part.columns] for part in self.parts)

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """Number of rows of each part."""
        return tuple(part.count for part in self.parts)

    @cached_property
    def size(self) -> int:
        """Exact number of points, legal or not."""
        return math.prod(self.radices)

    def table(self, axis: str) -> Integers:
        """Return what `axis` can be, (count, columns) int64; each row is one value of its coordinate."""
        return self.parts[self.axes.index(axis)].table

    def decode(self, coordinates: Integers) -> Integers:
        """Turn coordinates (num_points, len(radices)) into points (num_points, len(columns)), both int64."""
        coordinates = np.atleast_2d(coordinates)
        rows = [part.table[numbers] for part, numbers in zip(self.parts, coordinates.T, strict=True)]
        points = np.concatenate(rows, axis=1)
        return points if self._order is None else points.take(self._order, axis=1)

    @cached_property
    def _order(self) -> Integers | None:
        """Where each column is among those of the parts; None where they are in the same order."""
        places = list(itertools.chain.from_iterable(self.places))
        return None if places == sorted(places) else np.argsort(places)

    def encode(self, points: Integers) -> Integers:
        """Turn points into coordinates: the inverse of `decode`.

        Raises
        ------
        SpaceError
            A point is none of the space's: a wrong number of columns, a wrong product, or a value that is no choice.
        """
        points = np.atleast_2d(np.asarray(points, dtype=np.int64))
        if points.shape[1] != len(self.columns):
            raise SpaceError(f"points have {points.shape[1]} columns, expected {len(self.columns)}: see space.columns")
        coordinates = np.empty((len(points), len(self.parts)), dtype=np.int64)
        for number, (part, places) in enumerate(zip(self.parts, self.places, strict=True)):
            coordinates[:, number] = part.numbers(points[:, places])
        return coordinates

    def lists(self, point: Integers) -> bool:
        """Whether the space lists a point: one can build others, with an unroll depth of one's own, say."""
        try:
            self.encode(point)
        except SpaceError:
            return False
        return True

    def points_at(self, numbers: Integers) -> Integers:
        """Return the points with these numbers, counted with the last coordinate fastest, 0 <= number < size."""
        return self.decode(np.column_stack(np.unravel_index(numbers, self.radices)))

    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers:
        """Draw `count` points uniformly (with replacement) from the legal part of the space.

        Returns
        -------
        (count, len(columns)) int64
            Fewer rows only if next to nothing in the space is legal.
        """
        keep = self._is_legal if checked_flag("sample: legal", legal) else None
        return _draw_points(self.radices, self.decode, keep, count, seed)

    def sample(self, count: int, seed: int = 0) -> list[Schedule]:
        """Draw `count` legal schedules uniformly, with replacement; the same seed gives the same ones."""
        return [self.schedule_of(point) for point in self.sample_points(count, seed)]

    def _values(self, point: object) -> list[int]:
        """Return the entries of a point as Python's integers.

        Raises
        ------
        SpaceError
            It is no vector of as many integers as there are columns, each >= 0.
        """
        values = point.tolist() if isinstance(point, np.ndarray) and point.dtype.kind in "iu" else point
        if (
            not isinstance(values, (list, tuple))
            or len(values) != len(self.columns)
            or not all(isinstance(value, (int, np.integer)) and 0 <= value < 2**31 for value in values)
        ):
            raise SpaceError(f"point is {shown(point)}, expected {len(self.columns)} integers >= 0: see space.columns")
        return [int(value) for value in values]

    def _tiles(self, values: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the factors of each axis, the first entries of a point."""
        tiles, at = {}, 0
        for axis in self.axes:
            width = len(self.levels[axis])
            tiles[axis] = tuple(values[at : at + width])
            at += width
        return tiles

    def _covering(
        self,
        tiles: Mapping[str, Sequence[int]],
        example: str,
        extents: Mapping[str, int],
        lanes: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, tuple[int, ...]]:
        """Return the factors of a schedule of tiles that need not divide the extents; what is left out is 1.

        Parameters
        ----------
        example : str
            Tiles as a caller writes them.
        extents : mapping of str to int
            Axis -> what its tiles cover, of those that have tiles.
        lanes : mapping of str to int
            Axis -> its last factor, where that is not chosen.
        """
        if not isinstance(tiles, Mapping):
            raise SpaceError(f"schedule: tiles is a mapping, such as {example}")
        check_names("tiles", tiles, self.axes, self.axis_word)
        ones = {axis: (1,) * len(self.levels[axis]) for axis in extents}
        return {
            axis: covering_factors(axis, tiles.get(axis, ones[axis]), self.levels[axis], extent, lanes.get(axis))
            for axis, extent in extents.items()
        }

    def _check_own(self, schedule: object) -> None:
        """Raise SpaceError if something is no schedule of this space's template and workload."""
        found = checked_schedule("schedule", schedule)
        if found.template != self.template or found.workload != self.workload:
            raise SpaceError(
                f"schedule of {found.workload.describe()!r} ({found.template}) used with {self!r}; "
                "build it with this space's schedule()"
            )


def _draw_points(
    radices: Sequence[int],
    decode: Callable[[Integers], Integers],
    keep: Callable[[Integers], NDArray[np.bool_]] | None,
    count: int,
    seed: int,
) -> Integers:
    """Draw `count` points uniformly, with replacement, from those that `keep` accepts (None: all).

    Parameters
    ----------
    radices : sequence of int
        Number of choices of each coordinate.
    decode : callable
        (num_points, len(radices)) coordinates -> (num_points, columns) points, both int64.

    Returns
    -------
    (count, columns) int64
        Fewer rows only if next to nothing is accepted.

    Raises
    ------
    SpaceError
        `count` or `seed` is no integer >= 0, or there are too many of them.
    """
    count = checked_integer("sample: count", count, 0, MOST_POINTS)
    rng = np.random.default_rng(checked_integer("sample: seed", seed, 0, MOST_SEED))
    found = [decode(np.zeros((0, len(radices)), dtype=np.int64))]
    have, wanted = 0, max(4 * count, 1024)
    at_once = min(wanted, _MOST_DRAWN)
    for _ in range(_ROUNDS * -(-wanted // at_once)):
        if have >= count:
            break
        points = decode(np.column_stack([rng.integers(0, radix, at_once) for radix in radices]))
        if keep is not None:
            points = points[keep(points)]
        found.append(points)
        have += len(points)
    return np.concatenate(found)[:count]
