"""Grid search: every point of the space once, in strides that spread the first points over the whole space."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from anatune.search.points import Integers, SeenPrograms
from anatune.search.strategy import SequenceStrategy

_CHUNK = 256
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_MOST_BARREN = 1 << 20
"""Number of consecutive points without a new legal program after which the rest of the space is skipped."""


class GridStrategy(SequenceStrategy):
    """Points number 0, s, 2 s, ... modulo the size of the space, where s and the size have no common factor.

    Every point is visited once; s is near the golden section of the size, so that the first points of any number are
    spread evenly. The seed is the number of points that move to the end.
    """

    def sequence(self) -> Iterator[Integers]:
        """Yield the legal points of different programs."""
        size = int(self.space.size)
        step = max(1, int(size * _GOLDEN))
        while math.gcd(step, size) != 1:
            step += 1
        met = SeenPrograms(self.model)
        barren = 0
        for first in range(0, size, _CHUNK):
            numbers = [(self.seed + k) * step % size for k in range(first, min(first + _CHUNK, size))]
            points = self.space.decode(np.array([self._digits(number) for number in numbers], dtype=np.int64))
            for point, rule in zip(points, self.model.check(points).tolist(), strict=True):
                if rule == 0 and met.add(point):
                    barren = 0
                    yield point
                else:
                    barren += 1
            if barren > _MOST_BARREN:
                return

    def _digits(self, number: int) -> list[int]:
        """Return the coordinates of a point's number; sizes may exceed 64 bits."""
        digits = []
        for radix in reversed(self.space.radices):
            number, digit = divmod(number, radix)
            digits.append(digit)
        return digits[::-1]
