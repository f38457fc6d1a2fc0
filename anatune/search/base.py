"""The interface of search strategies, and the table of all strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from anatune.arguments import check_choice
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
"""Name -> ``module:class``, imported when it is first used.

A class is called with (model, seed=, start=, ranked=), see `make_strategy`.
"""

BLIND = ("random", "grid")
"""Strategies that never use the model."""

_KINDS = {int: "an integer", float: "a number"}

STARTS = ("model", "paper")
"""Starts of a strategy: "model" begins with the model's ranking, "paper" as published."""


@runtime_checkable
class Strategy(Protocol):
    """A search strategy: it proposes schedules and learns from trials.

    A strategy never measures, waits, prints or manages a budget. It proposes only legal schedules, and none of them
    twice. Its next proposals depend only on its seed, the set of trials reported to it, and the proposals whose
    trials are missing. So trials may arrive in any order, in parts, or all at once to a new object, which is
    how a session resumes. The exception are proposals made with ``ahead=True``: they and later ones depend on what was
    known then.

    Attributes
    ----------
    least_samples : int
        Number of samples of each schedule that its decisions need, even if the schedule is clearly slower than the
        best.
        Samples of each candidate that its decisions need, also where the candidate is clearly slower than the best.
    """

    least_samples: int

    def ask(self, n: int, *, ahead: bool = False) -> list[Schedule]:
        """Return up to `n` schedules to measure.

        Fewer are returned if the strategy needs trials first. An empty list while no trial is missing means that it has
        finished. With `ahead`, devices would be idle otherwise: the strategy continues without the missing trials if it
        has something sensible to propose; these trials may still be reported later.
        """
        ...

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from trials, in any order; failed trials and schedules that were not proposed are welcome."""
        ...


def check_strategy(name: str) -> str:
    """Return `name` with its settings in alphabetic order, if there is such a strategy.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`, perhaps with settings of its class: ``bayes:acquisition=ei,memory=500``.

    Raises
    ------
    UnknownNameError
        The strategy or the setting is unknown; the message lists the known ones.
    SpaceError
        A setting is given twice or has a value that is not allowed.
    """
    return _parse_strategy(name)[0]


def _parse_strategy(name: str) -> tuple[str, Any]:
    """Return a strategy's name with sorted settings, and its class (with settings: a subclass that has them)."""
    plain, colon, words = name.partition(":") if isinstance(name, str) else (name, "", "")
    check_choice("strategy", plain, tuple(STRATEGIES), UnknownNameError)
    if not colon:
        return plain, STRATEGIES[plain]
    strategy_class = resolve(STRATEGIES[plain])
    options: Mapping[str, tuple[Any, ...]] = getattr(strategy_class, "options", {})
    if not options:
        raise UnknownNameError(f"strategy {name!r}: {plain} has no settings; write {plain!r}")
    settings: dict[str, object] = {}
    for word in words.split(","):
        setting, _, text = (part.strip() for part in word.partition("="))
        check_choice(f"setting of the strategy {plain}", setting, tuple(options), UnknownNameError)
        label = f"strategy {plain}: {setting}"
        if setting in settings:
            raise SpaceError(f"{label} is given twice, expected one value; leave out one")
        if isinstance(options[setting][0], str):
            settings[setting] = check_choice(label, text, options[setting], SpaceError)
        else:
            settings[setting] = _parse_number(label, text, type(getattr(strategy_class, setting)), *options[setting])
    sorted_words = ",".join(f"{setting}={settings[setting]}" for setting in sorted(settings))
    return f"{plain}:{sorted_words}", type(strategy_class.__name__, (strategy_class,), settings)


def _parse_number(label: str, text: str, number_type: type[int] | type[float], least: float, most: float) -> float:
    """Return the number in a text if it is in the range."""
    try:
        number = number_type(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise SpaceError(f"{label} is {text!r}, expected {_KINDS[number_type]} from {least:g} to {most:g}")
    return number


def check_start(start: str) -> str:
    """Return `start` if it is one of `STARTS`.

    Raises
    ------
    UnknownNameError
        The start is unknown; the message lists the known ones.
    """
    return check_choice("start", start, STARTS, UnknownNameError)


def make_strategy(
    name: str, model: Model, *, seed: int = 0, start: str = "model", ranked: Integers | None = None
) -> Strategy:
    """Make a new strategy.

    Parameters
    ----------
    name : str
        One of `STRATEGIES`, perhaps with settings, see `check_strategy`.
    model
        Analytical model of the workload on the hardware, from `anatune.api.model`.
    seed : int
        Seed of its random choices, >= 0.
    start : {"model", "paper"}
        "model": start from the model's ranking; "paper": as published. The default strategy has no published form;
        "random" and "grid" never use the model.
    ranked : (num_points, num_columns) int64, optional
        First points of the model's ranking, best first, if they are known already.

    Raises
    ------
    UnknownNameError
        The strategy, a setting or the start is unknown.
    SpaceError
        A setting has a value that is not allowed.
    """
    class_or_name = _parse_strategy(name)[1]
    strategy: Strategy = (resolve(class_or_name) if isinstance(class_or_name, str) else class_or_name)(
        model, seed=seed, start=check_start(start), ranked=ranked
    )
    return strategy
