"""Divisors and ordered factorisations against trial division."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anatune.templates.base.factor import count_factorisations, divisors, factorisations, prime_exponents
from tests.cases import each
from tests.naive_gpu import tilings

EXTENTS = [*range(1, 65), 97, 100, 121, 128, 210, 224, 256, 360, 512]


@each("extent", [*EXTENTS, 2**31 - 1, 1009 * 1013, 2**40])
def test_prime_exponents(extent: int) -> None:
    pairs = prime_exponents(extent)
    assert math.prod(prime**exponent for prime, exponent in pairs) == extent
    assert [prime for prime, _ in pairs] == sorted({prime for prime, _ in pairs})
    assert all(exponent >= 1 and prime_exponents(prime) == ((prime, 1),) for prime, exponent in pairs)


@each("extent", EXTENTS)
def test_divisors(extent: int) -> None:
    assert divisors(extent) == tuple(d for d in range(1, extent + 1) if extent % d == 0)


@each("parts", [1, 2, 3, 5])
@each("extent", [1, 2, 7, 12, 17, 36, 64, 100])
def test_factorisations(extent: int, parts: int) -> None:
    table = factorisations(extent, parts)
    assert [tuple(row) for row in table.tolist()] == tilings(extent, parts)  # complete, lexicographic
    assert table.dtype == np.int64
    assert len(table) == count_factorisations(extent, parts)
    with pytest.raises(ValueError, match="read-only"):
        table[0, 0] = 3


def test_counts_of_huge_extents_are_exact() -> None:
    assert count_factorisations(2**60, 5) == math.comb(64, 4)
    assert count_factorisations(2**20 * 3**12, 5) == math.comb(24, 4) * math.comb(16, 4)
    assert count_factorisations(1, 5) == 1
