"""The base class of tile spaces: a space is a product of lists, one for the tilings of each axis, one for each choice.

Notation: a *part* is one of these lists. A *coordinate* is the number of a row in a part. A *point* is the vector of
integers that the chosen rows fill. Only the lists are in memory, and the size is exact.
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

from anatune.arguments import MOST_SEED, check_flag, check_integer, quote
from anatune.core.hardware.spec import HardwareSpec
from anatune.core.schedule import Schedule, check_schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError
from anatune.templates.base.factor import count_factorisations, factorisations
from anatune.templates.base.values import check_names, covering_factors

__all__ = ["MOST_POINTS", "LegalityCheck", "Space", "SpacePart", "choice", "table_part", "tilings"]

Integers = NDArray[np.int64]
LegalityCheck = Callable[[Integers], NDArray[np.bool_]]
"""(num_points, num_columns) int64 -> (num_points,) bool: whether each point keeps the limits of the device."""
MOST_POINTS = 1_000_000
"""Most points of one sample. A point takes about 100 bytes; as a `Schedule` it takes about 1000."""
_MOST_DRAWN = 1 << 18
"""Most points drawn at once."""
_ROUNDS = 400
"""Number of draws without enough legal points after which sampling stops."""


class SpacePart:
    """A list of a space. Each of its rows fills the same columns of a point.

    Parameters
    ----------
    name : str
        Axis or choice, for messages.
    columns : sequence of str
        The columns that a row fills.
    count : int
        Number of rows.
    rows : callable
        Returns the list, (count, len(columns)) int64, all rows different.
    expected : str
        Description of a valid row, for messages.
    """

    def __init__(
        self, name: str, columns: Sequence[str], count: int, rows: Callable[[], Integers], expected: str
    ) -> None:
        self.name, self.columns, self.count = name, tuple(columns), count
        self._rows, self._expected = rows, expected

    def __reduce__(self) -> tuple[object, ...]:
        # The table and other cached values are not sent to other processes.
        return SpacePart, (self.name, self.columns, self.count, self._rows, self._expected)

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
            A row is not in the list.
        """
        data, width, row_numbers = rows.tobytes(), 8 * len(self.columns), self._numbers
        try:
            return [row_numbers[data[at : at + width]] for at in range(0, len(data), width)]
        except KeyError:
            wrong = next(row for row in rows if row.tobytes() not in row_numbers).tolist()
            got = wrong if len(wrong) > 1 else wrong[0]
            raise SpaceError(f"{self.name}: got {got}, expected {self._expected}") from None


def table_part(name: str, columns: Sequence[str], table: Integers, expected: str) -> SpacePart:
    """Return the part whose rows are those of a table."""
    return SpacePart(name, columns, len(table), partial(np.asarray, table), expected)


def tilings(axis: str, levels: Sequence[str], extent: int) -> SpacePart:
    """Return the part of all ordered factorisations of an axis, in lexicographic order."""
    columns = [f"{axis}.{level}" for level in levels]
    rows = partial(factorisations, extent, len(levels))
    return SpacePart(
        axis, columns, count_factorisations(extent, len(levels)), rows, f"factors whose product is {extent}"
    )


def choice(name: str, values: Sequence[int]) -> SpacePart:
    """Return the part of one column that has one of some values."""
    return table_part(name, [name], np.array(values, dtype=np.int64)[:, None], f"one of {tuple(values)}")


class Space(ABC):
    """All schedules of one workload on one device that a template can express.

    Guarantees: deterministic; safe to share between threads (immutable).

    Parameters
    ----------
    workload, hardware
        The computation and the spec of the device.
    is_legal : callable, optional
        Returns which points keep the limits of the device. None: every point is legal.

    Attributes
    ----------
    extents : dict of str to int
        Axis -> its size.
    levels : dict of str to tuple of str
        Axis -> names of its factors in a point, outer to inner.
    choices : dict of str to tuple of int
        Column after the tilings -> its values, ascending.
    """

    template: str
    levels: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[int, ...]]
    axis_word: str = "index"
    """The word for an axis in messages."""
    listed: Integers | None = None
    """All points, if the space is a list of them."""

    def __init__(self, workload: Workload, hardware: HardwareSpec, is_legal: LegalityCheck | None) -> None:
        self.workload = workload
        self.hardware = hardware
        self._is_legal = is_legal
        self.extents: dict[str, int] = dict(workload.extents)
        self.axes: tuple[str, ...] = tuple(self.extents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.workload.describe()} on {self.hardware.name}: {self.size:.4g} points)"

    @cached_property
    def parts(self) -> tuple[SpacePart, ...]:
        """The lists whose product is the space: one for each axis, in their order, then the choices."""
        choices = (choice(name, values) for name, values in self.choices.items())
        return (*(self._axis(axis) for axis in self.axes), *choices)

    def _axis(self, axis: str) -> SpacePart:
        """Return the part of an axis: every perfect tiling, unless the template overrides this."""
        return tilings(axis, self.levels[axis], self.extents[axis])

    def _tiles_of(self, axis: str, rows: Sequence[Sequence[int]]) -> SpacePart:
        """Return the part of an axis whose tiles are these rows of factors."""
        columns = [f"{axis}.{level}" for level in self.levels[axis]]
        return table_part(axis, columns, np.array(rows, dtype=np.int64), "a tile of the space")

    @abstractmethod
    def schedule_of(self, point: Sequence[int] | Integers) -> Schedule:
        """Decode one point (a vector in the order of `columns`) into a Schedule."""

    @abstractmethod
    def schedule(self, tiles: Mapping[str, Sequence[int]]) -> Schedule:
        """Build the schedule with these factors. Factors left out have the defaults of the template."""

    @abstractmethod
    def point_of(self, schedule: Schedule) -> Integers:
        """Return the integer vector of `schedule`, (len(columns),) int64.

        Raises
        ------
        SpaceError
            The schedule belongs to another workload or template, or does not fit the space.
        """

    def microkernel(self, axis: str) -> tuple[tuple[str, ...], ...] | None:
        """Return groups of columns of an axis; the product of each group is a size of the microkernel along the axis.

        The result is None if the template does not distinguish a microkernel.
        """
        return None

    def lane_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of vector lanes that hold results at each point, (num_points,) float64."""
        return np.ones(len(points))

    def microkernel_shares(self, points: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """Return the share of the peak that the microkernel of each point reached when measured alone, float64.

        The array is (num_points,). The result is None if the spec has no such measurements for the microkernels of this
        workload.
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
        """Return the part of `axis` as a table, (count, columns) int64; each row is one value of its coordinate."""
        return self.parts[self.axes.index(axis)].table

    def decode(self, coordinates: Integers) -> Integers:
        """Turn coordinates (num_points, len(radices)) into points (num_points, len(columns)), both int64."""
        coordinates = np.atleast_2d(coordinates)
        rows = [part.table[numbers] for part, numbers in zip(self.parts, coordinates.T, strict=True)]
        points = np.concatenate(rows, axis=1)
        return points if self._order is None else points.take(self._order, axis=1)

    @cached_property
    def _order(self) -> Integers | None:
        """Number of each column of a point among the columns of the parts; None if the orders agree."""
        places = list(itertools.chain.from_iterable(self.places))
        return None if places == sorted(places) else np.argsort(places)

    def encode(self, points: Integers) -> Integers:
        """Turn points into coordinates: the inverse of `decode`.

        Raises
        ------
        SpaceError
            A point is not in the space: the number of columns, a product or a choice is wrong.
        """
        points = np.atleast_2d(np.asarray(points, dtype=np.int64))
        if points.shape[1] != len(self.columns):
            raise SpaceError(
                f"points have {points.shape[1]} columns, expected {len(self.columns)}, named by space.columns"
            )
        coordinates = np.empty((len(points), len(self.parts)), dtype=np.int64)
        for number, (part, places) in enumerate(zip(self.parts, self.places, strict=True)):
            coordinates[:, number] = part.numbers(points[:, places])
        return coordinates

    def lists(self, point: Integers) -> bool:
        """Return whether a point is in the space.

        Schedules outside the space can be built too, for example with another unroll depth.
        """
        try:
            self.encode(point)
        except SpaceError:
            return False
        return True

    def points_at(self, numbers: Integers) -> Integers:
        """Return the points with these numbers, 0 <= number < size. The last coordinate varies fastest."""
        return self.decode(np.column_stack(np.unravel_index(numbers, self.radices)))

    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> Integers:
        """Draw `count` points uniformly (with replacement) from the legal points of the space.

        Returns
        -------
        (count, len(columns)) int64
            Fewer rows only if next to nothing in the space is legal.
        """
        keep = self._is_legal if check_flag("sample: legal", legal) else None
        return _draw_points(self.radices, self.decode, keep, count, seed)

    def sample(self, count: int, seed: int = 0) -> list[Schedule]:
        """Draw `count` legal schedules uniformly, with replacement; the same seed gives the same ones."""
        return [self.schedule_of(point) for point in self.sample_points(count, seed)]

    def _values(self, point: object) -> list[int]:
        """Return the entries of a point as Python integers.

        Raises
        ------
        SpaceError
            It is not a vector of one integer >= 0 for each column.
        """
        values = point.tolist() if isinstance(point, np.ndarray) and point.dtype.kind in "iu" else point
        if (
            not isinstance(values, (list, tuple))
            or len(values) != len(self.columns)
            or not all(isinstance(value, (int, np.integer)) and 0 <= value < 2**31 for value in values)
        ):
            raise SpaceError(
                f"point is {quote(point)}, expected {len(self.columns)} integers >= 0, named by space.columns"
            )
        return [int(value) for value in values]

    def _tiles(self, values: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the factors of each axis, which are the first entries of a point."""
        tiles, start = {}, 0
        for axis in self.axes:
            width = len(self.levels[axis])
            tiles[axis] = tuple(values[start : start + width])
            start += width
        return tiles

    def _covering(
        self,
        tiles: Mapping[str, Sequence[int]],
        example: str,
        extents: Mapping[str, int],
        lanes: Mapping[str, int] = MappingProxyType({}),
    ) -> dict[str, tuple[int, ...]]:
        """Return the factors of tiles that need not divide the extents. Factors left out are 1.

        Parameters
        ----------
        example : str
            Tiles as a caller writes them, for the message of an error.
        extents : mapping of str to int
            Axis -> the extent that its tiles cover, for each axis that has tiles.
        lanes : mapping of str to int
            Axis -> its last factor, if that is fixed.
        """
        if not isinstance(tiles, Mapping):
            raise SpaceError(f"schedule: tiles is {quote(tiles)}, expected a mapping such as {example}")
        check_names("tiles", tiles, self.axes, self.axis_word)
        ones = {axis: (1,) * len(self.levels[axis]) for axis in extents}
        return {
            axis: covering_factors(axis, tiles.get(axis, ones[axis]), self.levels[axis], extent, lanes.get(axis))
            for axis, extent in extents.items()
        }

    def _check_membership(self, schedule: object) -> None:
        """Raise SpaceError if an object is not a schedule of this template and workload."""
        checked = check_schedule("schedule", schedule)
        if checked.template != self.template or checked.workload != self.workload:
            raise SpaceError(
                f"schedule of {checked.workload.describe()!r} ({checked.template}) is not one of {self!r}; "
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
        Number of rows of each coordinate.
    decode : callable
        (num_points, len(radices)) coordinates -> (num_points, columns) points, both int64.

    Returns
    -------
    (count, columns) int64
        Fewer rows only if next to nothing is accepted.

    Raises
    ------
    SpaceError
        `count` or `seed` is not an integer >= 0, or is too large.
    """
    count = check_integer("sample: count", count, 0, MOST_POINTS)
    rng = np.random.default_rng(check_integer("sample: seed", seed, 0, MOST_SEED))
    batches = [decode(np.zeros((0, len(radices)), dtype=np.int64))]
    num_points, num_draws = 0, max(4 * count, 1024)
    at_once = min(num_draws, _MOST_DRAWN)
    for _ in range(_ROUNDS * -(-num_draws // at_once)):
        if num_points >= count:
            break
        points = decode(np.column_stack([rng.integers(0, radix, at_once) for radix in radices]))
        if keep is not None:
            points = points[keep(points)]
        batches.append(points)
        num_points += len(points)
    return np.concatenate(batches)[:count]
