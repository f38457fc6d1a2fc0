"""Bayesian optimisation over the scores of a cost model, the best of which are measured.

Source: [BO24] Ch. 3. A Gaussian process over indices of sorted tilings is told the scores that a learned cost model
gives to points; an acquisition function says which points to score next. Its memory is limited.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from scipy.special import ndtr

from anatune.errors import MissingDependencyError
from anatune.requirements import pip_line
from anatune.search.heredity import first_population
from anatune.search.learning.surrogate import Surrogate
from anatune.search.repeats import distinct
from anatune.search.stepwise import Answer, StepwiseStrategy, Walk

__all__ = ["BayesOptions", "BayesStrategy", "Bounds", "acquisition"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

_LENGTHS = (0.1, 0.3, 1.0)
"""Lengths of the covariance (share of a gene's range) that the likelihood chooses from, once a round."""
_CANDIDATES = 24
"""Random candidates for each suggestion: the acquisition function takes the best."""


class BayesOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the strategy "bayes".

    Attributes
    ----------
    acquisition : {"ucb", "ei", "poi"}
        Upper confidence bound, expected improvement, probability of improvement. Source: [BO24] Sec. 4.1.3: ucb.
    kappa : float
        Standard deviations of the upper confidence bound. Source: [BO24] Sec. 4.1.3: 0.1.
    xi : float
        Improvement that counts as none (ei, poi). Source: the default of the library that [BO24] uses: 0.
    memory : int
        Points that the process remembers. Source: [BO24] Sec. 4.1.3: 250.
    eviction : {"reset", "lru"}
        When the memory is full: forget all but the inputs, or the oldest points. Source: [BO24] Sec. 3.5.
    selection : {"naive", "heap"}
        Measure the best point of each input, or the best of all. Source: [BO24] Sec. 3.6.
    domain_reduction : bool
        Shrink the ranges around the best point, round by round. Source: [BO24] Sec. 3.3.1, after [SDR].
    suggestions : int
        Points that are scored for each input. Source: [BO24] Sec. 3.5: 10 to 20.
    round_trials : int
        Inputs of a round, and trials after it.
    random_share : float
        Random programs among those that are measured after a round. Source: [BO24] Sec. 3.2: 0.2; none here, where the
        inputs of a round are random points, too.
    num_random : int
        Random programs that are measured first, as published. Source: the first round of MetaSchedule, 64.
    """

    acquisition: Literal["ucb", "ei", "poi"] = "ucb"
    kappa: Annotated[float, Meta(ge=0)] = 0.1
    xi: Annotated[float, Meta(ge=0)] = 0.0
    memory: Annotated[int, Meta(ge=8)] = 250
    eviction: Literal["reset", "lru"] = "reset"
    selection: Literal["naive", "heap"] = "heap"
    domain_reduction: bool = False
    suggestions: Annotated[int, Meta(ge=1)] = 10
    round_trials: Annotated[int, Meta(ge=1)] = 16
    random_share: Annotated[float, Meta(ge=0, le=1)] = 0.0
    num_random: Annotated[int, Meta(ge=1)] = 64


class BayesStrategy(StepwiseStrategy[BayesOptions]):
    """Bayesian optimisation of a cost model's scores; deterministic for a seed.

    As published: random programs first; the cost model is trees on the program; inputs of a round are the best measured
    and random points. From the model's ranking: the first round is the ranking's points and the best predicted of
    random ones, the cost model is the analytical one with trees on log(measured / predicted), the inputs that are not
    measured points are the best predicted of random ones.

    Deviates: suggestions are drawn in four batches a round, not one by one, and the length of the covariance is chosen
    from three values: a trial costs milliseconds. All choices are one group (the thesis has one process for each set of
    choices that it cannot vary).
    """

    options_type = BayesOptions

    def walk(self) -> Walk:
        """Yield rounds."""
        options = self.options
        on_model = not self.as_published
        self._scores = Surrogate(self.knobs, "all" if on_model else "program", on_model=on_model)
        self._best_cost = np.inf
        self._measured: list[tuple[float, bytes]] = []
        self._memory: dict[bytes, float] = {}
        """Genes -> score, oldest first."""
        self._bounds = Bounds(len(self.knobs.gene_radices))
        size = options.round_trials if on_model else options.num_random
        points = first_population(self.knobs, size, self.draw, self.ranked if on_model else None)
        for number in range(1, 1 << 30):
            if not len(points) and not self.num_missing:
                return
            for some, answers in self.known(points, (yield points)):
                self._learn(some, answers)
            points = self._round(number)
            if not len(points):
                points = self.draw_new(options.round_trials, 2, number)

    def _learn(self, points: Integers, answers: list[Answer]) -> None:
        self._scores.add(points, answers)
        self._measured += [(a.cost, p.tobytes()) for a, p in zip(answers, points, strict=True) if a.cost is not None]
        self._measured.sort()

    def _inputs(self, number: int) -> Integers:
        """Return the points that a round starts from: half of them the best measured ones, the others drawn."""
        count = self.options.round_trials
        best = [np.frombuffer(key, dtype=np.int64) for _, key in self._measured[: (count + 1) // 2]]
        drawn = self.draw((count - len(best)) * (1 if self.as_published else 16), 1, number)
        if not self.as_published and len(drawn):
            drawn = drawn[np.argsort(self._scores.predict(drawn), kind="stable")]
        return np.concatenate([np.array(best, dtype=np.int64).reshape(-1, drawn.shape[1]), drawn])[:count]

    def _round(self, number: int) -> Integers:
        """Let the process suggest points, score them, and return those to measure."""
        options = self.options
        inputs = self._inputs(number)
        scale = np.maximum(self.knobs.gene_radices - 1, 1)
        genes = self.knobs.genes(inputs)
        centres = genes / scale
        self._remember(genes, self._score(inputs), genes[:0])
        if options.domain_reduction:
            self._bounds.shrink(centres[0])
        length: float | None = None
        found, owners = [inputs], [np.arange(len(inputs))]
        steps = min(4, options.suggestions)
        for step in range(steps):
            each = options.suggestions * (step + 1) // steps - options.suggestions * step // steps
            process, length = self._process(scale, length)
            rng = self.random(number, step)
            owner = np.repeat(np.arange(len(inputs)), each * _CANDIDATES)
            near = centres[owner] + rng.normal(0.0, 0.15, (len(owner), centres.shape[1]))
            anywhere = rng.random(near.shape)
            wide = rng.random(len(owner)) < 0.5
            place = self._bounds.clip(np.where(wide[:, None], anywhere, near))
            rounded = np.minimum(
                np.rint(place * scale).astype(np.int64), self.knobs.gene_radices - 1
            )  # the naive rounding of [BO24] Sec. 2.4.4
            keep = rng.random(rounded.shape) < 0.5  # half of the genes of a near candidate are those of its input
            rounded = np.where(keep & ~wide[:, None], genes[owner], rounded)
            mean, std = process.predict(rounded / scale, return_std=True)
            worth = acquisition(mean, std, max(self._memory.values()), options)
            order = np.lexsort((-worth, owner)).reshape(len(inputs), -1)
            chosen = self._unexplored(rounded, order, each)
            points, legal = self.knobs.from_genes(rounded[chosen])
            scores = np.zeros(len(chosen))  # invalid programs score 0: [BO24] Sec. 3.3.1
            if legal.any():
                scores[legal] = self._score(points[legal])
            self._remember(rounded[chosen], scores, genes)
            found.append(points[legal])
            owners.append(owner[chosen][legal])
        num_random = round(options.random_share * options.round_trials)
        chosen = self._select(np.concatenate(found), np.concatenate(owners), options.round_trials - num_random)
        if not num_random:
            return chosen
        return distinct(np.concatenate([chosen, self.draw_new(num_random, 3, number)]))

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
        limit = self.options.memory
        for row, score in zip(genes, scores.tolist(), strict=True):
            if len(self._memory) >= limit:
                if self.options.eviction == "lru":
                    del self._memory[next(iter(self._memory))]
                else:
                    kept = {one.tobytes() for one in inputs}
                    self._memory = {key: value for key, value in self._memory.items() if key in kept}
            self._memory.pop(row.tobytes(), None)
            self._memory[row.tobytes()] = score

    def _process(self, scale: Integers, length: float | None) -> tuple[Any, float]:
        """Return the Gaussian process of the memory, and the length of its covariance.

        Source: the library of [BO24]: Matern 5/2, jitter 1e-6, normalised scores.
        """
        gaussian, kernels = _gaussian_process()
        rows = np.array([np.frombuffer(key, dtype=np.int64) for key in self._memory]) / scale
        scores = np.array(list(self._memory.values()))
        fitted = {}
        for one in _LENGTHS if length is None else (length,):
            made = gaussian(kernels(length_scale=one, nu=2.5), alpha=1e-6, normalize_y=True, optimizer=None)
            fitted[one] = made.fit(rows, scores)
        best = max(fitted, key=lambda one: fitted[one].log_marginal_likelihood_value_)
        return fitted[best], best

    def _select(self, points: Integers, owners: Integers, count: int) -> Integers:
        """Return up to `count` points to measure of all that were scored."""
        order = np.argsort(self._scores.predict(points), kind="stable")
        chosen: list[Integers] = []
        taken: set[object] = set()
        for at in order.tolist():
            point = points[at]
            key = owners[at] if self.options.selection == "naive" else self.program(point)
            if len(chosen) < count and key not in taken and self.is_new(point):
                taken.add(key)
                chosen.append(point)
        return distinct(np.array(chosen, dtype=np.int64).reshape(-1, points.shape[1]))


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


def acquisition(mean: Floats, std: Floats, best: float, options: BayesOptions) -> Floats:
    """Return how much points are worth to be scored next; larger is better. Source: [BO24] Sec. 2.4.2."""
    if options.acquisition == "ucb":
        return mean + options.kappa * std
    std = np.maximum(std, 1e-12)
    gain = mean - best - options.xi
    if options.acquisition == "poi":
        return np.asarray(ndtr(gain / std), dtype=np.float64)
    density = np.exp(-0.5 * np.square(gain / std)) / np.sqrt(2.0 * np.pi)
    result: Floats = gain * ndtr(gain / std) + std * density
    return result


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
