"""Bank conflicts of shared-memory loads.

A load of a warp takes as many cycles as the busiest bank has distinct words; [Roller] Sec. 4.2 uses the same rule. The
addresses of a warp form a two-dimensional lattice, with threads along two axes of the block. The conflict degree
depends on two strides modulo the 32 banks and two counts, so that a small table holds all of them.
"""

from __future__ import annotations

import numpy as np

from anatune.numerics._jit import jit, jit_inline
from anatune.numerics.columns import Bytes, Ints

__all__ = ["conflict_degree_one", "conflict_table", "fill_conflicts"]

NUM_BANKS = 32


def conflict_table() -> Bytes:
    """Return the table [stride_1, count_1, stride_2, count_2] -> most words in one bank, (32, 33, 32, 33) uint8.

    Entries with count_1 * count_2 > 32 are 1 and not used.
    """
    table = np.ones((NUM_BANKS, NUM_BANKS + 1, NUM_BANKS, NUM_BANKS + 1), np.uint8)
    fill_conflicts(table, np.zeros(NUM_BANKS, np.int64))
    return table


@jit
def fill_conflicts(table: Bytes, words: Ints) -> None:
    """Fill the table of `conflict_table`; `words`, (NUM_BANKS,), is work space."""
    for stride_1 in range(NUM_BANKS):
        for count_1 in range(1, NUM_BANKS + 1):
            for stride_2 in range(NUM_BANKS):
                for count_2 in range(1, NUM_BANKS // count_1 + 1):
                    for bank in range(NUM_BANKS):
                        words[bank] = 0
                    worst = 0
                    for i in range(count_1):
                        for j in range(count_2):
                            bank = (i * stride_1 + j * stride_2) % NUM_BANKS
                            words[bank] += 1
                            worst = max(worst, words[bank])
                    table[stride_1, count_1, stride_2, count_2] = worst


@jit_inline
def conflict_degree_one(
    table: Bytes, stride_1: int, count_1: int, stride_2: int, count_2: int, others: int, phase: int
) -> float:
    """Return the conflict degree of a load that the hardware serves in phases of `phase` threads.

    Strides are in 4-byte words between neighbouring threads. `others` is the degree that further axes contribute.
    """
    first = min(count_1, phase)
    second = min(count_2, max(1, phase // first))
    degree = table[stride_1 % NUM_BANKS, first, stride_2 % NUM_BANKS, second]
    return float(degree) * others
