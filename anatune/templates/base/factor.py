"""Divisors and ordered factorisations, which are the perfect tilings of a loop.

A factorisation of an extent into `parts` factors is ordered (8 = 2x4 and 8 = 4x2 are different tilings). There are
``prod(C(e + parts - 1, parts - 1))`` of them, where e runs over the exponents of the primes of the extent.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["count_factorisations", "divisors", "factorisations", "prime_exponents"]


@lru_cache(maxsize=4096)
def prime_exponents(extent: int) -> tuple[tuple[int, int], ...]:
    """Return the (prime, exponent) pairs of `extent` >= 1, ascending."""
    exponents = []
    prime = 2
    quotient = extent
    while prime * prime <= quotient:
        exponent = 0
        while quotient % prime == 0:
            quotient //= prime
            exponent += 1
        if exponent:
            exponents.append((prime, exponent))
        prime += 1 if prime == 2 else 2
    if quotient > 1:
        exponents.append((quotient, 1))
    return tuple(exponents)


@lru_cache(maxsize=4096)
def divisors(extent: int) -> tuple[int, ...]:
    """Return all divisors of `extent` >= 1, ascending."""
    result = [1]
    for prime, exponent in prime_exponents(extent):
        result = [d * prime**e for d in result for e in range(exponent + 1)]
    return tuple(sorted(result))


def count_factorisations(extent: int, parts: int) -> int:
    """Return the number of ordered factorisations of `extent` into `parts` factors, exact for any size."""
    return math.prod(math.comb(exponent + parts - 1, parts - 1) for _, exponent in prime_exponents(extent))


@lru_cache(maxsize=1024)
def factorisations(extent: int, parts: int) -> NDArray[np.int64]:
    """Return all ordered factorisations of `extent` into `parts` factors.

    Returns
    -------
    (count, parts) int64, read-only
        Rows in lexicographic order; each row's product is `extent`.
    """
    if parts == 1:
        table = np.array([[extent]], dtype=np.int64)
    else:
        blocks = []
        for first in divisors(extent):
            inner_factors = factorisations(extent // first, parts - 1)
            blocks.append(np.column_stack([np.full(len(inner_factors), first, dtype=np.int64), inner_factors]))
        table = np.concatenate(blocks)
    table.setflags(write=False)
    return table
