"""Bayesian optimisation over the scores of a cost model, the best of which are measured.

Source: [BO24] Ch. 3. A Gaussian process over indices of sorted tilings is told the scores that a learned cost model
gives to points; an acquisition function says which points to score next. Its memory is limited.
"""

from __future__ import annotations

from collections.abc import Hashable
from importlib import import_module
from typing import Any

import numpy as np

from anatune.errors import MissingDependencyError
from anatune.requirements import pip_line
from anatune.search.heredity import first_population
from anatune.search.learning.surrogate import Surrogate
from anatune.search.points import Floats, Integers, distinct
from anatune.search.stepwise import Answer, StepwiseStrategy, Walk

__all__ = ["BayesStrategy"]


_LENGTHS = (0.1, 0.3, 1.0)
"""Lengths of the covariance (share of a gene's range) that the likelihood chooses from, once a round."""
_CANDIDATES = 24
"""Random candidates for each suggestion: the acquisition function takes the best."""


class BayesStrategy(StepwiseStrategy):
    """Bayesian optimisation of a cost model's scores; deterministic for a seed.

    As published: random programs first; the cost model is trees on the program; inputs of a round are the best measured
    and random points. From the model's ranking: the first round is the ranking's points and the best predicted of
    random ones, the cost model is the analytical one with trees on log(measured / predicted), the inputs that are not
    measured points are the best predicted of random ones.

    Deviates: suggestions are drawn in four batches a round, not one by one, and the length of the covariance is chosen
    from three values: a trial costs milliseconds. All choices are one group (the thesis has one process for each set of
    choices that it cannot vary).
    """

    kappa = 0.1
    """Standard deviations of the upper confidence bound. Source: [BO24] Sec. 4.1.3: 0.1."""
    memory = 250
    """Points that the process remembers. Source: [BO24] Sec. 4.1.3: 250."""
    suggestions = 10
    """Points that are scored for each input. Source: [BO24] Sec. 3.5: 10 to 20."""
    round_trials = 16
    """Inputs of a round, and trials after it."""
    num_random = 64
    """Random programs that are measured first, as published. Source: the first round of MetaSchedule, 64."""

    def walk(self) -> Walk:
        """Yield rounds."""
        on_model = not self.as_published
        self._scores = Surrogate(self.knobs, "all" if on_model else "program", on_model=on_model)
        self._best_cost = np.inf
        self._measured: list[tuple[float, bytes]] = []
        self._memory: dict[bytes, float] = {}
        """Genes -> score, oldest first."""
        size = self.round_trials if on_model else self.num_random
        points = first_population(self.knobs, size, self.draw, self.ranked if on_model else None)
        for number in range(1, 1 << 30):
            if not len(points) and not self.num_missing:
                return
            for some, answers in self.known(points, (yield points)):
                self._learn(some, answers)
            points = self._round(number)
            if not len(points):
                points = self.draw_new(self.round_trials, 2, number)

    def _learn(self, points: Integers, answers: list[Answer]) -> None:
        self._scores.add(points, answers)
        self._measured += [(a.cost, p.tobytes()) for a, p in zip(answers, points, strict=True) if a.cost is not None]
        self._measured.sort()

    def _inputs(self, number: int) -> Integers:
        """Return the points that a round starts from: half of them the best measured ones, the others drawn."""
        count = self.round_trials
        best = [np.frombuffer(key, dtype=np.int64) for _, key in self._measured[: (count + 1) // 2]]
        drawn = self.draw((count - len(best)) * (1 if self.as_published else 16), 1, number)
        if not self.as_published and len(drawn):
            drawn = drawn[np.argsort(self._scores.predict(drawn), kind="stable")]
        return np.concatenate([np.array(best, dtype=np.int64).reshape(-1, drawn.shape[1]), drawn])[:count]

    def _round(self, number: int) -> Integers:
        """Let the process suggest points, score them, and return those to measure."""
        inputs = self._inputs(number)
        scale = np.maximum(self.knobs.gene_radices - 1, 1)
        genes = self.knobs.genes(inputs)
        centres = genes / scale
        self._remember(genes, self._score(inputs), genes[:0])
        length: float | None = None
        found, owners = [inputs], [np.arange(len(inputs))]
        steps = min(4, self.suggestions)
        for step in range(steps):
            each = self.suggestions * (step + 1) // steps - self.suggestions * step // steps
            process, length = self._process(scale, length)
            rng = self.random(number, step)
            owner = np.repeat(np.arange(len(inputs)), each * _CANDIDATES)
            near = centres[owner] + rng.normal(0.0, 0.15, (len(owner), centres.shape[1]))
            anywhere = rng.random(near.shape)
            wide = rng.random(len(owner)) < 0.5
            place = self._inside(np.where(wide[:, None], anywhere, near))
            rounded = np.minimum(
                np.rint(place * scale).astype(np.int64), self.knobs.gene_radices - 1
            )  # the naive rounding of [BO24] Sec. 2.4.4
            keep = rng.random(rounded.shape) < 0.5  # half of the genes of a near candidate are those of its input
            rounded = np.where(keep & ~wide[:, None], genes[owner], rounded)
            mean, std = process.predict(rounded / scale, return_std=True)
            worth = self._worth(mean, std)
            order = np.lexsort((-worth, owner)).reshape(len(inputs), -1)
            chosen = self._unexplored(rounded, order, each)
            points, legal = self.knobs.from_genes(rounded[chosen])
            scores = np.zeros(len(chosen))  # invalid programs score 0: [BO24] Sec. 3.3.1
            if legal.any():
                scores[legal] = self._score(points[legal])
            self._remember(rounded[chosen], scores, genes)
            found.append(points[legal])
            owners.append(owner[chosen][legal])
        return self._select(np.concatenate(found), np.concatenate(owners), self.round_trials)

    def _inside(self, places: Floats) -> Floats:
        """Return places (shares of the genes' ranges) moved to where the search may look."""
        return np.clip(places, 0.0, 1.0)

    def _worth(self, mean: Floats, std: Floats) -> Floats:
        """Return how much points are worth to be scored next: the upper confidence bound. Source: [BO24] Sec. 2.4.2."""
        return mean + self.kappa * std

    def _unexplored(self, rounded: Integers, order: Integers, each: int) -> Integers:
        """Return the first `each` candidates in the order of each input that the memory does not hold."""
        chosen, met = [], set(self._memory)
        for row in order.tolist():
            left = each
            for at in row:
                key = rounded[at].tobytes()
                if left and key not in met:
                    met.add(key)
                    chosen.append(at)
                    left -= 1
                if not left:
                    break
        return np.array(chosen, dtype=np.int64)

    def _score(self, points: Integers) -> Floats:
        """Return the cost model's scores: predicted speed over the best one so far, so about 0 to 1."""
        costs = self._scores.predict(points)
        self._best_cost = min(self._best_cost, float(costs.min()))
        result: Floats = np.exp(self._best_cost - costs)
        return result

    def _remember(self, genes: Integers, scores: Floats, inputs: Integers) -> None:
        """Tell the memory points and scores; where it is full, forget."""
        limit = self.memory
        for row, score in zip(genes, scores.tolist(), strict=True):
            if len(self._memory) >= limit:
                self._make_room(inputs)
            self._memory.pop(row.tobytes(), None)
            self._memory[row.tobytes()] = score

    def _make_room(self, inputs: Integers) -> None:
        """Forget all but the inputs. Source: [BO24] Sec. 3.5."""
        kept = {row.tobytes() for row in inputs}
        self._memory = {key: score for key, score in self._memory.items() if key in kept}

    def _process(self, scale: Integers, length: float | None) -> tuple[Any, float]:
        """Return the Gaussian process of the memory, and the length of its covariance.

        Source: the library of [BO24]: Matern 5/2, jitter 1e-6, normalised scores.
        """
        gaussian, kernels = _gaussian_process()
        rows = np.array([np.frombuffer(key, dtype=np.int64) for key in self._memory]) / scale
        scores = np.array(list(self._memory.values()))
        fitted = {}
        for scale_length in _LENGTHS if length is None else (length,):
            covariance = kernels(length_scale=scale_length, nu=2.5)
            process = gaussian(covariance, alpha=1e-6, normalize_y=True, optimizer=None)
            fitted[scale_length] = process.fit(rows, scores)
        best = max(fitted, key=lambda scale_length: fitted[scale_length].log_marginal_likelihood_value_)
        return fitted[best], best

    def _select(self, points: Integers, owners: Integers, count: int) -> Integers:
        """Return up to `count` points to measure, the best of all that were scored. Source: [BO24] Sec. 3.6 (heap)."""
        order = np.argsort(self._scores.predict(points), kind="stable")
        chosen: list[Integers] = []
        taken: set[Hashable] = set()
        for at in order.tolist():
            point = points[at]
            key = self._rival(point, int(owners[at]))
            if len(chosen) < count and key not in taken and self.is_new(point):
                taken.add(key)
                chosen.append(point)
        return distinct(np.array(chosen, dtype=np.int64).reshape(-1, points.shape[1]))

    def _rival(self, point: Integers, owner: int) -> Hashable:
        """Return what two points of which only one is measured have in common; `owner`: number of the input."""
        return self.program(point)


def _gaussian_process() -> tuple[Any, Any]:
    """Return the process and the covariance.

    Raises
    ------
    MissingDependencyError
        scikit-learn is not installed.
    """
    try:
        process = import_module("sklearn.gaussian_process")
        kernels = import_module("sklearn.gaussian_process.kernels")
    except ImportError:
        raise MissingDependencyError(
            f"strategy 'bayes' needs scikit-learn, which is not installed; {pip_line('learn')}"
        ) from None
    return process.GaussianProcessRegressor, kernels.Matern
