"""What strategies share: points as dictionary keys, and which points are the same program."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.space.cpu import CpuSpace
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.model.cpu.order import loop_nest

__all__ = ["Points", "Seen", "program_key"]

Integers = NDArray[np.int64]


def program_key(space: Any, point: Integers) -> Hashable:
    """Return a key that is equal for points whose programs are: of a CPU space, those with the same loop nest."""
    if isinstance(space, CpuSpace):
        return loop_nest(space, point)
    return point.tobytes()


class Points:
    """Schedules to points and points to coordinates, for one model; keeps its look-up tables."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._space = model.space
        self._tilings: dict[str, dict[tuple[int, ...], int]] = {}

    def legal_point(self, schedule: Schedule) -> Integers | None:
        """Return the point of `schedule`, None if it is none of the model's space or not legal there."""
        try:
            point: Integers = self._space.point_of(schedule)
        except (SpaceError, KeyError):
            return None
        if len(point) != len(self._space.columns) or self.coordinates(point) is None:
            return None
        return point if int(self._model.check(point)[0]) == 0 else None

    def coordinates(self, point: Integers) -> Integers | None:
        """Return what `space.encode` returns for one point, None if it is no point of the space."""
        if not isinstance(self._space, CpuSpace):
            try:
                encoded: Integers = self._space.encode(point)[0]
            except SpaceError:
                return None
            return encoded
        space = self._space
        values = point.tolist()
        first_pair = pair = sum(len(space.levels[axis]) for axis in space.axes)
        at = 0
        found: list[int] = []
        for axis in space.axes:
            row = values[at : at + len(space.levels[axis])]
            at += len(row)
            if axis in space.pairable:
                row.append(values[pair])
                pair += 1
            index = self._lookup(axis).get(tuple(row))
            if index is None:
                return None
            found.append(index)
        rest = values[first_pair + len(space.pairable) :]
        if any(not 0 <= value < radix for value, radix in zip(rest, space.radices[len(found) :], strict=True)):
            return None
        return np.array([*found, *rest], dtype=np.int64)

    def _lookup(self, axis: str) -> dict[tuple[int, ...], int]:
        if axis not in self._tilings:
            rows = self._space.table(axis).tolist()
            self._tilings[axis] = {tuple(row): index for index, row in enumerate(rows)}
        return self._tilings[axis]


class Seen:
    """Programs that were asked for or told."""

    def __init__(self, model: Any) -> None:
        self._space = model.space
        self._known = Points(model)
        self._keys: set[Hashable] = set()

    def add(self, point: Integers) -> bool:
        """Note a point; return whether its program is new."""
        key = program_key(self._space, point)
        if key in self._keys:
            return False
        self._keys.add(key)
        return True

    def tell(self, trials: Sequence[Trial]) -> None:
        """Note the programs of trials."""
        for trial in trials:
            point = self._known.legal_point(trial.schedule)
            if point is not None:
                self.add(point)
