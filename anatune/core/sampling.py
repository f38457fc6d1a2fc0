"""Uniform samples of a tile space; the GPU and the CPU space share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from anatune.errors import SpaceError

__all__ = ["checked_count", "draw_points"]

ROUNDS = 400
"""Draws after which a space counts as having next to no legal point."""


def checked_count(name: str, value: object, least: int) -> int:
    """Return `value` as a Python int.

    Raises
    ------
    SpaceError
        It is no integer (a bool is none), or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise SpaceError(f"{name} is {value!r}, expected an integer >= {least}")
    return int(value)


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
        `count` or `seed` is no integer >= 0.
    """
    count = checked_count("sample: count", count, 0)
    rng = np.random.default_rng(checked_count("sample: seed", seed, 0))
    found = [decode(np.zeros((0, len(radices)), dtype=np.int64))]
    have = 0
    for _ in range(ROUNDS):
        if have >= count:
            break
        points = decode(np.column_stack([rng.integers(0, radix, max(4 * count, 1024)) for radix in radices]))
        if keep is not None:
            points = points[keep(points)]
        found.append(points)
        have += len(points)
    return np.concatenate(found)[:count]
