"""What strategies share: the points of schedules, and which points are the same program."""

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

__all__ = ["Seen", "legal_point", "program_key"]

Integers = NDArray[np.int64]


def program_key(space: Any, point: Integers) -> Hashable:
    """Return a key that is equal for points whose programs are: of a CPU space, those with the same loop nest."""
    if isinstance(space, CpuSpace):
        return loop_nest(space, point)
    return point.tobytes()


def legal_point(model: Any, schedule: Schedule) -> Integers | None:
    """Return the point of `schedule`, None if it is none of the model's space or not legal there."""
    try:
        point: Integers = model.space.point_of(schedule)
        model.space.encode(point)
    except (SpaceError, KeyError):
        return None
    return point if int(model.check(point)[0]) == 0 else None


class Seen:
    """Programs that were asked for or told."""

    def __init__(self, model: Any) -> None:
        self._model, self._space = model, model.space
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
            point = legal_point(self._model, trial.schedule)
            if point is not None:
                self.add(point)
