"""The model's ranking, corrected by what is measured: the default strategy.

Candidates are a pool of a few thousand points: the top of the ranking, the best points of several hundred microkernels,
and the neighbourhoods of the best measured points. Each question is the candidate of the smallest corrected time minus
a multiple of its uncertainty (a lower confidence bound), where points that are being measured count as known. Nothing
is known at first, so that the first questions are the best points of different microkernels, in predicted order; later
every second question asks for the best estimate, without a bonus for what is unknown: exploration never takes over.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.errors import SpaceError
from anatune.model.cpu.model import CpuModel
from anatune.search.learning.correction import Batch, Correction
from anatune.search.learning.features import Features, Similarity, features_of
from anatune.search.learning.observing import ObservingStrategy
from anatune.search.neighbours import Moves, first_pool
from anatune.search.options import read_options

__all__ = ["ModelOptions", "ModelStrategy"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


_KERNEL = Similarity()


class ModelOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the strategy "model".

    Attributes
    ----------
    num_ranked : int
        Points of the model's ranking that are in the pool.
    num_first : int
        First questions, all of which explore.
    exploration : float
        Standard deviations that a point may gain while it explores.
    num_centres : int
        Best measured points whose neighbourhoods are in the pool.
    num_combined : int
        Points of a neighbourhood that are two steps away.
    failure_penalty : float
        Added to the log time of points like those that failed, at most.
    """

    num_ranked: int = 16
    num_first: int = 6
    exploration: float = 1.5
    num_centres: int = 3
    num_combined: int = 400
    failure_penalty: float = 0.5


class _Candidates(NamedTuple):
    """Points with everything about them that does not change."""

    points: Integers
    log_times: Floats
    batch: Batch[Features]


class ModelStrategy(ObservingStrategy):
    """Asks for the best points of the model's ranking, corrected after every trial; deterministic for a seed.

    What it asks depends only on the seed, on the set of told trials, and on what it asked that was not told.

    Parameters
    ----------
    model, seed, start, ranked, options
        As for `search.base.make_strategy`.
    """

    options_type: ClassVar[type[msgspec.Struct]] = ModelOptions
    _model: CpuModel

    def __init__(
        self,
        model: CpuModel,
        *,
        seed: int = 0,
        start: str = "model",
        ranked: Integers | None = None,
        options: msgspec.Struct | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, CpuModel):
            raise SpaceError("strategy 'model' searches CPU spaces only, so far; use 'random' or 'grid'")
        super().__init__(
            model, seed=seed, ranked=ranked, options=read_options(self.options_type, options),
            correction=Correction(_KERNEL),
        )  # fmt: skip
        self._moves = Moves(model.space)
        self._pool: _Candidates | None = None
        self._around: dict[bytes, _Candidates] = {}
        self._programs: set[Hashable] = set()

    def _note(self, point: Integers) -> None:
        """Make a point an observation."""
        key = point.tobytes()
        if key not in self._numbers:
            times, features = features_of(self._model, point[None, :])
            self._log_times[key] = math.log(times[0])
            self._numbers[key] = self._correction.observe(features)
            self._programs.add(self._model.program_key(point))

    # ---- the next question -----------------------------------------------------------------------------------

    def _next(self) -> Integers | None:
        residuals, failed = self._outcomes()
        mean, weights = self._correction.solve(residuals)
        pools = [self._first(), *(self._neighbourhood(key) for key in self._centres(residuals))]
        number = len(self._numbers)
        explores = number < self._options.num_first or number % 2 == 1
        bonus = self._options.exploration if explores else 0.0
        bounds = []
        for pool in pools:
            pool.batch.extend(self._correction.factor, self._correction.observed)
            bound = pool.log_times + mean + weights @ pool.batch.rows
            if bonus:
                bound -= bonus * np.sqrt(pool.batch.variance)
            for features in failed:
                bound += self._options.failure_penalty * self._closeness(features, pool.batch.features)
            bounds.append(np.round(bound, 9))  # equal points stay equal, whatever was observed first
        together = np.concatenate(bounds)
        owner = np.repeat(np.arange(len(pools)), [len(bound) for bound in bounds])
        first = np.cumsum([0, *(len(bound) for bound in bounds)])
        width = 64
        while True:
            width = min(width, len(together))
            best = np.argpartition(together, width - 1)[:width] if width else np.empty(0, dtype=np.int64)
            for at in best[np.lexsort((best, together[best]))].tolist():
                of = int(owner[at])
                point: Integers = pools[of].points[at - first[of]]
                if point.tobytes() not in self._numbers and self._model.program_key(point) not in self._programs:
                    self._note(point)
                    return point
            if width == len(together):
                return None
            width *= 4

    def _closeness(self, one: Features, many: Features) -> Floats:
        """Return how much points share with a failed one: 1 for the same microkernel and packing."""
        similarity = _KERNEL._replace(tiles_std=0.0, shares_std=0.0)
        return similarity.covariance(one, many) / similarity.variance

    # ---- the pool --------------------------------------------------------------------------------------------

    def _first(self) -> _Candidates:
        """Return the part of the pool that does not depend on measurements."""
        if self._pool is None:
            start = self._ranked
            if start is None:
                start = self._model.rank(self._options.num_ranked).points
            self._pool = self._candidates(first_pool(self._model, self._moves, np.asarray(start), self._seed))
        return self._pool

    def _neighbourhood(self, key: bytes) -> _Candidates:
        """Return the legal points around a point."""
        if key not in self._around:
            space = self._model.space
            point = np.frombuffer(key, dtype=np.int64)
            rng = np.random.default_rng([self._seed, *np.abs(point).tolist()])
            near = self._moves.neighbours(space.encode(point)[0], self._options.num_combined, rng)
            points = space.decode(np.array(sorted(set(map(tuple, near.tolist()))), dtype=np.int64))
            self._around[key] = self._candidates(points[self._model.check(points) == 0])
        return self._around[key]

    def _candidates(self, points: Integers) -> _Candidates:
        times, features = features_of(self._model, points)
        return _Candidates(points, np.log(times), Batch(features, self._correction.similarity))
