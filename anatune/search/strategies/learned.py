"""The model's ranking, corrected by what is measured, on GPUs and on lists of recorded points.

Kriging of log(measured / predicted), here over the features of the model. Candidates are the top of the ranking, drawn
points of the space that are predicted fast, and the neighbours of the best measured points; of a list, all of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatune.search.knobs import knobs_of
from anatune.search.learning.kriging import Kriging
from anatune.search.learning.observing import ObservingOptions, ObservingStrategy
from anatune.search.learning.scaled import Scale, Scaled, SquaredExponential, scale_of
from anatune.search.strategies.ranked import ModelStrategy
from anatune.templates import template_named
from anatune.templates.base.model import Model

__all__ = ["LearnedOptions", "LearnedStrategy", "model_strategy"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class LearnedOptions(ObservingOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the strategy "model" on GPUs and on lists of points, beside those of `ObservingOptions`.

    Attributes
    ----------
    num_ranked : int
        Points of the model's ranking that are candidates.
    num_drawn, num_kept : int
        Points drawn from the space; of them, the fastest predicted ones that are candidates.
    residual_std, length, noise_std, knob_weight : float
        Prior of the residuals: standard deviation; distance, as a share of the typical one of two points, that reduces
        what they have in common to exp(-1/2); noise; weight of a tuner's own parameters among the features.
        Source: replay of the recorded CLBlast and AutoTVM tables, bench/replay/search.py.
    """

    num_ranked: int = 64
    num_drawn: int = 20_000
    num_kept: int = 1_000
    residual_std: float = 0.4
    length: float = 0.5
    noise_std: float = 0.05
    knob_weight: float = 3.0


class LearnedStrategy(ObservingStrategy[LearnedOptions, Scaled]):
    """Asks for the best points of the ranking, corrected after every trial; deterministic for a seed.

    The model is corrected already where a saved correction applies.
    """

    options_type = LearnedOptions

    def _begin(self) -> Kriging[Scaled]:
        return Kriging(SquaredExponential(self.options.residual_std**2, self.options.noise_std), clip=0.5)

    @cached_property
    def _promising(self) -> Integers:
        """The first candidates, in no order."""
        space, options = self.space, self.options
        if space.listed is not None:
            return space.listed
        ranked = self._ranked
        if ranked is None or len(ranked) < options.num_ranked:
            ranked = self.model.rank(options.num_ranked, distinct=True).points
        drawn = space.sample_points(options.num_drawn, self.seed)
        if len(drawn):
            drawn = drawn[np.argsort(self.model.times(drawn)[0], kind="stable")[: options.num_kept]]
        return np.unique(np.concatenate([np.asarray(ranked, dtype=np.int64), drawn]), axis=0)

    @cached_property
    def _scale(self) -> Scale:
        table = self.model.feature_table(self._promising)
        weight = np.where([name.startswith("knob_") for name in table.names], self.options.knob_weight, 1.0)
        return scale_of(table.values, weight, self.options.length)

    def _features(self, points: Integers) -> tuple[Floats, Scaled]:
        if not len(points):
            return np.empty(0), self._scale.apply(np.empty((0, len(self._scale.varies))))
        return np.log(self.model.times(points)[0]), self._scale.apply(self.model.feature_table(points).values)

    def _first(self) -> Integers:
        points = self._promising
        return points[np.argsort(np.log(self.model.times(points)[0]), kind="stable")]

    def _near(self, point: Integers) -> Integers:
        knobs = knobs_of(self.model)
        near = [knobs.neighbours(point, hops, (self.seed, hops)) for hops in (1, 2)]
        return np.unique(np.concatenate(near), axis=0)


def model_strategy(model: Model, **settings: Any) -> ObservingStrategy[Any, Any]:
    """Return the default strategy for a model: its template's where the model is as it is, else `LearnedStrategy`."""
    plain = model.space.listed is None and not model.is_corrected
    ranked = plain and template_named(model.space.template).learner == "ranked"
    made: Any = ModelStrategy if ranked else LearnedStrategy
    strategy: ObservingStrategy[Any, Any] = made(model, **settings)
    return strategy
