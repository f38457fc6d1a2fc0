"""The model's ranking, corrected by what is measured, on CPUs: the default strategy there.

Candidates are a pool of a few thousand points: the top of the ranking, the best points of several hundred microkernels,
and the neighbourhoods of the best measured points. What is measured of one carries over to others by their microkernel,
tiles, packing and by what binds them.
"""

from __future__ import annotations

import numpy as np

from anatune.search.learning.features import Features, Similarity, features_of
from anatune.search.learning.kriging import Kriging
from anatune.search.learning.observing import ObservingStrategy
from anatune.search.neighbours import Moves, first_pool
from anatune.search.points import Floats, Integers
from anatune.templates.cpu.model.model import CpuModel

__all__ = ["ModelStrategy"]


_KERNEL = Similarity()


class ModelStrategy(ObservingStrategy[Features]):
    """Asks for the best points of the model's ranking, corrected after every trial; deterministic for a seed."""

    model: CpuModel
    num_ranked = 16
    """Points of the model's ranking that are in the pool."""
    num_combined = 400
    """Points of a neighbourhood that are two steps away."""

    def _begin(self) -> Kriging[Features]:
        self._moves = Moves(self.model.space)
        return Kriging(_KERNEL)

    def _features(self, points: Integers) -> tuple[Floats, Features]:
        times, features = features_of(self.model, points)
        return np.log(times), features

    def _closeness(self, one: Features, many: Features) -> Floats:
        """Return how much points share with a failed one: 1 for the same microkernel and packing."""
        similarity = _KERNEL._replace(tiles_std=0.0, shares_std=0.0)
        return similarity.covariance(one, many) / similarity.variance

    def _first(self) -> Integers:
        ranked = self._ranked if self._ranked is not None else self.model.rank(self.num_ranked).points
        return first_pool(self.model, self._moves, np.asarray(ranked), self.seed)

    def _next(self) -> Integers | None:
        """Return the ranking's first point, whose order decides between ties; from then on as `ObservingStrategy`."""
        if self._numbers:
            return super()._next()
        if self._pool is None:
            self._pool = self._candidates(self._first())
        return self._pool.points[0] if len(self._pool.points) else None

    def _near(self, point: Integers) -> Integers:
        rng = np.random.default_rng([self.seed, *np.abs(point).tolist()])
        near = self._moves.neighbours(self.space.encode(point)[0], self.num_combined, rng)
        points = self.space.decode(np.array(sorted(set(map(tuple, near.tolist()))), dtype=np.int64))
        legal: Integers = points[self.model.check(points) == 0]
        return legal
