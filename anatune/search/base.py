"""What a search strategy is, and which there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.errors import UnknownNameError

__all__ = ["DEFAULT_STRATEGY", "STRATEGIES", "Strategy", "check_strategy", "make_strategy"]

DEFAULT_STRATEGY = "model"

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "model": "anatune.search.ranked:ModelStrategy",
        "random": "anatune.search.random:RandomStrategy",
        "grid": "anatune.search.grid:GridStrategy",
    }
)
"""Name -> ``module:class``, imported on first use.

A class is called with (model, seed=, start=): the analytical model of the workload on the hardware (with its
``.space``), the seed of all random choices, and the first points of the model's ranking, best first (None: rank when
needed).
"""


@runtime_checkable
class Strategy(Protocol):
    """Proposes schedules and learns from trials.

    A strategy never measures, waits, prints or owns a budget. It asks only for legal schedules, and for none twice.
    What it asks next depends on nothing but its seed, the set of trials it was told and what it asked for that has not
    come back: telling in another order, in parts, or all at once to a new object (that is how a session resumes) leads
    to the same questions.
    """

    def ask(self, n: int) -> list[Schedule]:
        """Return up to `n` schedules to measure.

        Fewer: it wants to be told first. None although nothing is outstanding: it is finished.
        """
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials, in any order; failed ones and schedules that were never asked for are welcome."""
        ...


def check_strategy(name: str) -> str:
    """Return `name` if there is such a strategy.

    Raises
    ------
    UnknownNameError
        There is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise UnknownNameError(f"unknown strategy {name!r}, expected one of {', '.join(STRATEGIES)}")
    return name


def make_strategy(name: str, model: Any, *, seed: int = 0, start: Any = None) -> Strategy:
    """Return a new strategy.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`.
    model
        Analytical model of the workload on the hardware, from `anatune.api.model`.
    seed : int
        Of its random choices, >= 0.
    start : (num_points, num_columns) int64, optional
        First points of the model's ranking, best first, where they are known already.

    Raises
    ------
    UnknownNameError
        No such strategy.
    """
    module, _, attribute = STRATEGIES[check_strategy(name)].partition(":")
    strategy: Strategy = getattr(import_module(module), attribute)(model, seed=seed, start=start)
    return strategy
