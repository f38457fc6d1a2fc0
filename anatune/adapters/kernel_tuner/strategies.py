"""Strategies for Kernel Tuner that know the predicted order of a pruned space."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from anatune.adapters.kernel_tuner.names import Value, Values
from anatune.adapters.kernel_tuner.space import PrunedSpace, import_kernel_tuner
from anatune.arguments import shown
from anatune.errors import SpaceError

_PATIENCE = 50
"""Requests for known configurations, over those there are, after which a search has seen what it can reach."""


Results: TypeAlias = list[dict[str, Value]]
"""What ``tune_kernel`` returns: configurations with their times."""


class _Options(Protocol):
    """Kernel Tuner's options of one search, as far as they are read here."""

    strategy_options: dict[str, object]


class _Searchspace(Protocol):
    """Kernel Tuner's space, as far as it is used here."""

    size: int

    def is_param_config_valid(self, config: Values) -> bool: ...
    def get_random_sample(self, count: int) -> list[Values]: ...
    def get_random_neighbor(self, config: Values, neighbor_method: str | None = None, **options: Value) -> Values: ...


class _Runner(Protocol):
    """Kernel Tuner's runner, as far as it is used here."""

    def run(self, parameter_space: list[list[Value]], tuning_options: _Options) -> Results: ...


class Ordered:
    """A strategy for ``tune_kernel(strategy=...)``: the kept configurations one after the other, best first.

    Its only options are ``max_fevals`` and ``time_limit``.

    Parameters
    ----------
    space : PrunedSpace
    """

    def __init__(self, space: PrunedSpace) -> None:
        self.space = space

    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results:
        """Search; what Kernel Tuner calls."""
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
        found: Results = cost.results
        return found


class Within:
    """A strategy for ``tune_kernel(strategy=...)``: one of Kernel Tuner's, at home in a pruned space.

    Where the strategy would draw its first configurations at random (a starting point, a population, a whole sample),
    it gets those of `PrunedSpace.population`; later draws are random again. Kernel Tuner's strategies expect every
    configuration to have neighbours, and always another one to try: one without gets any other as its neighbour, and
    a search that asks for nothing new any more ends.

    Parameters
    ----------
    space : PrunedSpace
    strategy : str
        A strategy's name in Kernel Tuner: "genetic_algorithm", "greedy_ils", "pso", ...
    best_first : bool
        Whether to begin with the best predicted, else at random.

    Raises
    ------
    SpaceError
        Kernel Tuner has no such strategy.
    MissingDependencyError
        It is not installed.
    """

    def __init__(self, space: PrunedSpace, strategy: str, *, best_first: bool = True) -> None:
        known = import_kernel_tuner(".interface").strategy_map
        if strategy not in known:
            raise SpaceError(
                f"strategy {shown(strategy)} is unknown to Kernel Tuner, expected one of {', '.join(known)}"
            )
        self.space, self.strategy, self.best_first = space, strategy, best_first

    def tune(self, searchspace: _Searchspace, runner: _Runner, tuning_options: _Options) -> Results:
        """Search; what Kernel Tuner calls."""
        strategy = import_kernel_tuner(".interface").strategy_map[self.strategy]
        mended = {
            (searchspace, "get_random_sample"): self._sample(searchspace),
            (searchspace, "get_random_neighbor"): _neighbour(searchspace),
            (runner, "run"): _ending(runner, searchspace.size),
        }
        for (owner, name), method in mended.items():
            setattr(owner, name, method)
        try:
            found: Results = strategy.tune(searchspace, runner, tuning_options)
        finally:
            for owner, name in mended:
                delattr(owner, name)
        return found

    def _sample(self, searchspace: _Searchspace) -> Callable[[int], list[Values]]:
        allowed, draw = searchspace.is_param_config_valid, searchspace.get_random_sample
        best = [tuple(values) for values in self.space.population(len(self.space)) if allowed(tuple(values))]
        fresh = {"one", "population"} if self.best_first and best else set()

        def sample(count: int) -> list[Values]:
            kind = "one" if count == 1 else "population"
            if kind not in fresh:
                return list(draw(count))
            fresh.discard(kind)
            chosen = best[:count]
            known = set(chosen)
            others = draw(searchspace.size) if len(chosen) < count else []
            return chosen + [other for other in others if other not in known][: count - len(chosen)]

        return sample


def _neighbour(searchspace: _Searchspace) -> Callable[..., Values | None]:
    """Return a draw of a neighbour that finds one for lonely configurations, too."""
    draw, any_of = searchspace.get_random_neighbor, searchspace.get_random_sample

    def neighbour(config: Values, neighbor_method: str | None = None, **options: Value) -> Values | None:
        found = draw(config, neighbor_method=neighbor_method, **options)
        # repair() asks for wider neighbourhoods before it gives up: only the widest is the last word
        return found if found is not None or neighbor_method != "Hamming" else any_of(1)[0]

    return neighbour


def _ending(runner: _Runner, size: int) -> Callable[..., Results]:
    """Return the runner's method, which ends a search that has asked for nothing new for long."""
    run, seen = runner.run, set()
    stop = import_kernel_tuner(".util").StopCriterionReached
    old = 0

    def ending(parameter_space: Iterable[Sequence[Value]], tuning_options: _Options) -> Results:
        nonlocal old
        configs = [tuple(config) for config in parameter_space]
        old = 0 if any(config not in seen for config in configs) else old + len(configs)
        seen.update(configs)
        if old > _PATIENCE * size:
            raise stop(f"nothing new in {old} requests")
        return run([list(config) for config in configs], tuning_options)

    return ending
