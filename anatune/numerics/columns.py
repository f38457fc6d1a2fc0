"""Arrays that compiled functions take, and columns of points that are evaluated together, in chunks.

All chunks have the same number of points: compilers vectorise the loops over a chunk.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CHUNK_SIZE = 256
"""Points of a chunk. Its columns stay in the L2 cache of a core."""

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
