"""Uniform draws from a product of lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.arguments import MOST_SEED, checked_integer

__all__ = ["draw_points"]

MOST_POINTS = 1_000_000
"""Most points of one sample: some hundred bytes each, as schedules some thousand."""
_MOST_DRAWN = 1 << 18
"""Points drawn at once."""
ROUNDS = 400
"""Draws after which a space counts as having next to no legal point."""


def draw_points(
    radices: Sequence[int],
    decode: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None,
    count: int,
    seed: int,
) -> NDArray[np.int64]:
    """Draw `count` points uniformly, with replacement, from those that `keep` accepts (None: all).

    Parameters
    ----------
    radices : sequence of int
        Number of choices of each coordinate.
    decode : callable
        (num_points, len(radices)) coordinates -> (num_points, columns) points, both int64.

    Returns
    -------
    (count, columns) int64
        Fewer rows only if next to nothing is accepted.

    Raises
    ------
    SpaceError
        `count` or `seed` is no integer >= 0, or there are too many of them.
    """
    count = checked_integer("sample: count", count, 0, MOST_POINTS)
    rng = np.random.default_rng(checked_integer("sample: seed", seed, 0, MOST_SEED))
    found = [decode(np.zeros((0, len(radices)), dtype=np.int64))]
    have, wanted = 0, max(4 * count, 1024)
    at_once = min(wanted, _MOST_DRAWN)
    for _ in range(ROUNDS * -(-wanted // at_once)):
        if have >= count:
            break
        points = decode(np.column_stack([rng.integers(0, radix, at_once) for radix in radices]))
        if keep is not None:
            points = points[keep(points)]
        found.append(points)
        have += len(points)
    return np.concatenate(found)[:count]
