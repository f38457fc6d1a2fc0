"""What all strategies of this package are made of: a model, its space, a seed, settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.search.options import read_options
from anatune.templates.base.model import Model

__all__ = ["OptionsT", "SpaceStrategy"]

Integers = NDArray[np.int64]
OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)

_NUM_RANKED = 16


class SpaceStrategy(ABC, Generic[OptionsT]):
    """A `search.base.Strategy` for the space of a model; what it learns and keeps is made in `_prepare`.

    Parameters
    ----------
    model, seed, start, ranked, options
        As for `search.base.make_strategy`.

    Raises
    ------
    SpaceError
        `options` are not those of this strategy.
    """

    options_type: type[OptionsT]

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        start: str = "model",
        ranked: Integers | None = None,
        options: msgspec.Struct | Mapping[str, object] | None = None,
    ) -> None:
        self.model, self.space = model, model.space
        self.seed = seed
        self.as_published = start == "paper"
        self._ranked = ranked
        self.options = cast("OptionsT", read_options(self.options_type, options))
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
