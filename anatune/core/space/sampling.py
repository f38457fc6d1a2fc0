"""Uniform samples of a tile space; the GPU and the CPU space share them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import MOST_SEED, checked_flag, checked_integer, shown
from anatune.core.rules.values import checked_count
from anatune.core.schedule import Schedule, checked_schedule
from anatune.core.workload.nest import Workload
from anatune.errors import SpaceError

__all__ = ["SampledSpace", "checked_count", "draw_points"]

MOST_POINTS = 1_000_000
"""Most points of one sample: some hundred bytes each, as schedules some thousand."""
_MOST_DRAWN = 1 << 18
"""Points drawn at once."""
ROUNDS = 400
"""Draws after which a space counts as having next to no legal point."""


def draw_points(
    radices: Sequence[int],
    decode: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None,
    count: int,
    seed: int,
) -> NDArray[np.int64]:
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
    for _ in range(ROUNDS * -(-wanted // at_once)):
        if have >= count:
            break
        points = decode(np.column_stack([rng.integers(0, radix, at_once) for radix in radices]))
        if keep is not None:
            points = points[keep(points)]
        found.append(points)
        have += len(points)
    return np.concatenate(found)[:count]


class SampledSpace(ABC):
    """What tile spaces share: uniform samples of their coordinates."""

    workload: Workload
    template: str
    _is_legal: Callable[[NDArray[np.int64]], NDArray[np.bool_]]

    @property
    @abstractmethod
    def radices(self) -> tuple[int, ...]:
        """Number of choices of each coordinate."""

    @abstractmethod
    def decode(self, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
        """Turn coordinates (num_points, len(radices)) into points (num_points, len(columns)), both int64."""

    @abstractmethod
    def schedule_of(self, point: Sequence[int] | NDArray[np.int64]) -> Schedule:
        """Decode one point (a vector in the order of the space's columns) into a Schedule."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Names of the entries of a point."""

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

    def _check_own(self, schedule: object) -> None:
        """Raise SpaceError if something is no schedule of this space's template and workload."""
        found = checked_schedule("schedule", schedule)
        if found.template != self.template or found.workload != self.workload:
            raise SpaceError(
                f"schedule of {found.workload.describe()!r} ({found.template}) used with {self!r}; "
                "build it with this space's schedule()"
            )

    def sample_points(self, count: int, seed: int, *, legal: bool = True) -> NDArray[np.int64]:
        """Draw `count` points uniformly (with replacement) from the legal part of the space.

        Returns
        -------
        (count, len(columns)) int64
            Fewer rows only if next to nothing in the space is legal.
        """
        keep = self._is_legal if checked_flag("sample: legal", legal) else None
        return draw_points(self.radices, self.decode, keep, count, seed)

    def sample(self, count: int, seed: int = 0) -> list[Schedule]:
        """Draw `count` legal schedules uniformly, with replacement; the same seed gives the same ones."""
        return [self.schedule_of(point) for point in self.sample_points(count, seed)]
