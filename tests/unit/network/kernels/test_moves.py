"""Kernels that move elements: NumPy's transposes and concatenations, to the bit."""

import numpy as np
import pytest

from anatune.core.sizes import Size
from anatune.network.kernels.moves import ConcatKernel, PermuteKernel, concat_program, permute_program
from tests.unit.codegen.cpu.building import built, built_for_sizes

pytest.importorskip("tvm")

PERMUTED = [
    ((1, 3, 37, 41), (0, 2, 3, 1)), ((1, 37, 41, 3), (0, 3, 1, 2)), ((2, 40, 7, 9), (0, 2, 3, 1)),
    ((2, 7, 9, 40), (0, 3, 1, 2)), ((1, 12, 5, 64), (0, 2, 1, 3)), ((33, 50), (1, 0)), ((16, 32), (1, 0)),
    ((3, 4, 5, 6), (3, 2, 1, 0)), ((2, 3, 5), (1, 0, 2)), ((4, 20, 30), (0, 2, 1)), ((4, 20, 30), (2, 0, 1)),
    ((1, 1, 1), (2, 0, 1)), ((5, 1, 7), (1, 0, 2)), ((2, 200), (1, 0)), ((200, 2), (1, 0)), ((4, 70, 100), (2, 1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "axes"), PERMUTED)
@pytest.mark.parametrize("threads", [1, 2])
def test_dimensions_in_another_order(shape, axes, threads):
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    want = np.transpose(data, axes)
    for lanes in (4, 16):
        program = permute_program(PermuteKernel(shape, axes), "kernel", threads, lanes=lanes)
        np.testing.assert_array_equal(built(program, want.shape, threads)(data), want)


def test_dimensions_next_to_each_other_are_one():
    assert PermuteKernel((1, 3, 224, 224), (0, 2, 3, 1)).loops == [(224 * 224, 1, 3), (3, 224 * 224, 1)]
    assert PermuteKernel((2, 3, 4), (0, 1, 2)).loops == [(24, 1, 1)]


def test_many_elements_on_several_threads():
    data = np.random.default_rng(0).standard_normal((1, 3, 211, 307)).astype(np.float32)
    for axes in ((0, 2, 3, 1), (0, 3, 2, 1), (0, 2, 1, 3)):
        want = np.transpose(data, axes)
        program = permute_program(PermuteKernel(data.shape, axes), "kernel", 2, lanes=16)
        np.testing.assert_array_equal(built(program, want.shape, 2)(data), want)


@pytest.mark.parametrize("lengths", [(3, 70, 16), (5,), (64, 64), (1, 1000, 1, 7)])
@pytest.mark.parametrize("outer", [1, 37, 400])
@pytest.mark.parametrize("threads", [1, 2])
def test_concatenations(lengths, outer, threads):
    random = np.random.default_rng(1)
    parts = [random.standard_normal((outer, length)).astype(np.float32) for length in lengths]
    program = concat_program(ConcatKernel(outer, lengths), "kernel", threads, lanes=16)
    got = built(program, (outer, sum(lengths)), threads)(*parts)
    np.testing.assert_array_equal(got, np.concatenate(parts, axis=1))


BATCH, TOKENS, WIDTH = (Size.symbol(name, size) for name, size in (("batch", 1), ("tokens", 3), ("width", 56)))
SYMBOLS = [{"batch": 1 + n % 3, "tokens": n, "width": 1 + n * 7 % 40} for n in [*range(1, 36), 64, 70]]


def at(sizes, symbols):
    return tuple(size.at(symbols) if isinstance(size, Size) else size for size in sizes)


def named(sizes, symbols):
    used = frozenset().union(*(size.symbols for size in sizes if isinstance(size, Size)))
    return {name: symbols[name] for name in used}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axes"), [
    ((BATCH, TOKENS, 12, 64), (0, 2, 1, 3)), ((BATCH, 3, TOKENS, WIDTH), (0, 2, 3, 1)), ((TOKENS, 3), (1, 0)),
    ((BATCH, TOKENS, 40), (0, 2, 1)), ((2, TOKENS, WIDTH), (0, 2, 1)), ((BATCH, 5, TOKENS), (2, 1, 0)),
    ((3, 37, TOKENS), (1, 0, 2)),
])  # fmt: skip
def test_one_permutation_serves_sizes_that_are_known_at_run_time(shape, axes, threads):
    call = built_for_sizes(permute_program(PermuteKernel(shape, axes), "kernel", threads, lanes=8), threads)
    for symbols in SYMBOLS:
        sizes = at(shape, symbols)
        want = np.transpose(np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes), axes)
        got = call(want.shape, np.ascontiguousarray(np.transpose(want, np.argsort(axes))), **named(shape, symbols))
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("outer", "lengths"), [(BATCH * 9, (40, 3)), (BATCH, (TOKENS * 64, 64)), (7, (TOKENS, 3, WIDTH, TOKENS))]
)
def test_one_concatenation_serves_sizes_that_are_known_at_run_time(outer, lengths, threads):
    call = built_for_sizes(concat_program(ConcatKernel(outer, lengths), "kernel", threads, lanes=8), threads)
    random = np.random.default_rng(1)
    for symbols in SYMBOLS:
        rows, *operands = at((outer, *lengths), symbols)
        parts = [random.standard_normal((rows, length)).astype(np.float32) for length in operands]
        got = call((rows, sum(operands)), *parts, **named((outer, *lengths), symbols))
        np.testing.assert_array_equal(got, np.concatenate(parts, axis=1))
