"""The model's ranking, corrected by what is measured: the default strategy.

Candidates are a pool of a few thousand points: the top of the ranking, the best points of several hundred microkernels,
and the neighbourhoods of the best measured points. Each question is the candidate of the smallest corrected time minus
a multiple of its uncertainty (a lower confidence bound), where points that are being measured count as known. Nothing
is known at first, so that the first questions are the best points of different microkernels, in predicted order; later
every second question asks for the best estimate, without a bonus for what is unknown: exploration never takes over.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anatune.core.schedule import Schedule
from anatune.core.trial import Outcome, Trial
from anatune.errors import SpaceError
from anatune.model.cpu_model import CpuModel
from anatune.search.correction import Batch, Correction
from anatune.search.features import Features, Similarity, features_of
from anatune.search.neighbours import Moves, first_pool
from anatune.search.options import read_options
from anatune.search.points import Points, program_key

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


class ModelStrategy:
    """Asks for the best points of the model's ranking, corrected after every trial; deterministic for a seed.

    What it asks depends only on the seed, on the set of told trials, and on what it asked that was not told.

    Parameters
    ----------
    model, seed, start, ranked, options
        As for `search.base.make_strategy`.
    """

    options_type: ClassVar[type[msgspec.Struct]] = ModelOptions

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
        self._model = model
        self._ranked = ranked
        self._seed = seed
        self._options: Any = read_options(self.options_type, options)
        self._correction: Correction[Features] = Correction(_KERNEL)
        self._moves = Moves(model.space)
        self._known = Points(model)
        self._pool: _Candidates | None = None
        self._around: dict[bytes, _Candidates] = {}
        self._programs: set[Hashable] = set()
        self._numbers: dict[bytes, int] = {}
        """Point -> number of its observation."""
        self._log_times: dict[bytes, float] = {}
        self._values: dict[bytes, list[Trial]] = {}

    # ---- ask and tell ----------------------------------------------------------------------------------------

    def ask(self, n: int) -> list[Schedule]:
        """Return the next `n` schedules; fewer only when the pool is used up."""
        found: list[Schedule] = []
        while len(found) < n:
            point = self._next()
            if point is None:
                break
            found.append(self._model.space.schedule_of(point))
        return found

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials; those that are not legal points of this space are left out."""
        for trial in trials:
            point = self._known.legal_point(trial.schedule)
            if point is None:
                continue
            self._note(point)
            self._values.setdefault(point.tobytes(), []).append(trial)

    def _note(self, point: Integers) -> None:
        """Make a point an observation."""
        key = point.tobytes()
        if key not in self._numbers:
            times, features = features_of(self._model, point[None, :])
            self._log_times[key] = math.log(times[0])
            self._numbers[key] = self._correction.observe(features)
            self._programs.add(program_key(self._model.space, point))

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
                if point.tobytes() not in self._numbers and program_key(self._model.space, point) not in self._programs:
                    self._note(point)
                    return point
            if width == len(together):
                return None
            width *= 4

    def _outcomes(self) -> tuple[dict[int, float], list[Features]]:
        """Return the residual of each measured point, and the points that failed."""
        measured: dict[bytes, list[Trial]] = {}
        failed = []
        for key in sorted(self._values):
            good = [trial for trial in self._values[key] if trial.measurement.time_s is not None]
            if good:
                measured[key] = good
            elif all(trial.measurement.outcome is not Outcome.LOST_DEVICE for trial in self._values[key]):
                failed.append(self._correction.observed[self._numbers[key]])
        relative = all(trial.measurement.relative is not None for good in measured.values() for trial in good)
        residuals = {}
        for key, good in measured.items():
            values = sorted((t.measurement.relative if relative else t.measurement.time_s) or math.nan for t in good)
            residuals[self._numbers[key]] = math.log(values[len(values) // 2]) - self._log_times[key]
        return residuals, failed

    def _centres(self, residuals: dict[int, float]) -> list[bytes]:
        """Return the best measured points, best first."""
        measured = [key for key in self._numbers if self._numbers[key] in residuals]
        measured.sort(key=lambda key: (residuals[self._numbers[key]] + self._log_times[key], key))
        return measured[: self._options.num_centres]

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
            coordinates = self._known.coordinates(point)
            assert coordinates is not None  # it was asked or accepted
            near = self._moves.neighbours(coordinates, self._options.num_combined, rng)
            points = space.decode(np.array(sorted(set(map(tuple, near.tolist()))), dtype=np.int64))
            self._around[key] = self._candidates(points[self._model.check(points) == 0])
        return self._around[key]

    def _candidates(self, points: Integers) -> _Candidates:
        times, features = features_of(self._model, points)
        return _Candidates(points, np.log(times), Batch(features, self._correction.similarity))
