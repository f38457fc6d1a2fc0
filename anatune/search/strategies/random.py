"""Uniform random search: the baseline for all other strategies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anatune.search.points import Integers, SeenPrograms
from anatune.search.strategy import SequenceStrategy

_CHUNK = 256
_LISTED = 100_000
"""Largest space that is shuffled; points of larger ones are drawn."""
_BARREN = 20
"""Number of chunks without a new program after which the space counts as exhausted."""


class RandomStrategy(SequenceStrategy):
    """Legal points drawn uniformly, each program once; deterministic for a seed."""

    def sequence(self) -> Iterator[Integers]:
        """Yield the points of a shuffled small space, or random points of a large one."""
        space = self.space
        if space.size <= _LISTED:
            order = np.random.default_rng(self.seed).permutation(space.size)
            for first in range(0, len(order), _CHUNK):
                numbers = order[first : first + _CHUNK]
                points = space.points_at(numbers)
                yield from points[self.model.check(points) == 0]
            return
        met = SeenPrograms(self.model)
        chunk = barren = 0
        while barren < _BARREN:
            seed = np.random.SeedSequence((self.seed, chunk)).generate_state(1)[0]
            barren, chunk = barren + 1, chunk + 1
            for point in space.sample_points(_CHUNK, int(seed)):
                if met.add(point):
                    barren = 0
                    yield point
