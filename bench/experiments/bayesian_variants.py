"""The variants of Bayesian optimisation in [BO24] that anatune does not offer: subclasses of its strategy."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from anatune.search.points import distinct
from anatune.search.stepwise import Walk
from anatune.search.strategies.bayes import BayesStrategy

__all__ = ["BayesVariant", "Bounds"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class BayesVariant(BayesStrategy):
    """Bayesian optimisation with other choices; with these defaults it asks what `BayesStrategy` asks."""

    acquisition = "ucb"
    """Upper confidence bound, expected improvement ("ei"), probability of improvement ("poi"). Source: [BO24] Sec.
    4.1.3: ucb."""
    xi = 0.0
    """Improvement that counts as none (ei, poi). Source: the default of the library that [BO24] uses: 0."""
    eviction = "reset"
    """When the memory is full: forget all but the inputs, or the oldest points ("lru"). Source: [BO24] Sec. 3.5."""
    selection = "heap"
    """Measure the best of all points, or of each input ("naive"). Source: [BO24] Sec. 3.6."""
    domain_reduction = False
    """Shrink the ranges around the best point, round by round. Source: [BO24] Sec. 3.3.1, after [SDR]."""
    random_share = 0.0
    """Random programs among those that are measured after a round. Source: [BO24] Sec. 3.2: 0.2."""

    def walk(self) -> Walk:
        """Yield rounds."""
        self._bounds = Bounds(len(self.knobs.gene_radices))
        return super().walk()

    def _round(self, number: int) -> Integers:
        if self.domain_reduction:
            scale = np.maximum(self.knobs.gene_radices - 1, 1)
            self._bounds.shrink(self.knobs.genes(self._inputs(number)[:1])[0] / scale)
        chosen = super()._round(number)
        num_random = round(self.random_share * self.round_trials)
        if not num_random:
            return chosen
        return distinct(np.concatenate([chosen, self.draw_new(num_random, 3, number)]))

    def _inside(self, places: Floats) -> Floats:
        return self._bounds.clip(places)

    def _worth(self, mean: Floats, std: Floats) -> Floats:
        """Return how much points are worth to be scored next; larger is better. Source: [BO24] Sec. 2.4.2."""
        if self.acquisition == "ucb":
            return super()._worth(mean, std)
        std = np.maximum(std, 1e-12)
        gain = mean - max(self._memory.values()) - self.xi
        if self.acquisition == "poi":
            return np.asarray(ndtr(gain / std), dtype=np.float64)
        density = np.exp(-0.5 * np.square(gain / std)) / np.sqrt(2.0 * np.pi)
        result: Floats = gain * ndtr(gain / std) + std * density
        return result

    def _make_room(self, inputs: Integers) -> None:
        if self.eviction == "lru":
            del self._memory[next(iter(self._memory))]
        else:
            super()._make_room(inputs)

    def _select(self, points: Integers, owners: Integers, count: int) -> Integers:
        return super()._select(points, owners, count - round(self.random_share * self.round_trials))

    def _rival(self, point: Integers, owner: int) -> Hashable:
        return owner if self.selection == "naive" else super()._rival(point, owner)


class Bounds:
    """Ranges of the genes, as shares of the whole, that shrink around the best point.

    Source: [SDR] (Stander, Craig 2002), with the constants of the library that [BO24] uses: 0.7 against oscillation,
    1.0 for panning, zoom 0.9.
    """

    def __init__(self, num_genes: int) -> None:
        self.low, self.high = np.zeros(num_genes), np.ones(num_genes)
        self._width = np.ones(num_genes)
        self._moved = np.zeros(num_genes)
        self._best: Floats | None = None

    def clip(self, place: Floats) -> Floats:
        """Return places inside the ranges."""
        return np.clip(place, self.low, self.high)

    def shrink(self, best: Floats) -> None:
        """Shrink the ranges around `best`: less where it moves on, more where it oscillates."""
        last = np.full(len(best), 0.5) if self._best is None else self._best
        moved = np.clip(2.0 * (best - last) / self._width, -1.0, 1.0)
        both = moved * self._moved
        turn = np.sign(both) * np.sqrt(np.abs(both))
        contraction = 0.5 * (1.0 * (1.0 + turn) + 0.7 * (1.0 - turn))
        self._width = np.minimum(1.0, self._width * (0.9 + np.abs(moved) * (contraction - 0.9)))
        self._best, self._moved = best, moved
        self.low = np.clip(best - self._width / 2, 0.0, 1.0)
        self.high = np.clip(best + self._width / 2, 0.0, 1.0)
