"""Neighbours of points in CPU spaces, and the pool of promising points with which a search begins."""

from __future__ import annotations

import itertools

import numpy as np

from anatune.search.points import Floats, Integers, count_predecessors
from anatune.templates.cpu.model.model import CpuModel
from anatune.templates.cpu.space import CpuSpace

_SAMPLES = 40_000
_ROUNDS = 12
_CHILDREN = 8_000
"""Sizes for the first pool: uniform samples, rounds of changes, and changed points of a round."""
_PER_KERNEL = 3
_PER_TILE = 14
_MOST_TILES = 120
_WORST = 1.6
"""Limits of the pool: points of each microkernel, points of each register tile (microkernels that differ in unrolling
or in the number of calls), register tiles, and predicted times over the best one. The best measured points were
predicted up to 10 % slower than the first, so that points of lower rank must be in the pool, but not all of similar
ones. """


class Moves:
    """Moves in a CPU space, in coordinates: the tiling index of each axis, then orders, packings and parallel.

    Parameters
    ----------
    space
        The space.
    """

    def __init__(self, space: CpuSpace) -> None:
        self.space = space
        self._num_axes = len(space.axes)
        self._same_kernel: list[list[Integers]] = []
        """All tilings with the same innermost factor (and pair), by axis and class."""
        self._class_of: list[Integers] = []
        self._tile_of: list[Integers] = []
        """The class of each tiling, and the rows or vectors of its larger microkernel (pairs are marked), by axis."""
        for axis in space.axes:
            table = space.table(axis)
            inner = table[:, len(space.levels[axis]) - 1 :]
            _, classes = np.unique(inner, axis=0, return_inverse=True)
            classes = classes.reshape(-1)
            self._class_of.append(classes)
            self._tile_of.append(self._tiles(axis, inner))
            self._same_kernel.append([np.flatnonzero(classes == c) for c in range(int(classes.max()) + 1)])

    def _tiles(self, axis: str, inner: Integers) -> Integers:
        """Return the register tile along `axis` for rows of (innermost factor, calls of a pair)."""
        if axis not in self.space.pairable:
            return np.zeros(len(inner), dtype=np.int64)
        units = -(-inner[:, 0] // (self.space.lanes if axis == self.space.simd_axis else 1))
        result: Integers = 2 * -(-units // np.maximum(inner[:, 1], 1)) + (inner[:, 1] > 0)
        return result

    def nearby_tilings(self, coordinates: Integers, axis: int) -> Integers:
        """Return the tilings of one axis that differ in two factors, or only in the pair."""
        space = self.space
        name = space.axes[axis]
        table = space.table(name)[:, : len(space.levels[name])]
        current = int(coordinates[axis])
        different = (table != table[current]).sum(axis=1)
        nearby: Integers = np.flatnonzero((different <= 2) & (np.arange(len(table)) != current))
        return nearby

    def neighbours(self, coordinates: Integers, combined: int, rng: np.random.Generator) -> Integers:
        """Return the coordinates one step from a point, and `combined` random ones two steps away.

        A step changes one axis, order or packing, or the parallel loop.

        Returns
        -------
        (num_points, len(radices)) int64
            Coordinates, legal or not; a point may occur twice.
        """
        steps: list[tuple[int, Integers]] = [(a, self.nearby_tilings(coordinates, a)) for a in range(self._num_axes)]
        for column in range(self._num_axes, len(self.space.radices)):
            others = np.arange(self.space.radices[column])
            steps.append((column, others[others != coordinates[column]]))
        steps = [step for step in steps if len(step[1])]
        neighbours = []
        for column, values in steps:
            rows = np.repeat(coordinates[None, :], len(values), axis=0)
            rows[:, column] = values
            neighbours.append(rows)
        if len(steps) > 1:
            rows = np.repeat(coordinates[None, :], combined, axis=0)
            pairs = np.array(list(itertools.combinations(range(len(steps)), 2)))
            choice = pairs[rng.integers(0, len(pairs), combined)]
            for column, values in enumerate(values for _, values in steps):
                where = (choice == column).any(axis=1)
                rows[where, steps[column][0]] = values[rng.integers(0, len(values), int(where.sum()))]
            neighbours.append(rows)
        return np.concatenate(neighbours) if neighbours else np.empty((0, len(coordinates)), dtype=np.int64)

    def mutate_rows(self, coordinates: Integers, rng: np.random.Generator) -> Integers:
        """Return a changed copy of each row: one or two axes (mostly with the same microkernel), sometimes a choice."""
        result = coordinates.copy()
        size = len(result)
        for _ in range(2):
            axis = rng.integers(0, self._num_axes, size)
            free = rng.random(size) < 0.2
            draw = rng.random(size)
            for a in range(self._num_axes):
                rows = np.flatnonzero(axis == a)
                if not len(rows):
                    continue
                anywhere = rows[free[rows]]
                result[anywhere, a] = (draw[anywhere] * self.space.radices[a]).astype(np.int64)
                kept = rows[~free[rows]]
                classes = self._class_of[a][result[kept, a]]
                for c in np.unique(classes):
                    of_class = kept[classes == c]
                    members = self._same_kernel[a][c]
                    result[of_class, a] = members[(draw[of_class] * len(members)).astype(np.int64)]
        for column in range(self._num_axes, len(self.space.radices)):
            where = rng.random(size) < 0.08
            result[where, column] = rng.integers(0, self.space.radices[column], int(where.sum()))
        return result

    def kernel_ids(self, coordinates: Integers) -> Integers:
        """Return a number for each row; rows with equal microkernels and packed tensors have equal numbers."""
        return self._ids(self._class_of, coordinates)

    def tile_ids(self, coordinates: Integers) -> Integers:
        """Return a number for each row; rows with equal register tiles and packed tensors have equal numbers."""
        return self._ids(self._tile_of, coordinates)

    def _ids(self, classes: list[Integers], coordinates: Integers) -> Integers:
        """Return a number for each row; rows with equal classes of tilings and packed tensors have equal numbers."""
        ids = np.zeros(len(coordinates), dtype=np.int64)
        for axis, class_of in enumerate(classes):
            ids = ids * (int(class_of.max()) + 1) + class_of[coordinates[:, axis]]
        packs = len(self.space.packable)
        for column in range(len(self.space.radices) - 1 - packs, len(self.space.radices) - 1):
            ids = ids * 2 + coordinates[:, column]
        return ids


def make_first_pool(model: CpuModel, moves: Moves, start: Integers, seed: int) -> Integers:
    """Return legal points of many microkernels, for each the best that a short evolution on predicted times finds.

    Parameters
    ----------
    model
        Model that predicts.
    moves
        Moves of its space.
    start : (num_points, num_columns) int64
        First points of the pool: the best of the ranking.
    seed : int
        Seed of the evolution.

    Returns
    -------
    (num_points, num_columns) int64
        The points of `start`, then at most _PER_TILE * _MOST_TILES others.
    """
    space = model.space
    rng = np.random.default_rng(seed)
    if space.size <= 2 * _SAMPLES:
        numbers = np.arange(space.size)
        pool = np.column_stack(np.unravel_index(numbers, space.radices)).astype(np.int64)
    else:
        pool = space.encode(np.concatenate([start, space.sample_points(_SAMPLES, seed)]))
    pool, times = _keep_legal(model, pool)
    pool, times = _best_of_each(moves, pool, times)
    if space.size > 2 * _SAMPLES and len(pool):
        for _ in range(_ROUNDS):
            parents = pool[np.arange(_CHILDREN) % len(pool)]
            children, child_times = _keep_legal(model, moves.mutate_rows(parents, rng))
            pool, times = np.concatenate([pool, children]), np.concatenate([times, child_times])
            pool, times = _best_of_each(moves, pool, times)
    return np.concatenate([start, space.decode(pool)])


def _keep_legal(model: CpuModel, coordinates: Integers) -> tuple[Integers, Floats]:
    times, rules = model.times(model.space.decode(coordinates))
    return coordinates[rules == 0], times[rules == 0]


def _best_of_each(moves: Moves, pool: Integers, times: Floats) -> tuple[Integers, Floats]:
    """Return the best points of each microkernel and register tile, in rounds of one point a tile."""
    if not len(pool):
        return pool, times
    pool, first = np.unique(pool, axis=0, return_index=True)
    times = times[first]
    near = times <= _WORST * times.min()
    order = np.argsort(times[near], kind="stable")
    pool, times = pool[near][order], times[near][order]
    kept = count_predecessors(moves.kernel_ids(pool)) < _PER_KERNEL
    pool, times = pool[kept], times[kept]
    tiles = moves.tile_ids(pool)
    _, places, numbers = np.unique(tiles, return_index=True, return_inverse=True)
    best = np.argsort(np.argsort(places))[numbers.reshape(-1)]  # rank of each tile, because the pool is sorted by time
    turn = count_predecessors(tiles)
    kept = (turn < _PER_TILE) & (best < _MOST_TILES)
    order = np.lexsort((best[kept], turn[kept]))
    return pool[kept][order], times[kept][order]
