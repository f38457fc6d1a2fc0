"""Bank conflicts against the addresses of all threads of a warp."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from anatune.templates.cuda.times.shared_memory import conflict_degree_one, conflict_table
from tests.naive_gpu import busiest_bank


@pytest.fixture(scope="module")
def table() -> NDArray[np.uint8]:
    return conflict_table()


def test_table_counts_words_of_the_busiest_bank(table: NDArray[np.uint8]) -> None:
    assert table.shape == (32, 33, 32, 33)
    assert table.dtype == np.uint8
    counts = [(a, b) for a in range(1, 33) for b in range(1, 33) if a * b <= 32]
    rng = np.random.default_rng(0)
    for stride_1, stride_2 in rng.integers(0, 32, (60, 2)).tolist():
        for count_1, count_2 in counts:
            words = (i * stride_1 + j * stride_2 for i in range(count_1) for j in range(count_2))
            assert table[stride_1, count_1, stride_2, count_2] == busiest_bank(words)


def test_known_degrees(table: NDArray[np.uint8]) -> None:
    def degree(*lattice: int) -> float:
        return conflict_degree_one(table, *lattice, 1, 32)

    assert degree(1, 32, 0, 1) == 1  # neighbours
    assert [degree(2**e, 32, 0, 1) for e in range(6)] == [1, 2, 4, 8, 16, 32]
    assert degree(33, 32, 0, 1) == 1  # a padded column
    assert degree(1, 16, 16, 2) == 1  # two rows of 16 side by side
    assert degree(1, 16, 32, 2) == 2  # the same banks
    assert degree(1, 1, 0, 1) == 1  # all threads read one word


def test_strides_count_modulo_the_banks(table: NDArray[np.uint8]) -> None:
    for stride, count in itertools.product((1, 3, 8, 24, 31), (2, 7, 32)):
        far = conflict_degree_one(table, stride + 320, count, 0, 1, 1, 32)
        assert far == conflict_degree_one(table, stride, count, 0, 1, 1, 32)


def test_wide_loads_are_served_in_phases(table: NDArray[np.uint8]) -> None:
    # 128-bit loads: 8 threads at a time, four words each; only the first words' banks are compared
    for stride in (4, 8, 16, 36):
        expected = busiest_bank(i * stride for i in range(8))
        assert conflict_degree_one(table, stride, 32, 0, 1, 1, 8) == expected
    for count in (1, 2, 4, 8, 16):
        second = min(32 // count, max(1, 8 // min(count, 8)))
        expected = busiest_bank(i * 4 + j * 64 for i in range(min(count, 8)) for j in range(second))
        assert conflict_degree_one(table, 4, count, 64, 32 // count, 1, 8) == expected


def test_further_axes_multiply(table: NDArray[np.uint8]) -> None:
    once = conflict_degree_one(table, 8, 4, 32, 2, 1, 32)
    assert conflict_degree_one(table, 8, 4, 32, 2, 3, 32) == 3 * once
