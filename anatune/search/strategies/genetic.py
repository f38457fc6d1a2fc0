"""Genetic search with a learned model: the search of Ansor, as a baseline.

Source: [Ansor] Sec. 5; settings of its code (apache/tvm v0.8, auto_scheduler SketchPolicy and its evolutionary search).
"""

from __future__ import annotations

import numpy as np

from anatune.search.knobs import make_first_population, mutate, roulette, single_point_crossover
from anatune.search.learning.surrogate import Surrogate, TreeFeatures
from anatune.search.points import Floats, Integers, drop_repeats
from anatune.search.stepwise import StepwiseStrategy, Walk


class GeneticStrategy(StepwiseStrategy):
    """Rounds of evolution on the predictions of trees that learn from all trials.

    As published: a random first round; the trees see only the program. From the model's ranking: the first round has
    the ranking's points and the best predicted random ones; the trees learn log(measured / predicted).

    Deviations: LightGBM on factors and choices instead of XGBoost on 164 features of the generated code; a mutation
    moves one knob by a step, or draws one gene again; parents without mutation are crossed at one position. On GPUs it
    keeps the limits of the code of [ICS24] (`search.knobs`), so that both searches are compared on one space.
    """

    has_limits = True

    round_trials = 64
    """Number of trials between two searches. Source: [Ansor] code: num_measures_per_round = 64."""
    population = 2048
    """Number of points of a generation. Source: [Ansor] code: evolutionary_search_population = 2048."""
    generations = 4
    """Number of generations of one search. Source: [Ansor] code: evolutionary_search_num_iters = 4."""
    mutation = 0.85
    """Probability of a child to be mutated. Source: [Ansor] code: evolutionary_search_mutation_prob = 0.85."""
    measured_share = 0.2
    """Largest share of measured points in a first generation. Source: [Ansor] code: sample_init_use_measured_ratio =
    0.2."""
    random_share = 0.05
    """Share of random points among the measured ones. Source: [Ansor] code: eps_greedy = 0.05."""
    published_features: TreeFeatures = "program"
    """Features of the trees as published, see `Surrogate`."""
    ranked_features: TreeFeatures = "all"
    """Features of the trees if the search starts from the model's ranking."""

    def walk(self) -> Walk:
        """Yield the points of each round."""
        on_model = not self.as_published
        features = self.ranked_features if on_model else self.published_features
        surrogate = Surrogate(self.knobs, features, on_model=on_model)
        points = make_first_population(self.knobs, self.round_trials, self.draw, self.ranked if on_model else None)
        measured: list[tuple[float, bytes]] = []
        for number in range(1, 1 << 30):
            if not len(points) and not self.num_missing:
                return
            for some, answers in self.receive_new(points, (yield points)):
                surrogate.add(some, answers)
                measured += [(a.cost, p.tobytes()) for a, p in zip(answers, some, strict=True) if a.cost is not None]
            measured.sort()
            best = [np.frombuffer(key, dtype=np.int64) for _, key in measured]
            points = self._round(surrogate, best, number)

    def _round(self, surrogate: Surrogate, best: list[Integers], number: int) -> Integers:
        """Return the points of the next round."""
        num_random = round(self.random_share * self.round_trials)
        kept = best[: round(self.measured_share * self.population)]
        drawn = self.draw(self.population - len(kept), number)
        population = drop_repeats(np.concatenate([np.array(kept, dtype=np.int64).reshape(-1, drawn.shape[1]), drawn]))
        met, scores = population, surrogate.predict(population)
        all_scores = scores
        for generation in range(self.generations):
            population = self._generation(population, scores, self.random(number, generation))
            if not len(population):
                break
            scores = surrogate.predict(population)
            met, all_scores = np.concatenate([met, population]), np.concatenate([all_scores, scores])
        met = drop_repeats(met[np.argsort(all_scores, kind="stable")])
        chosen = self._first_new(met, self.round_trials - num_random)
        random = self.draw_new(self.round_trials - len(chosen), 1 << 30, number)
        return drop_repeats(np.concatenate([chosen, random]))

    def _generation(self, population: Integers, scores: Floats, rng: np.random.Generator) -> Integers:
        """Return the legal children of a generation; `scores` are predicted logarithms of times."""
        size = self.population
        speeds = np.exp(scores.min() - scores)
        parents = population[roulette(speeds, size, rng)]
        is_mutated = rng.random(size) < self.mutation
        genes = self.knobs.genes(parents)
        crossed = single_point_crossover(genes, genes[rng.permutation(size)], rng)
        position = rng.integers(0, genes.shape[1], size)
        redrawn = mutate(genes, self.knobs.gene_radices, 1.0, rng)
        changed = np.where(np.arange(genes.shape[1])[None, :] == position[:, None], redrawn, genes)
        born, legal = self.knobs.from_genes(np.where(is_mutated[:, None], changed, crossed))
        children = [born[legal]]
        if len(self.knobs.names):
            stepped = self.knobs.indices(parents[: size // 2])
            position = rng.integers(0, stepped.shape[1], len(stepped))
            stepped[np.arange(len(stepped)), position] += rng.choice((-1, 1), len(stepped))
            born, legal = self.knobs.at(stepped)
            children.append(born[legal])
        return drop_repeats(np.concatenate(children))

    def _first_new(self, points: Integers, count: int) -> Integers:
        """Return the first `count` points that were not proposed."""
        new_points: list[Integers] = []
        for point in points:
            if len(new_points) == count:
                break
            if self.is_new(point):
                new_points.append(point)
        return np.array(new_points, dtype=np.int64).reshape(-1, points.shape[1])


class AnalyticalGeneticStrategy(GeneticStrategy):
    """Genetic search whose trees see only the analytical features: Ansor-AF.

    Source: [ICS24] Sec. 4. Deviations as in `GeneticStrategy`; `templates.gpu.model` describes the features.
    """

    published_features: TreeFeatures = "analytical"
    ranked_features: TreeFeatures = "analytical"
