"""Columns of points that are evaluated together, and the arrays that compiled functions take.

A chunk has a fixed number of points: loops over it are what the compiler vectorises, one operation, many points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHUNK_SIZE = 256
"""Points of a chunk: their columns stay in a core's L2 cache."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


def float_rows(count: int) -> Floats:
    """Return `count` rows of a chunk, all ones."""
    return np.ones((count, CHUNK_SIZE))


def int_rows(count: int) -> Ints:
    """Return `count` rows of a chunk, all ones."""
    return np.ones((count, CHUNK_SIZE), dtype=np.int64)
