"""Uniform random search: the baseline that every other strategy must beat."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anatune.search.points import Integers, Seen
from anatune.search.strategy import SequenceStrategy

_CHUNK = 256
_LISTED = 100_000
"""Spaces up to this size are shuffled; points of larger ones are drawn."""
_BARREN = 20
"""Draws of a chunk without a new program after which the space counts as used up."""


class RandomStrategy(SequenceStrategy):
    """Legal points drawn uniformly, each program once; deterministic for a seed."""

    def sequence(self) -> Iterator[Integers]:
        """Yield the points: a shuffle of a small space, draws from a large one."""
        space = self.space
        if space.size <= _LISTED:
            order = np.random.default_rng(self.seed).permutation(space.size)
            for first in range(0, len(order), _CHUNK):
                numbers = order[first : first + _CHUNK]
                points = space.points_at(numbers)
                yield from points[self.model.check(points) == 0]
            return
        met = Seen(self.model)
        chunk = barren = 0
        while barren < _BARREN:
            seed = np.random.SeedSequence((self.seed, chunk)).generate_state(1)[0]
            barren, chunk = barren + 1, chunk + 1
            for point in space.sample_points(_CHUNK, int(seed)):
                if met.add(point):
                    barren = 0
                    yield point
