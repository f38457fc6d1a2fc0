"""Strategies that go through a fixed sequence of points, whatever is measured."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.points import Seen
from anatune.search.strategy import OptionsT, SpaceStrategy

__all__ = ["SequenceStrategy"]


class SequenceStrategy(SpaceStrategy[OptionsT]):
    """Asks for the points of `sequence` in order, each program once, without those already told."""

    def _prepare(self) -> None:
        self._seen = Seen(self.model)
        self._points = self.sequence()

    @abstractmethod
    def sequence(self) -> Iterator[NDArray[np.int64]]:
        """Yield legal points; ends where the space is used up."""

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the space is used up."""
        found: list[Schedule] = []
        while len(found) < n:
            point = next(self._points, None)
            if point is None:
                break
            if self._seen.add(point):
                found.append(self.space.schedule_of(point))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Note what was measured, so as not to ask for it."""
        self._seen.tell(trials)
