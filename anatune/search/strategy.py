"""Base classes of the strategies: a model, its space and a seed; and strategies with a fixed sequence of points.

The settings of a strategy are attributes of its class; a subclass may have others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.points import Integers, SeenPrograms
from anatune.templates.base.model import Model

_NUM_RANKED = 16


class SpaceStrategy(ABC):
    """Base class of a `search.base.Strategy` for the space of one model; `_prepare` creates its state.

    Parameters
    ----------
    model, seed, start, ranked
        As in `search.base.make_strategy`.
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
        """Create the state of the strategy."""

    @abstractmethod
    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer if it needs trials first (not with `ahead`) or has finished."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from trials; schedules that are not legal points of this space are ignored."""

    @property
    def ranked(self) -> Integers:
        """First points of the model's ranking, best first."""
        if self._ranked is None:
            self._ranked = self.model.rank(_NUM_RANKED).points
        return np.asarray(self._ranked, dtype=np.int64)


class SequenceStrategy(SpaceStrategy):
    """Base class of strategies that propose a fixed sequence of points, each unreported program once."""

    def _prepare(self) -> None:
        self._seen = SeenPrograms(self.model)
        self._points = self.sequence()

    @abstractmethod
    def sequence(self) -> Iterator[Integers]:
        """Yield legal points until the space is exhausted."""

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return the next `n` schedules; fewer only if the space is exhausted."""
        schedules: list[Schedule] = []
        while len(schedules) < n:
            point = next(self._points, None)
            if point is None:
                break
            if self._seen.add(point):
                schedules.append(self.space.schedule_of(point))
        return schedules

    def tell(self, trials: Sequence[Trial]) -> None:
        """Record which programs were measured, so that they are not proposed."""
        self._seen.tell(trials)
