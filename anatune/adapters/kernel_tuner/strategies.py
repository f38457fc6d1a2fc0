"""Strategies for Kernel Tuner that use the predicted order of a pruned space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from anatune.adapters.kernel_tuner.names import Value, Values
from anatune.adapters.kernel_tuner.space import PrunedSpace, import_kernel_tuner
from anatune.arguments import quote
from anatune.errors import SpaceError

_PATIENCE = 50
"""The number of repeated requests, over the size of the space, after which a search ends."""


Results: TypeAlias = list[dict[str, Value]]
"""The result of ``tune_kernel``: configurations with their times."""


class _Options(Protocol):
    """The part of Kernel Tuner's options of a search that is read here."""

    strategy_options: dict[str, object]


class _Searchspace(Protocol):
    """The methods of Kernel Tuner's space that are used here."""

    size: int

    def is_param_config_valid(self, config: Values) -> bool: ...
    def get_random_sample(self, count: int) -> list[Values]: ...
    def get_random_neighbor(self, config: Values, neighbor_method: str | None = None, **options: Value) -> Values: ...


class _Runner(Protocol):
    """The method of Kernel Tuner's runner that is used here."""

    def run(self, parameter_space: list[list[Value]], tuning_options: _Options) -> Results: ...


class Ordered:
    """A strategy for ``tune_kernel(strategy=...)`` that runs the kept configurations in predicted order.

    Its only options are ``max_fevals`` and ``time_limit``.

    Parameters
    ----------
    space : PrunedSpace
    """

    def __init__(self, space: PrunedSpace) -> None:
        self.space = space

    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results:
        """Run the search; Kernel Tuner calls this."""
        common = import_kernel_tuner(".strategies.common")
        stop = import_kernel_tuner(".util").StopCriterionReached
        common.get_options(tuning_options.strategy_options, {}, unsupported=["x0"])
        cost = common.CostFunc(searchspace, tuning_options, runner)
        try:
            for config in self.space.configs:
                if searchspace.is_param_config_valid(tuple(config.values())):
                    cost(list(config.values()), check_restrictions=False)
        except stop:
            pass
        results: Results = cost.results
        return results


class Within:
    """A strategy for ``tune_kernel(strategy=...)``: one of Kernel Tuner's own, adapted to a pruned space.

    If the strategy draws its first configurations at random (a starting point, a population, a whole sample), it gets
    those of `PrunedSpace.population` instead. Later draws are random. Kernel Tuner's strategies expect that every
    configuration has neighbours and that there is always another one to try. In a pruned space, a configuration without
    neighbours gets a random one as its neighbour, and a search that repeats itself for long ends.

    Parameters
    ----------
    space : PrunedSpace
    strategy : str
        The name of a strategy in Kernel Tuner: "genetic_algorithm", "greedy_ils", "pso", ...
    best_first : bool
        Whether to begin with the best predicted configurations instead of random ones.

    Raises
    ------
    SpaceError
        Kernel Tuner has no such strategy.
    MissingDependencyError
        Kernel Tuner is not installed.
    """

    def __init__(self, space: PrunedSpace, strategy: str, *, best_first: bool = True) -> None:
        names = import_kernel_tuner(".interface").strategy_map
        if strategy not in names:
            raise SpaceError(f"strategy {quote(strategy)} is not in Kernel Tuner, expected one of {', '.join(names)}")
        self.space, self.strategy, self.best_first = space, strategy, best_first

    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results:
        """Run the search; Kernel Tuner calls this."""
        strategy = import_kernel_tuner(".interface").strategy_map[self.strategy]
        replacements = {
            (searchspace, "get_random_sample"): self._make_sample(searchspace),
            (searchspace, "get_random_neighbor"): _make_neighbour(searchspace),
            (runner, "run"): _stop_when_stale(runner, searchspace.size),
        }
        for (owner, name), method in replacements.items():
            setattr(owner, name, method)
        try:
            results: Results = strategy.tune(searchspace, runner, tuning_options)
        finally:
            for owner, name in replacements:
                delattr(owner, name)
        return results

    def _make_sample(self, searchspace: _Searchspace) -> Callable[[int], list[Values]]:
        allowed, draw = searchspace.is_param_config_valid, searchspace.get_random_sample
        best = [tuple(values) for values in self.space.population(len(self.space)) if allowed(tuple(values))]
        fresh = {"one", "population"} if self.best_first and best else set()

        def sample(count: int) -> list[Values]:
            purpose = "one" if count == 1 else "population"
            if purpose not in fresh:
                return list(draw(count))
            fresh.discard(purpose)
            chosen = best[:count]
            chosen_set = set(chosen)
            others = draw(searchspace.size) if len(chosen) < count else []
            return chosen + [other for other in others if other not in chosen_set][: count - len(chosen)]

        return sample


def _make_neighbour(searchspace: _Searchspace) -> Callable[..., Values | None]:
    """Return a function that draws a neighbour, also for configurations without neighbours."""
    draw, any_of = searchspace.get_random_neighbor, searchspace.get_random_sample

    def draw_neighbour(config: Values, neighbor_method: str | None = None, **options: Value) -> Values | None:
        neighbour_config = draw(config, neighbor_method=neighbor_method, **options)
        # repair() tries wider and wider neighbourhoods, and Hamming is the widest
        return neighbour_config if neighbour_config is not None or neighbor_method != "Hamming" else any_of(1)[0]

    return draw_neighbour


def _stop_when_stale(runner: _Runner, size: int) -> Callable[..., Results]:
    """Return a replacement for the runner's method that ends a search which only repeats configurations."""
    run, seen = runner.run, set()
    stop = import_kernel_tuner(".util").StopCriterionReached
    repeats = 0

    def run_or_stop(parameter_space: Iterable[Sequence[Value]], tuning_options: _Options) -> Results:
        nonlocal repeats
        configs = [tuple(config) for config in parameter_space]
        repeats = 0 if any(config not in seen for config in configs) else repeats + len(configs)
        seen.update(configs)
        if repeats > _PATIENCE * size:
            raise stop(f"no new configuration in the last {repeats} requests")
        return run([list(config) for config in configs], tuning_options)

    return run_or_stop
