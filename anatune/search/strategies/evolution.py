"""NoSE: evolution whose children are chosen for measurement by a weighted k-nearest-neighbour surrogate.

Source: [NoSE] Sec. III-B; settings of Sec. V-D.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from anatune.search.knobs import make_first_population, mutate, roulette, single_point_crossover
from anatune.search.points import Floats, Integers
from anatune.search.stepwise import StepwiseStrategy, TrialAnswer, Walk

_TRIES = 20
"""Number of attempts to make children if too few of them are legal and new."""


class EvolutionStrategy(StepwiseStrategy):
    """Evolution whose children are predicted from their nearest measured points (Canberra distance).

    As published: the first population is random, and speeds are predicted. From the model's ranking: the first
    population has the ranking's points and the best predicted random ones, and the predicted value is the speed over
    the model's.

    Deviations: illegal points do not occur, because strategies may not propose them (in [NoSE] Sec. V-C three quarters
    of AutoTVM's configurations are illegal: they are measured and teach the surrogate where not to look); known
    children do not occur; a mutated gene may keep its value; genes are whole tilings as in AutoTVM, and distances are
    computed from factors instead of AutoTVM's indices. A failed build or run counts as speed 0, as published.
    """

    population = 100
    """Size N of the population. Source: [NoSE] Sec. V-D: 100."""
    offspring = 1.5
    """Number of children of a generation over N. Source: [NoSE] Sec. V-D: 1.5."""
    elite = 0.3
    """Number of measured children over N. Source: [NoSE] Sec. V-D: 0.3."""
    neighbours = 9
    """Number k of measured points that predict a child. Source: [NoSE] Sec. V-D: 9."""
    mutation = 0.3
    """Probability of each gene to change. Source: [NoSE] Sec. V-D: 0.3."""

    def walk(self) -> Walk:
        """Yield the first population, then the elite of each generation."""
        size = self.population
        points = make_first_population(self.knobs, size, self.draw, None if self.as_published else self.ranked)
        if not len(points):
            return
        elite, points, speeds = points, points[:0], np.empty(0)
        past, past_speeds = points, speeds
        for generation in range(1, 1 << 30):
            for new, answers in self.receive_new(elite, (yield elite)):
                new_speeds = _compute_speeds(answers)
                past, past_speeds = (np.concatenate([past, new]), np.concatenate([past_speeds, new_speeds]))
                points, speeds = np.concatenate([points, new]), np.concatenate([speeds, new_speeds])
            if generation > 1:
                best = np.argsort(-speeds, kind="stable")[:size]
                points, speeds = points[best], speeds[best]
            if not len(points):  # no trial has returned, so there are no parents
                elite = self.draw_new(max(1, round(self.elite * size)), 3, generation)
                continue
            children = self._children(points, speeds, generation)
            if not len(children):
                if not self.num_missing:
                    return
                elite = children
                continue
            predicted = self._predict(children, past, past_speeds)
            elite = children[np.argsort(-predicted, kind="stable")[: max(1, round(self.elite * size))]]

    def _children(self, points: Integers, speeds: Floats, generation: int) -> Integers:
        """Return new legal points: crossed and mutated parents, or random points if evolution finds no new ones."""
        num_children = max(1, round(self.offspring * self.population))
        genes = self.knobs.genes(points)
        children = np.empty((0, points.shape[1]), dtype=np.int64)
        for attempt in range(_TRIES):
            rng = self.random(generation, attempt)
            first, second = genes[roulette(speeds, num_children, rng)], genes[roulette(speeds, num_children, rng)]
            genes_of_children = single_point_crossover(first, second, rng)
            genes_of_children = mutate(genes_of_children, self.knobs.gene_radices, self.mutation, rng)
            born, legal = self.knobs.from_genes(genes_of_children)
            children = self.filter_new(np.concatenate([children, born[legal]]))
            if len(children) >= num_children:
                break
        return children[:num_children] if len(children) else self.draw_new(num_children, 2, generation)

    def _predict(self, children: Integers, known_points: Integers, speeds: Floats) -> Floats:
        """Return the predicted speed of each child."""
        values = self.knobs.values(children), self.knobs.values(known_points)
        if self.as_published:
            return average_neighbours(*values, speeds, self.neighbours)
        times = self.model.times(known_points)[0]
        ratios = average_neighbours(*values, speeds * times, self.neighbours)
        result: Floats = ratios / self.model.times(children)[0]
        return result


def _compute_speeds(answers: list[TrialAnswer]) -> Floats:
    """Return 1 / seconds, and 0 for failures. Source: [NoSE] Sec. III-B (0 GFLOPS for what cannot be compiled)."""
    return np.array([1.0 / one.cost if one.cost else 0.0 for one in answers])


def average_neighbours(points: Floats, known_points: Floats, values: Floats, count: int) -> Floats:
    """Return for each point the mean value of its nearest known points, weighted by 1 / distance.

    Source: [NoSE] Eq. (1)-(4); a known point at distance 0 determines the answer.
    """
    distance = cdist(points, known_points, "canberra")
    count = min(count, len(known_points))
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
    near = np.maximum(np.take_along_axis(distance, nearest, axis=1), 1e-12)
    weights = 1.0 / near
    result: Floats = (weights * values[nearest]).sum(axis=1) / weights.sum(axis=1)
    return result
