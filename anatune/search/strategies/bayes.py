"""Bayesian optimisation of the scores of a cost model; the best scored points are measured.

Source: [BO24] Ch. 3. A Gaussian process over indices of sorted tilings learns the scores that a learned cost model
gives to points; an acquisition function chooses the points to score next. Its memory is limited.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

import numpy as np
from scipy.special import ndtr

from anatune.search.knobs import make_first_population
from anatune.search.learning.process import GaussianProcess, fit_process
from anatune.search.learning.surrogate import Surrogate
from anatune.search.points import Floats, Integers, drop_repeats
from anatune.search.stepwise import StepwiseStrategy, TrialAnswer, Walk

_POOL = 2048
"""Number of random candidates for the acquisition function; they are drawn again whenever the memory was emptied."""
_WIDTHS = (0.1, 0.03)
"""Standard deviations, as shares of a gene's range, of the candidates around the best one, one step after the other."""
_NEAR = 32
"""Number of candidates of such a step."""
_DRAWN = 16
"""Number of random programs for each one that becomes an input, because it has the best prediction."""
_FORGOTTEN = 0.1
"""Share of a full memory that "lru" forgets at a time, because the process is then built again."""


class BayesStrategy(StepwiseStrategy):
    """Bayesian optimisation of a cost model's scores; deterministic for a seed.

    As published: random programs first; the cost model is trees on the program; the inputs of a round are the best
    measured programs and the best predicted random ones; suggestions come one by one from the whole domain, and the
    process learns the score of each before the next; a fifth of the measured programs is random.

    From the model's ranking: the first round has the ranking's points and the best predicted random ones, the cost
    model is the analytical one with trees on log(measured / predicted), rounds are short, half of the candidates are
    near an input and share half of its genes, and no random program is measured.

    Deviations: the acquisition function is evaluated at 2048 random places that serve until the memory is emptied, then
    at 64 around the best one; the library of the thesis draws 10,000 for each suggestion and climbs from ten (it needs
    minutes, [BO24] Table 4.4; this takes milliseconds a trial). It is evaluated at rounded places; the length of the
    covariance is one of three values; "lru" forgets a tenth of the memory at a time. All choices are one group, because
    the space has one design: the thesis has a process for each set of choices that it cannot vary, and phases for
    parallel loops and compute locations, which are genes here. Not in the thesis and chosen here: 64 trials a round (as
    MetaSchedule; 80 % of them give the 500 to 1000 suggestions of the thesis), 16 random programs for each random
    input, the two budgets of suggestions.
    """

    options: ClassVar[Mapping[str, tuple[str, ...] | tuple[float, float]]] = {
        "acquisition": ("ucb", "ei", "poi"),
        "eviction": ("reset", "lru"),
        "selection": ("heap", "naive"),
        "domain": ("whole", "reduced"),
        "kappa": (0.0, 100.0),
        "xi": (0.0, 1.0),
        "memory": (64, 2000),
        "suggestions": (1, 1000),
        "random_share": (0.0, 0.9),
    }
    acquisition = "ucb"
    """Upper confidence bound ("ucb"), expected improvement ("ei"), probability of improvement ("poi"). Source: [BO24]
    Sec. 4.1.3: ucb."""
    eviction = "reset"
    """A full memory forgets all but the inputs ("reset"), or the oldest points ("lru"). Source: [BO24] Sec. 3.5."""
    selection = "heap"
    """The best of all points are measured ("heap"), or the best of each input ("naive"). Source: [BO24] Sec. 3.6."""
    domain = "whole"
    """Domain of the suggestions; "reduced": ranges shrink around the best point. Source: [BO24] Sec. 3.3.1, [SDR]."""
    kappa = 0.1
    """Standard deviations in the upper confidence bound. Source: [BO24] Sec. 4.1.3: 0.1."""
    xi = 0.0
    """Improvement that is ignored (ei, poi). Source: the default of the library that [BO24] uses: 0."""
    memory = 250
    """Number of points that the process remembers. Source: [BO24] Sec. 4.1.3: 250."""
    suggestions = 10
    """Number of legal points, and of illegal ones, that are scored for each input. Source: [BO24] Sec. 3.5: 10 to
    20."""
    random_share = 0.2
    """Share of random programs among the inputs and the measured programs, as published. Source: [BO24] Sec. 3.1,
    3.2."""
    round_trials = 64
    """Number of trials of a round, as published."""
    ranked_trials = 16
    """Number of trials of a round that starts from the model's ranking."""
    num_random = 64
    """Number of random programs that are measured first, as published. Source: the first round of MetaSchedule, 64."""

    def walk(self) -> Walk:
        """Yield the points of each round."""
        on_model = not self.as_published
        self._scores = Surrogate(self.knobs, "all" if on_model else "program", on_model=on_model)
        self._best_cost = np.inf
        self._measured: list[tuple[float, bytes]] = []
        self._memory: dict[bytes, float] = {}
        """Genes -> score, oldest first."""
        self._scale = np.maximum(self.knobs.gene_radices - 1, 1)
        self._bounds = GeneBounds(len(self._scale))
        count = self.ranked_trials if on_model else self.round_trials
        size = count if on_model else self.num_random
        num_random = 0 if on_model else round(self.random_share * count)
        points = make_first_population(self.knobs, size, self.draw, self.ranked if on_model else None)
        for number in range(1, 1 << 30):
            if not len(points) and not self.num_missing:
                return
            for some, answers in self.receive_new(points, (yield points)):
                self._learn(some, answers)
            chosen = self._round(number, count - num_random)
            drawn = self.draw_new(count - len(chosen), 2, number) if num_random or not len(chosen) else chosen[:0]
            points = drop_repeats(np.concatenate([chosen, drawn]))

    def _learn(self, points: Integers, answers: list[TrialAnswer]) -> None:
        self._scores.add(points, answers)
        self._measured += [(a.cost, p.tobytes()) for a, p in zip(answers, points, strict=True) if a.cost is not None]
        self._measured.sort()

    def _inputs(self, number: int, count: int) -> Integers:
        """Return the points that a round starts from: the best measured ones, and the best predicted random ones."""
        share = 1.0 - self.random_share if self.as_published else 0.5
        best = [np.frombuffer(key, dtype=np.int64) for _, key in self._measured[: round(share * count)]]
        drawn = self.draw((count - len(best)) * _DRAWN, 1, number)
        if len(drawn):
            drawn = drawn[np.argsort(self._scores.predict(drawn), kind="stable")]
        return np.concatenate([np.array(best, dtype=np.int64).reshape(-1, drawn.shape[1]), drawn])[:count]

    def _round(self, number: int, count: int) -> Integers:
        """Let the process suggest points, score them, and return up to `count` of them to measure."""
        inputs = self._inputs(number, count)
        genes = self.knobs.genes(inputs)
        if self.domain == "reduced" and len(genes):
            self._bounds.shrink(genes[0] / self._scale)
        for row, score in zip(genes, self._score(inputs).tolist(), strict=True):
            self._remember(row, score, genes[:0])
        rng = self.random(number)
        process: GaussianProcess | None = None
        points, owners = list(inputs), list(range(len(inputs)))
        for owner in range(len(inputs)):
            suggestions_left = {True: self.suggestions, False: self.suggestions}  # legal, illegal: [BO24] Sec. 3.3.1
            while all(suggestions_left.values()):
                process = process or self._process(genes, rng)
                row = self._suggestion(process, rng)
                if row is None:
                    break
                child, legal = self.knobs.from_genes(row[None, :])
                score = 0.0  # score of invalid programs: [BO24] Sec. 3.3.1
                if legal[0]:
                    score = float(self._score(child)[0])
                    points.append(child[0])
                    owners.append(owner)
                suggestions_left[bool(legal[0])] -= 1
                if self._remember(row, score, genes):
                    process = None
                else:
                    process.tell(row / self._scale, score)
        return self._select(np.array(points).reshape(-1, inputs.shape[1]), owners, count)

    def _process(self, inputs: Integers, rng: np.random.Generator) -> GaussianProcess:
        """Return a process that has learned the memory, with new candidates outside the memory."""
        places = rng.random((_POOL, len(self._scale)))
        if not self.as_published:
            owners = rng.integers(0, len(inputs), _POOL // 2)
            near = inputs[owners] / self._scale + rng.normal(0.0, 0.15, (len(owners), len(self._scale)))
            keep = rng.random(near.shape) < 0.5
            places[: len(owners)] = np.where(keep, inputs[owners] / self._scale, near)
        pool = self._filter_new(self._round_places(places))
        remembered = np.array([np.frombuffer(key, dtype=np.int64) for key in self._memory]) / self._scale
        scores = np.array(list(self._memory.values()))
        return fit_process(remembered, scores, pool / self._scale, max(self.memory, len(remembered)) + 1)

    def _suggestion(self, process: GaussianProcess, rng: np.random.Generator) -> Integers | None:
        """Return the genes that are most worth scoring next, or None if no candidate is left."""
        best, most = None, -np.inf
        worth = self._worth(*process.posterior())
        for candidate in np.argsort(-worth, kind="stable")[: self.memory + 1].tolist():
            row = self._round_places(process.pool[candidate])
            if row.tobytes() not in self._memory:
                best, most = row, float(worth[candidate])
                break
        for width in _WIDTHS if self.as_published and best is not None else ():
            near = best / self._scale + rng.normal(0.0, width, (_NEAR, len(self._scale)))
            rows = self._filter_new(self._round_places(near))
            if len(rows):
                worth = self._worth(*process.predict(rows / self._scale))
                if worth.max() > most:
                    best, most = rows[int(worth.argmax())], float(worth.max())
        return best

    def _round_places(self, places: Floats) -> Integers:
        """Return the genes nearest to places in the domain. Source: the naive rounding of [BO24] Sec. 2.4.4."""
        rounded = np.rint(self._bounds.clip(places) * self._scale).astype(np.int64)
        return np.minimum(rounded, self.knobs.gene_radices - 1)

    def _filter_new(self, rows: Integers) -> Integers:
        """Return the genes that are not in the memory, without repetition. Source: [BO24] Sec. 3.7."""
        rows = drop_repeats(rows)
        return rows[[row.tobytes() not in self._memory for row in rows]]

    def _worth(self, mean: Floats, std: Floats) -> Floats:
        """Return the acquisition function: the worth of scoring a point. Source: [BO24] Sec. 2.4.2."""
        if self.acquisition == "ucb":
            return mean + self.kappa * std
        std = np.maximum(std, 1e-12)
        gain = mean - max(self._memory.values()) - self.xi
        if self.acquisition == "poi":
            return np.asarray(ndtr(gain / std), dtype=np.float64)
        density = np.exp(-0.5 * np.square(gain / std)) / np.sqrt(2.0 * np.pi)
        result: Floats = gain * ndtr(gain / std) + std * density
        return result

    def _score(self, points: Integers) -> Floats:
        """Return the scores of the cost model: predicted speed over the best so far, about 0 to 1."""
        costs = self._scores.predict(points)
        self._best_cost = min(self._best_cost, float(costs.min(initial=np.inf)))
        result: Floats = np.exp(self._best_cost - costs)
        return result

    def _remember(self, row: Integers, score: float, inputs: Integers) -> bool:
        """Add a point and its score to the memory; return whether it was full and forgot others."""
        is_full = len(self._memory) >= self.memory
        if is_full and self.eviction == "lru":
            for key in list(self._memory)[: max(1, int(_FORGOTTEN * self.memory))]:
                del self._memory[key]
        elif is_full:
            kept = {one.tobytes() for one in inputs}
            self._memory = {key: value for key, value in self._memory.items() if key in kept}
        self._memory.pop(row.tobytes(), None)
        self._memory[row.tobytes()] = score
        return is_full

    def _select(self, points: Integers, owners: list[int], count: int) -> Integers:
        """Return up to `count` points to measure: the best scored of all, or of each input. Source: [BO24] Sec. 3.6."""
        order = np.argsort(self._scores.predict(points), kind="stable")
        chosen: list[Integers] = []
        used: set[Hashable] = set()
        for number in order.tolist():
            point = points[number]
            keys = {self.program(point), *([("input", owners[number])] if self.selection == "naive" else [])}
            if len(chosen) < count and not keys & used and self.is_new(point):
                used |= keys
                chosen.append(point)
        return drop_repeats(np.array(chosen, dtype=np.int64).reshape(-1, points.shape[1]))


class GeneBounds:
    """Ranges of the genes, as shares of the whole, that shrink around the best point.

    Source: [SDR] (Stander, Craig 2002), with the constants of the library that [BO24] uses: 0.7 against oscillation,
    1.0 for panning, zoom 0.9.
    """

    def __init__(self, num_genes: int) -> None:
        self.low, self.high = np.zeros(num_genes), np.ones(num_genes)
        self._width = np.ones(num_genes)
        self._moved = np.zeros(num_genes)
        self._best: Floats | None = None

    def clip(self, places: Floats) -> Floats:
        """Return places inside the ranges."""
        return np.clip(places, self.low, self.high)

    def shrink(self, best: Floats) -> None:
        """Shrink the ranges around `best`, less if it keeps moving, more if it oscillates."""
        last = np.full(len(best), 0.5) if self._best is None else self._best
        moved = np.clip(2.0 * (best - last) / self._width, -1.0, 1.0)
        both = moved * self._moved
        turn = np.sign(both) * np.sqrt(np.abs(both))
        contraction = 0.5 * (1.0 * (1.0 + turn) + 0.7 * (1.0 - turn))
        self._width = np.minimum(1.0, self._width * (0.9 + np.abs(moved) * (contraction - 0.9)))
        self._best, self._moved = best, moved
        self.low = np.clip(best - self._width / 2, 0.0, 1.0)
        self.high = np.clip(best + self._width / 2, 0.0, 1.0)
