"""Strategies that go through a fixed sequence of points, whatever is measured."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.model.base import Model
from anatune.search.options import NoOptions, read_options
from anatune.search.points import Seen

__all__ = ["SequenceStrategy"]


class SequenceStrategy(abc.ABC):
    """Asks for the points of `sequence` in order, each program once, without those already told.

    Parameters
    ----------
    model, seed, start, ranked, options
        As for `search.base.make_strategy`; `start` and `ranked` are not used.

    Raises
    ------
    SpaceError
        `options` are not those of this strategy.
    """

    options_type: ClassVar[type[msgspec.Struct]] = NoOptions

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        start: str = "model",
        ranked: NDArray[np.int64] | None = None,
        options: msgspec.Struct | Mapping[str, Any] | None = None,
    ) -> None:
        self._as_published = start == "paper"
        self._ranked = ranked
        self._options: Any = read_options(self.options_type, options)
        self._model = model
        self._space = model.space
        self._seed = seed
        self._seen = Seen(model)
        self._points = self.sequence()

    @abc.abstractmethod
    def sequence(self) -> Iterator[NDArray[np.int64]]:
        """Yield legal points; ends where the space is used up."""

    def ask(self, n: int) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the space is used up."""
        found: list[Schedule] = []
        while len(found) < n:
            point = next(self._points, None)
            if point is None:
                break
            if self._seen.add(point):
                found.append(self._space.schedule_of(point))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Note what was measured, so as not to ask for it."""
        self._seen.tell(trials)
