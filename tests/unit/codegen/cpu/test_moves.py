"""Kernels that move elements: NumPy's transposes and concatenations, to the bit."""

import numpy as np
import pytest

from anatune.codegen.cpu.moves import ConcatKernel, PermuteKernel, concat_program, permute_program
from tests.unit.codegen.cpu.building import built

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
