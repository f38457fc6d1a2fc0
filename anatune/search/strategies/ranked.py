"""Default strategy for CPUs: the model's ranking, corrected by measurements.

Two mechanisms correct the ranking. Trees (LightGBM) that were trained on records of other workloads predict the model's
errors before anything is measured, and are refitted after every few trials. Kriging of the remaining errors is updated
after every trial; without records it is the only correction.

Candidates are a pool of a few thousand points: the best of the ranking, the best points of several hundred
microkernels, and the neighbourhoods of the best measured points. A measurement carries over to points with a similar
microkernel, tiles, packing and binding resources.
"""

from __future__ import annotations

import numpy as np

from anatune.model.learned.corrected import CorrectedModel
from anatune.search.learning.features import Features, Similarity, compute_features
from anatune.search.learning.kriging import Kriging
from anatune.search.learning.observing import ObservingStrategy
from anatune.search.neighbours import Moves, make_first_pool
from anatune.search.points import Floats, Integers
from anatune.templates.cpu.model.model import CpuModel

REFIT_AFTER = 4
"""Number of trials of a session after which trees are refitted. Source: bench.experiments.learn_cpu."""
_KERNEL = Similarity()
_LEFT = Similarity(kernel_std=0.036, tiles_std=0.012, shares_std=0.051)
"""Covariance of the errors that the trees leave. Source: bench.experiments.learn_cpu."""


class ModelStrategy(ObservingStrategy[Features]):
    """The best points of the model's ranking, corrected after every trial; deterministic for a seed.

    Parameters
    ----------
    model : CpuModel or CorrectedModel
        A corrected model has trees that were trained on other workloads; the ranking is that of the analytical model.
    seed, start, ranked
        As in `search.base.make_strategy`.
    """

    model: CpuModel | CorrectedModel
    num_ranked = 16
    """Number of points of the model's ranking that are in the pool."""
    num_combined = 400
    """Number of points of a neighbourhood that are two steps away."""
    refit_after = REFIT_AFTER
    """Number of trials after which the trees are refitted."""

    def _begin(self) -> Kriging[Features]:
        plain = self.model.plain
        assert isinstance(plain, CpuModel)
        self._plain = plain
        self._moves = Moves(plain.space)
        self._fitted: list[tuple[float, bytes]] = []
        """Logarithms of times, and points, to which the trees were refitted."""
        return Kriging(_LEFT if self.model.is_corrected else _KERNEL)

    def _features(self, points: Integers) -> tuple[Floats, Features]:
        times, features = compute_features(self._plain, points)
        return self._predict_log_times(points) if self.model.is_corrected else np.log(times), features

    def _closeness(self, failed: Features, many: Features) -> Floats:
        """Return the similarity of points with a failed one: 1 for the same microkernel and packing."""
        similarity = _KERNEL._replace(tiles_std=0.0, shares_std=0.0)
        return similarity.covariance(failed, many) / similarity.variance

    def _first(self) -> Integers:
        ranked = self._ranked if self._ranked is not None else self._plain.rank(self.num_ranked).points
        return make_first_pool(self._plain, self._moves, np.asarray(ranked), self.seed)

    def _next(self) -> Integers | None:
        """Return the ranking's first point, which decides between ties; then the point of `ObservingStrategy`."""
        if self._numbers:
            self._refit()
            return super()._next()
        if self._pool is None:
            self._pool = self._candidates(self._first())
        return self._pool.points[0] if len(self._pool.points) else None

    def _refit(self) -> None:
        """Refit the trees to the first trials of the session by number, as many as a multiple of `refit_after`."""
        if not isinstance(self.model, CorrectedModel):
            return
        count = len(self._measured) // self.refit_after * self.refit_after
        by_trial = sorted((min(trial.number for trial in self._values[key]), key) for key in self._measured)
        first = [(self._measured[key], key) for _, key in by_trial[:count]]
        if first == self._fitted:  # compare the trials: one of the first may arrive late
            return
        self._fitted = first
        points = np.array([np.frombuffer(key, dtype=np.int64) for _, key in first])
        self.model = self.model.refit(points, np.exp([log_time for log_time, _ in first]))
        self._predict_anew()

    def _near(self, point: Integers) -> Integers:
        rng = np.random.default_rng([self.seed, *np.abs(point).tolist()])
        near = self._moves.neighbours(self.space.encode(point)[0], self.num_combined, rng)
        points = self.space.decode(np.array(sorted(set(map(tuple, near.tolist()))), dtype=np.int64))
        legal: Integers = points[self.model.check(points) == 0]
        return legal
