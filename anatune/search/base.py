"""What a search strategy is, and which there are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from anatune.arguments import checked_choice
from anatune.core.schedule import Schedule
from anatune.core.trial import Trial
from anatune.errors import SpaceError, UnknownNameError
from anatune.named import resolve
from anatune.search.points import Integers
from anatune.templates.base.model import Model

DEFAULT_STRATEGY = "model"

STRATEGIES: Mapping[str, str] = MappingProxyType(
    {
        "model": "anatune.search.strategies.learned:model_strategy",
        "dgd": "anatune.search.strategies.gradient:GradientStrategy",
        "droplet": "anatune.search.strategies.droplet:DropletStrategy",
        "nose": "anatune.search.strategies.evolution:EvolutionStrategy",
        "bayes": "anatune.search.strategies.bayes:BayesStrategy",
        "structured": "anatune.search.strategies.structured:StructuredStrategy",
        "genetic": "anatune.search.strategies.genetic:GeneticStrategy",
        "genetic-af": "anatune.search.strategies.genetic:AnalyticalGeneticStrategy",
        "random": "anatune.search.strategies.random:RandomStrategy",
        "grid": "anatune.search.strategies.grid:GridStrategy",
    }
)
"""Name -> ``module:class``, imported on first use.

A class is called with (model, seed=, start=, ranked=), see `make_strategy`.
"""

BLIND = ("random", "grid")
"""Strategies that never look at the model."""

_KINDS = {int: "an integer", float: "a number"}

STARTS = ("model", "paper")
"""Where a strategy starts: from the model's ranking, or as it was published."""


@runtime_checkable
class Strategy(Protocol):
    """Proposes schedules and learns from trials.

    A strategy never measures, waits, prints or owns a budget. It asks only for legal schedules, and for none twice.
    What it asks next depends on nothing but its seed, the set of trials it was told and what it asked for that has not
    come back: telling in another order, in parts, or all at once to a new object (that is how a session resumes) leads
    to the same questions. Of one that was asked to go ahead this holds up to that point only: what it asks from then on
    depends on what it knew when.

    Attributes
    ----------
    least_samples : int
        Samples of each candidate that its decisions need, also where the candidate is clearly slower than the best.
    """

    least_samples: int

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return up to `n` schedules to measure.

        Fewer: it wants to be told first. None although nothing is outstanding: it is finished. With `ahead` devices
        would stand still meanwhile: it goes on without the answers that are missing, if it has anything sensible to
        ask; they are welcome whenever they come.
        """
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials, in any order; failed ones and schedules that were never asked for are welcome."""
        ...


def check_strategy(name: str) -> str:
    """Return `name` if there is such a strategy, its settings in alphabetic order.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`, or with settings of its class: ``bayes:acquisition=ei,memory=500``.

    Raises
    ------
    UnknownNameError
        There is none, or it has no such setting; the message lists those there are.
    SpaceError
        A setting has no such value, or two.
    """
    return _parse(name)[0]


def _parse(name: str) -> tuple[str, Any]:
    """Return a strategy's name with sorted settings, and what makes it: its class, or one with these settings."""
    plain, colon, words = name.partition(":") if isinstance(name, str) else (name, "", "")
    checked_choice("strategy", plain, tuple(STRATEGIES), UnknownNameError)
    if not colon:
        return plain, STRATEGIES[plain]
    kind = resolve(STRATEGIES[plain])
    options: Mapping[str, tuple[Any, ...]] = getattr(kind, "options", {})
    if not options:
        raise UnknownNameError(f"strategy {name!r}: {plain} has no settings; write {plain!r}")
    settings: dict[str, object] = {}
    for word in words.split(","):
        setting, _, text = (part.strip() for part in word.partition("="))
        checked_choice(f"setting of the strategy {plain}", setting, tuple(options), UnknownNameError)
        where = f"strategy {plain}: {setting}"
        if setting in settings:
            raise SpaceError(f"{where} is given twice, expected one value; leave out one")
        if isinstance(options[setting][0], str):
            settings[setting] = checked_choice(where, text, options[setting], SpaceError)
        else:
            settings[setting] = _number(where, text, type(getattr(kind, setting)), *options[setting])
    sorted_words = ",".join(f"{setting}={settings[setting]}" for setting in sorted(settings))
    return f"{plain}:{sorted_words}", type(kind.__name__, (kind,), settings)


def _number(where: str, text: str, kind: type[int] | type[float], least: float, most: float) -> float:
    """Return the number that a word says."""
    try:
        number = kind(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise SpaceError(f"{where} is {text!r}, expected {_KINDS[kind]} from {least:g} to {most:g}")
    return number


def check_start(start: str) -> str:
    """Return `start` if it is one of `STARTS`.

    Raises
    ------
    UnknownNameError
        It is not; the message lists them.
    """
    return checked_choice("start", start, STARTS, UnknownNameError)


def make_strategy(
    name: str, model: Model, *, seed: int = 0, start: str = "model", ranked: Integers | None = None
) -> Strategy:
    """Return a new strategy.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`, or with settings, see `check_strategy`.
    model
        Analytical model of the workload on the hardware, from `anatune.api.model`.
    seed : int
        Of its random choices, >= 0.
    start : {"model", "paper"}
        Start from the model's ranking, or as published. The default strategy has no published form; "random" and "grid"
        never look at the model.
    ranked : (num_points, num_columns) int64, optional
        First points of the model's ranking, best first, where they are known already.

    Raises
    ------
    UnknownNameError
        No such strategy, setting or start.
    SpaceError
        A setting has no such value.
    """
    made = _parse(name)[1]
    strategy: Strategy = (resolve(made) if isinstance(made, str) else made)(
        model, seed=seed, start=check_start(start), ranked=ranked
    )
    return strategy
