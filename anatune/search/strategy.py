"""What all strategies of this package are made of: a model, its space, a seed; those that go through a fixed sequence.

Settings of a strategy are attributes of its class; a subclass may have others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.points import Integers, Seen
from anatune.templates.base.model import Model

_NUM_RANKED = 16


class SpaceStrategy(ABC):
    """A `search.base.Strategy` for the space of a model; what it learns and keeps is made in `_prepare`.

    Parameters
    ----------
    model, seed, start, ranked
        As for `search.base.make_strategy`.
    """

    least_samples = 1

    def __init__(self, model: Model, *, seed: int = 0, start: str = "model", ranked: Integers | None = None) -> None:
        self.model, self.space = model, model.space
        self.seed = seed
        self.as_published = start == "paper"
        self._ranked = ranked
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what the strategy keeps."""

    @abstractmethod
    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer where it has to be told first (not with `ahead`) or is finished."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those that are not legal points of this space are left out."""

    @property
    def ranked(self) -> Integers:
        """First points of the model's ranking, best first."""
        if self._ranked is None:
            self._ranked = self.model.rank(_NUM_RANKED).points
        return np.asarray(self._ranked, dtype=np.int64)


class SequenceStrategy(SpaceStrategy):
    """Asks for the points of `sequence` in order, whatever is measured: each program once, without those told."""

    def _prepare(self) -> None:
        self._seen = Seen(self.model)
        self._points = self.sequence()

    @abstractmethod
    def sequence(self) -> Iterator[Integers]:
        """Yield legal points; ends where the space is used up."""

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the space is used up."""
        asked: list[Schedule] = []
        while len(asked) < n:
            point = next(self._points, None)
            if point is None:
                break
            if self._seen.add(point):
                asked.append(self.space.schedule_of(point))
        return asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Note what was measured, so as not to ask for it."""
        self._seen.tell(trials)
