"""NoSE: evolution whose children are chosen for measurement by a weighted k-nearest-neighbour surrogate.

Source: [NoSE] Sec. III-B; settings of Sec. V-D.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from anatune.search.knobs import first_population, mutate, roulette, single_point_crossover
from anatune.search.points import Floats, Integers
from anatune.search.stepwise import Answer, StepwiseStrategy, Walk

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
        points = first_population(self.knobs, size, self.draw, None if self.as_published else self.ranked)
        if not len(points):
            return
        elite, points, speeds = points, points[:0], np.empty(0)
        known, known_speeds = points, speeds
        for generation in range(1, 1 << 30):
            for some, answers in self.known(elite, (yield elite)):
                came = _speeds(answers)
                known, known_speeds = np.concatenate([known, some]), np.concatenate([known_speeds, came])
                points, speeds = np.concatenate([points, some]), np.concatenate([speeds, came])
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
            predicted = self._predict(children, known, known_speeds)
            elite = children[np.argsort(-predicted, kind="stable")[: max(1, round(self.elite * size))]]

    def _children(self, points: Integers, speeds: Floats, generation: int) -> Integers:
        """Return new legal points: crossed and mutated parents, or random points if evolution finds no new ones."""
        wanted = max(1, round(self.offspring * self.population))
        genes = self.knobs.genes(points)
        found = np.empty((0, points.shape[1]), dtype=np.int64)
        for attempt in range(_TRIES):
            rng = self.random(generation, attempt)
            one, other = genes[roulette(speeds, wanted, rng)], genes[roulette(speeds, wanted, rng)]
            made = single_point_crossover(one, other, rng)
            made = mutate(made, self.knobs.gene_radices, self.mutation, rng)
            born, legal = self.knobs.from_genes(made)
            found = self.new_among(np.concatenate([found, born[legal]]))
            if len(found) >= wanted:
                break
        return found[:wanted] if len(found) else self.draw_new(wanted, 2, generation)

    def _predict(self, children: Integers, known: Integers, speeds: Floats) -> Floats:
        """Return the predicted speed of each child."""
        values = self.knobs.values(children), self.knobs.values(known)
        if self.as_published:
            return weighted_neighbours(*values, speeds, self.neighbours)
        times = self.model.times(known)[0]
        ratios = weighted_neighbours(*values, speeds * times, self.neighbours)
        result: Floats = ratios / self.model.times(children)[0]
        return result


def _speeds(answers: list[Answer]) -> Floats:
    """Return 1 / seconds, and 0 for failures. Source: [NoSE] Sec. III-B (0 GFLOPS for what cannot be compiled)."""
    return np.array([1.0 / one.cost if one.cost else 0.0 for one in answers])


def weighted_neighbours(points: Floats, known: Floats, values: Floats, count: int) -> Floats:
    """Return for each point the mean value of its nearest known points, weighted by 1 / distance.

    Source: [NoSE] Eq. (1)-(4); a known point at distance 0 determines the answer.
    """
    distance = cdist(points, known, "canberra")
    count = min(count, len(known))
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
    near = np.maximum(np.take_along_axis(distance, nearest, axis=1), 1e-12)
    weights = 1.0 / near
    result: Floats = (weights * values[nearest]).sum(axis=1) / weights.sum(axis=1)
    return result
