"""What evolutionary strategies share: first populations, parents by roulette, crossover, mutation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from anatune.search.knobs import Knobs
from anatune.search.points import Floats, Integers, distinct

__all__ = ["first_population", "mutate", "roulette", "single_point_crossover"]


_DRAWN = 20
"""Random points for each one that is kept, where the model chooses the first population."""


def first_population(knobs: Knobs, size: int, draw: Callable[..., Integers], ranked: Integers | None) -> Integers:
    """Return up to `size` different points: random ones, or (with `ranked`) those and the best predicted of many."""
    if ranked is None:
        return distinct(draw(size, 0))
    drawn = draw(_DRAWN * size, 0)
    drawn = drawn[np.argsort(knobs.model.times(drawn)[0], kind="stable")]
    return distinct(np.concatenate([ranked, drawn]))[:size]


def roulette(fitness: Floats, count: int, rng: np.random.Generator) -> Integers:
    """Return `count` indices drawn with probabilities proportional to `fitness` >= 0 (equal ones if all are 0)."""
    total = float(fitness.sum())
    chances = fitness / total if total > 0 else None
    return np.asarray(rng.choice(len(fitness), count, p=chances), dtype=np.int64)


def single_point_crossover(one: Integers, other: Integers, rng: np.random.Generator) -> Integers:
    """Return children with the first genes of `one` and the last of `other`, (num_children, G)."""
    place = rng.integers(1, max(one.shape[1], 2), len(one))
    return np.where(np.arange(one.shape[1])[None, :] < place[:, None], one, other)


def mutate(genes: Integers, radices: Integers, chance: float, rng: np.random.Generator) -> Integers:
    """Return genes of which each is replaced, with probability `chance`, by a uniform one."""
    drawn = (rng.random(genes.shape) * radices).astype(np.int64)
    return np.where(rng.random(genes.shape) < chance, drawn, genes)
