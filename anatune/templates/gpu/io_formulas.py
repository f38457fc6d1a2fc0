"""Lower bounds on the data that must move between a fast memory and the next one, whatever the schedule.

Notation
--------
num_points : iterations of the nest; capacity : elements the fast memory holds; traffic in elements.
"""

from __future__ import annotations

import math

__all__ = ["contraction_traffic"]


def contraction_traffic(num_points: float, capacity: float, window_reuse: float) -> float:
    """Return a lower bound on the elements a contraction of two operands moves into a memory of `capacity` elements.

    ``2 * num_points / sqrt(capacity * window_reuse)``: for matmul ``2 M N K / sqrt(S)``. Source: [IOLB] Sec. 6, matmul,
    leading term. A sliding window lets one element serve several kernel positions: window_reuse is the product over
    the window's dimensions of max(1, kernel / stride). Source: [Demmel18] Theorem 1, small-filter case.
    """
    return 2.0 * num_points / math.sqrt(capacity * window_reuse)
