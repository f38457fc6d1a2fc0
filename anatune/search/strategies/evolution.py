"""NoSE: evolution with a weighted k-nearest-neighbour surrogate that picks which children are measured.

Source: [NoSE] Sec. III-B; settings of Sec. V-D.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from anatune.search.knobs import first_population, mutate, roulette, single_point_crossover
from anatune.search.points import Floats, Integers
from anatune.search.stepwise import Answer, StepwiseStrategy, Walk

_TRIES = 20
"""Times that children are made again where too few of them are legal and new."""


class EvolutionStrategy(StepwiseStrategy):
    """Evolution whose children are predicted by their nearest measured points (Canberra distance).

    As published: a random first population, speeds are predicted. From the model's ranking: the first population is the
    ranking's points and the best predicted of random ones, and what is predicted is the speed over the model's.

    Deviates: illegal points are neither in the first population nor born, since strategies may ask for none (in [NoSE]
    Sec. V-C three quarters of AutoTVM's configurations are illegal: they are measured, and teach the surrogate where
    not to look); known children are not born; a mutated gene may draw the value that it had; genes are whole tilings as
    in AutoTVM, distances are taken between factors instead of AutoTVM's indices. What fails when it is built or run
    counts as speed 0, as published.
    """

    population = 100
    """Points that live, N. Source: [NoSE] Sec. V-D: 100."""
    offspring = 1.5
    """Children of a generation over N. Source: [NoSE] Sec. V-D: 1.5."""
    elite = 0.3
    """Children that are measured over N. Source: [NoSE] Sec. V-D: 0.3."""
    neighbours = 9
    """Measured points that predict a child, k. Source: [NoSE] Sec. V-D: 9."""
    mutation = 0.3
    """Chance of each gene to change. Source: [NoSE] Sec. V-D: 0.3."""

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
            if not len(points):  # nothing has come back: nobody to inherit from
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
        """Return new legal points: crossed and mutated parents, random points where evolution has no new ones."""
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
    """Return 1 / seconds, 0 for failures. Source: [NoSE] Sec. III-B (0 GFLOPS for what cannot be compiled)."""
    return np.array([1.0 / one.cost if one.cost else 0.0 for one in answers])


def weighted_neighbours(points: Floats, known: Floats, values: Floats, count: int) -> Floats:
    """Return for each point the mean value of its nearest known points, weighted by 1 / distance.

    Source: [NoSE] Eq. (1)-(4); a known point at distance 0 is the answer.
    """
    distance = cdist(points, known, "canberra")
    count = min(count, len(known))
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
    near = np.maximum(np.take_along_axis(distance, nearest, axis=1), 1e-12)
    weights = 1.0 / near
    result: Floats = (weights * values[nearest]).sum(axis=1) / weights.sum(axis=1)
    return result
