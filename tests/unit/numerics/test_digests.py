"""Digests of memory: any change of contents, order or length changes them, where memory lies does not."""

import functools
import operator

import numpy as np
import pytest

from anatune.numerics.digests import NUM_KEYS, update_digest

KEYS = np.random.default_rng(7).integers(0, 1 << 64, NUM_KEYS, dtype=np.uint64)
SIZES = [0, 1, 7, 8, 9, 63, 64, 4095, 4096, 4097, 9000]


@pytest.fixture(autouse=True)
def wraps():
    """Integers wrap around, also where functions are not compiled."""
    with np.errstate(over="ignore"):
        yield


def digest(*parts):
    state = np.zeros(1, np.uint64)
    for part in parts:
        update_digest(np.frombuffer(bytes(part), np.uint8), KEYS, state)
    return int(state[0])


def in_plain_python(*parts):
    """Return the digest in Python's integers, as the docstring of the module says."""
    low, state = (1 << 32) - 1, 0
    for part in parts:
        numbers = [len(part) + 1]
        words = [int.from_bytes(part[at : at + 8], "little") for at in range(0, len(part) - 7, 8)]
        for begin in range(0, len(words), NUM_KEYS):
            added = [
                (word + int(key)) % (1 << 64) for word, key in zip(words[begin : begin + NUM_KEYS], KEYS, strict=False)
            ]
            products = [(word & low) * (word >> 32) for word in added]
            numbers += [sum(products) % (1 << 64), functools.reduce(operator.xor, products)]
        for number in numbers + list(part[8 * len(words) :]):
            state = (state ^ number) * 0x9E3779B97F4A7C15 % (1 << 64)
            state ^= state >> 32
    return state


@pytest.mark.parametrize("size", SIZES)
def test_a_digest_is_that_of_plain_python(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8).tobytes()
    assert digest(data) == in_plain_python(data)
    assert digest(data, b"more") == in_plain_python(data, b"more")


def test_any_byte_that_changes_changes_the_digest():
    data = bytearray(np.random.default_rng(0).integers(0, 256, 1003, dtype=np.uint8).tobytes())
    seen = {digest(data)}
    for index in range(len(data)):
        for bit in (0, 7):
            data[index] ^= 1 << bit
            seen.add(digest(data))
            data[index] ^= 1 << bit
    assert len(seen) == 1 + 2 * len(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
def test_changes_of_all_elements_are_seen(dtype):
    """Signs, orders, rows that change places, zeros of another sign, sums that stay as they are."""
    array = np.random.default_rng(1).integers(1, 100, (16, 32)).astype(dtype)
    moved = array.copy()
    moved[0, 0], moved[0, 1] = moved[0, 0] + 1, moved[0, 1] - 1
    zeros = np.zeros_like(array)
    others = [
        array, -array, array[::-1], array[:, ::-1], np.roll(array, 1, 0), array.T, moved, array + 1, zeros, zeros[:8],
        np.ones_like(array),
    ]  # fmt: skip
    if array.dtype.kind == "f":
        others += [-zeros, zeros + np.nan, zeros + np.inf, zeros + 1e-40]
    digests = [digest(np.ascontiguousarray(other).tobytes()) for other in others]
    assert len(set(digests)) == len(digests)


def test_where_one_tensor_ends_and_another_begins_counts():
    lists = [(b"abcdefgh", b"i"), (b"abcdefg", b"hi"), (b"abcdefghi",), (b"", b"abcdefghi"), (b"abcdefghi", b"")]
    assert len({digest(*parts) for parts in lists}) == len(lists)


def test_where_memory_lies_does_not_count():
    data = np.random.default_rng(2).integers(0, 256, 5000, dtype=np.uint8)
    memory = np.zeros(5016, np.uint8)
    digests = set()
    for offset in (0, 1, 4, 8):
        memory[offset : offset + data.size] = data
        state = np.zeros(1, np.uint64)
        update_digest(memory[offset : offset + data.size], KEYS, state)
        digests.add(int(state[0]))
    assert len(digests) == 1
