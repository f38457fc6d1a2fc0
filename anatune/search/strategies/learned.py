"""Strategy for GPUs and for lists of recorded points: the model's ranking, corrected by measurements.

The correction is kriging of log(measured / predicted) over the features of the model, and over the leaves of a learned
correction if there is one. Candidates are the best of the ranking, random points that are predicted fast, and the
neighbours of the best measured points; for a list, all of its points.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from anatune.search.knobs import make_knobs
from anatune.search.learning.kriging import Kriging
from anatune.search.learning.observing import ObservingStrategy
from anatune.search.learning.scaled import FeatureScale, LeafCovariance, LeafFeatures, fit_scale
from anatune.search.points import Floats, Integers
from anatune.search.strategies.ranked import ModelStrategy
from anatune.templates import get_template
from anatune.templates.base.model import Model


class LearnedStrategy(ObservingStrategy[LeafFeatures]):
    """The best points of the ranking, corrected after every trial; deterministic for a seed.

    If a saved correction applies, the model includes it.
    """

    num_ranked = 64
    """Number of points of the model's ranking that are candidates."""
    num_drawn = 20_000
    num_kept = 1_000
    """Number of random points of the space, and of those among them that are candidates, the fastest predicted."""
    residual_std = 0.4
    length = 0.5
    noise_std = 0.05
    knob_weight = 3.0
    """Prior of the residuals: standard deviation; length, as a share of the typical distance of two points, that
    reduces the correlation to exp(-1/2); noise; weight of a tuner's own parameters among the features. Source: replay
    of the recorded CLBlast and AutoTVM tables, bench/replay/search.py."""
    corrected_std = 0.3
    leaf_share = 0.5
    """Prior with a learned correction: standard deviation; share of the variance that depends on its leaves.
    Source: replay of a third of the recorded Ansor and AutoTVM tables, bench/replay/learning.py."""

    def _begin(self) -> Kriging[LeafFeatures]:
        std = self.corrected_std if self.model.is_corrected else self.residual_std
        return Kriging(LeafCovariance(std**2, self.noise_std, self.leaf_share), clip=0.5)

    @cached_property
    def _promising(self) -> Integers:
        """The first candidates, in no particular order."""
        space = self.space
        if space.listed is not None:
            return space.listed
        ranked = self._ranked
        if ranked is None or len(ranked) < self.num_ranked:
            ranked = self.model.rank(self.num_ranked, distinct=True).points
        drawn = space.sample_points(self.num_drawn, self.seed)
        if len(drawn):
            drawn = drawn[np.argsort(self.model.times(drawn)[0], kind="stable")[: self.num_kept]]
        return np.unique(np.concatenate([np.asarray(ranked, dtype=np.int64), drawn]), axis=0)

    @cached_property
    def _scale(self) -> FeatureScale:
        table = self.model.feature_table(self._promising)
        weight = np.where([name.startswith("knob_") for name in table.names], self.knob_weight, 1.0)
        return fit_scale(table.values, weight, self.length)

    def _features(self, points: Integers) -> tuple[Floats, LeafFeatures]:
        if not len(points):
            empty = np.empty((0, len(self._scale.varies)))
            return np.empty(0), LeafFeatures(*self._scale.apply(empty), self.model.leaves(self._promising)[:0])
        scaled = self._scale.apply(self.model.feature_table(points).values)
        return np.log(self.model.times(points)[0]), LeafFeatures(*scaled, self.model.leaves(points))

    def _first(self) -> Integers:
        points = self._promising
        return points[np.argsort(np.log(self.model.times(points)[0]), kind="stable")]

    def _near(self, point: Integers) -> Integers:
        knobs = make_knobs(self.model)
        near = [knobs.neighbours(point, hops, (self.seed, hops)) for hops in (1, 2)]
        return np.unique(np.concatenate(near), axis=0)


def model_strategy(
    model: Model, *, seed: int = 0, start: str = "model", ranked: Integers | None = None
) -> ModelStrategy | LearnedStrategy:
    """Make the default strategy of a model: that of its template, `LearnedStrategy` for a list of recorded points."""
    is_ranked = model.space.listed is None and get_template(model.space.template).learner == "ranked"
    strategy_class = ModelStrategy if is_ranked else LearnedStrategy
    return strategy_class(model, seed=seed, start=start, ranked=ranked)
