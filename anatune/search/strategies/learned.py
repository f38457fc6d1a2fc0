"""The model's ranking, corrected by what is measured, on GPUs and on lists of recorded points.

As `ranked` on CPUs: kriging of log(measured / predicted), here over the features of `Model.feature_table`. Each
question is the candidate of the smallest corrected time; the first ones and then every second one may gain a multiple
of their uncertainty (a lower confidence bound). Candidates are the top of the ranking, drawn points of the space that
are predicted fast, and the neighbours of the best measured points; of a list, all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.model.base import Model
from anatune.model.cpu.model import CpuModel
from anatune.search.knobs import knobs_of
from anatune.search.learning.correction import Batch, Correction
from anatune.search.learning.observing import ObservingStrategy
from anatune.search.learning.scaled import Scale, Scaled, SquaredExponential, scale_of
from anatune.search.options import read_options
from anatune.search.strategies.ranked import ModelStrategy
from anatune.search.table import TableSpace

__all__ = ["LearnedOptions", "LearnedStrategy", "model_strategy"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class LearnedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the strategy "model" on GPUs and on lists of points.

    Attributes
    ----------
    num_ranked : int
        Points of the model's ranking that are candidates.
    num_drawn, num_kept : int
        Points drawn from the space; of them, the fastest predicted ones that are candidates.
    num_first : int
        First questions, all of which explore.
    exploration : float
        Standard deviations that a point may gain while it explores.
    num_centres : int
        Best measured points whose neighbours are candidates.
    failure_penalty : float
        Added to the log time of points like those that failed, at most.
    residual_std, length, noise_std, knob_weight : float
        Prior of the residuals: standard deviation; distance, as a share of the typical one of two points, that reduces
        what they have in common to exp(-1/2); noise; weight of a tuner's own parameters among the features.
        Source: replay of the recorded CLBlast and AutoTVM tables, bench/replay/search.py.
    """

    num_ranked: int = 64
    num_drawn: int = 20_000
    num_kept: int = 1_000
    num_first: int = 6
    exploration: float = 1.5
    num_centres: int = 3
    failure_penalty: float = 0.5
    residual_std: float = 0.4
    length: float = 0.5
    noise_std: float = 0.05
    knob_weight: float = 3.0


class _Candidates(NamedTuple):
    points: Integers
    log_times: Floats
    batch: Batch[Scaled]


class LearnedStrategy(ObservingStrategy):
    """Asks for the best points of the ranking, corrected after every trial; deterministic for a seed.

    What it asks depends only on the seed, on the set of told trials, and on what it asked that was not told.

    Parameters
    ----------
    model, seed, start, ranked, options
        As for `search.base.make_strategy`; the model is corrected already where a saved correction applies.
    """

    options_type: ClassVar[type[msgspec.Struct]] = LearnedOptions

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 0,
        start: str = "model",
        ranked: Integers | None = None,
        options: msgspec.Struct | Mapping[str, Any] | None = None,
    ) -> None:
        settings: Any = read_options(self.options_type, options)
        self._similarity = SquaredExponential(settings.residual_std**2, settings.noise_std)
        correction: Correction[Scaled] = Correction(self._similarity, clip=0.5)
        super().__init__(model, seed=seed, ranked=ranked, options=settings, correction=correction)
        self._scale: Scale | None = None
        self._pool: _Candidates | None = None
        self._around: dict[bytes, _Candidates] = {}

    def _note(self, point: Integers) -> None:
        """Make a point an observation."""
        key = point.tobytes()
        if key not in self._numbers:
            self._first()  # it sets the scale
            log_times, features = self._features(point[None, :])
            self._log_times[key] = float(log_times[0])
            self._numbers[key] = self._correction.observe(features)

    # ---- the next question -----------------------------------------------------------------------------------

    def _next(self) -> Integers | None:
        residuals, failed = self._outcomes()
        mean, weights = self._correction.solve(residuals)
        pools = [self._first(), *(self._neighbourhood(key) for key in self._centres(residuals))]
        number = len(self._numbers)
        explores = number < self._options.num_first or number % 2 == 1
        best: tuple[float, int, int] | None = None
        for of, pool in enumerate(pools):
            pool.batch.extend(self._correction.factor, self._correction.observed)
            bound = pool.log_times + mean + weights @ pool.batch.rows
            if explores:
                bound -= self._options.exploration * np.sqrt(pool.batch.variance)
            for features in failed:
                closeness = self._similarity.covariance(features, pool.batch.features) / self._similarity.variance
                bound += self._options.failure_penalty * closeness
            bound = np.round(bound, 9)  # equal points stay equal, whatever was observed first
            at = self._first_new(pool, bound)
            if at is not None and (best is None or bound[at] < best[0]):
                best = (float(bound[at]), of, at)
        if best is None:
            return None
        point: Integers = pools[best[1]].points[best[2]]
        self._note(point)
        return point

    def _first_new(self, pool: _Candidates, bound: Floats) -> int | None:
        """Return the row of the smallest bound whose point is no observation yet; the first of equal ones."""
        width = min(len(bound), len(self._numbers) + 1)
        if not width:
            return None
        limit = np.partition(bound, width - 1)[width - 1]
        rows = np.flatnonzero(bound <= limit)
        for row in rows[np.argsort(bound[rows], kind="stable")].tolist():
            if pool.points[row].tobytes() not in self._numbers:
                return int(row)
        return None

    def _centres(self, residuals: dict[int, float]) -> list[bytes]:
        """Return the best measured points, best first; none of a list, all of which is in the pool."""
        return [] if isinstance(self._model.space, TableSpace) else super()._centres(residuals)

    # ---- the pool --------------------------------------------------------------------------------------------

    def _features(self, points: Integers) -> tuple[Floats, Scaled]:
        assert self._scale is not None
        return np.log(self._model.times(points)[0]), self._scale.apply(self._model.feature_table(points).values)

    def _first(self) -> _Candidates:
        """Return the candidates that do not depend on measurements, in an order of their own."""
        if self._pool is None:
            space, options = self._model.space, self._options
            if isinstance(space, TableSpace):
                points = space.points
            else:
                ranked = self._ranked
                if ranked is None or len(ranked) < options.num_ranked:
                    ranked = self._model.rank(options.num_ranked, distinct=True).points
                drawn = space.sample_points(options.num_drawn, self._seed)
                if len(drawn):
                    drawn = drawn[np.argsort(self._model.times(drawn)[0], kind="stable")[: options.num_kept]]
                points = np.unique(np.concatenate([np.asarray(ranked, dtype=np.int64), drawn]), axis=0)
            table = self._model.feature_table(points)
            weight = np.where([name.startswith("knob_") for name in table.names], options.knob_weight, 1.0)
            self._scale = scale_of(table.values, weight, options.length)
            log_times = np.log(self._model.times(points)[0])
            order = np.argsort(log_times, kind="stable")
            features = self._scale.apply(table.values[order])
            self._pool = _Candidates(points[order], log_times[order], Batch(features, self._similarity))
        return self._pool

    def _neighbourhood(self, key: bytes) -> _Candidates:
        """Return the legal points around a point."""
        if key not in self._around:
            point = np.frombuffer(key, dtype=np.int64)
            knobs = knobs_of(self._model)
            near = [knobs.neighbours(point, hops, (self._seed, hops)) for hops in (1, 2)]
            points = np.unique(np.concatenate(near), axis=0)
            log_times, features = self._features(points) if len(points) else (np.empty(0), self._empty())
            self._around[key] = _Candidates(points, log_times, Batch(features, self._similarity))
        return self._around[key]

    def _empty(self) -> Scaled:
        assert self._scale is not None
        return self._scale.apply(np.empty((0, len(self._scale.varies))))


def model_strategy(model: Model, **settings: Any) -> ModelStrategy | LearnedStrategy:
    """Return the default strategy for a model: `search.strategies.ranked` on CPUs, `LearnedStrategy` elsewhere."""
    return ModelStrategy(model, **settings) if isinstance(model, CpuModel) else LearnedStrategy(model, **settings)


model_strategy.options_type = LearnedOptions  # type: ignore[attr-defined]
