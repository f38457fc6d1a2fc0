"""Common helpers of strategies: points of schedules, programs that were proposed, equal points."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.templates.base.model import Model

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Booleans: TypeAlias = NDArray[np.bool_]


def find_legal_point(model: Model, schedule: Schedule) -> Integers | None:
    """Return the point of `schedule`, or None if it is not in the model's space or not legal."""
    try:
        point = model.space.point_of(schedule)
        model.space.encode(point)
    except (SpaceError, KeyError):
        return None
    return point if int(model.check(point)[0]) == 0 else None


class SeenPrograms:
    """The programs that were proposed or reported."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._keys: set[Hashable] = set()

    def add(self, point: Integers) -> bool:
        """Add a point; return whether its program is new."""
        key = self._model.program_key(point)
        if key in self._keys:
            return False
        self._keys.add(key)
        return True

    def tell(self, trials: Sequence[Trial]) -> None:
        """Add the programs of trials."""
        for trial in trials:
            point = find_legal_point(self._model, trial.schedule)
            if point is not None:
                self.add(point)


def drop_repeats(points: Integers) -> Integers:
    """Return the points without repetition, in the order of their first appearance."""
    first: dict[bytes, int] = {}  # numpy.unique sorts rows, which takes ten times as long
    for number, row in enumerate(points):
        first.setdefault(row.tobytes(), number)
    return points[list(first.values())]


def count_predecessors(ids: Integers) -> Integers:
    """Return for each entry how many equal entries precede it."""
    order = np.argsort(ids, kind="stable")
    grouped = ids[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    sizes = np.diff(np.r_[starts, len(ids)])
    result = np.empty(len(ids), dtype=np.int64)
    result[order] = np.arange(len(ids)) - np.repeat(starts, sizes)
    return result
