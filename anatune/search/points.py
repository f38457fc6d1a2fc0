"""What strategies share: the points of schedules, and which programs were met."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.errors import SpaceError
from anatune.templates.base.model import Model

__all__ = ["Seen", "legal_point"]

Integers = NDArray[np.int64]


def legal_point(model: Model, schedule: Schedule) -> Integers | None:
    """Return the point of `schedule`, None if it is none of the model's space or not legal there."""
    try:
        point = model.space.point_of(schedule)
        model.space.encode(point)
    except (SpaceError, KeyError):
        return None
    return point if int(model.check(point)[0]) == 0 else None


class Seen:
    """Programs that were asked for or told."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._keys: set[Hashable] = set()

    def add(self, point: Integers) -> bool:
        """Note a point; return whether its program is new."""
        key = self._model.program_key(point)
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
