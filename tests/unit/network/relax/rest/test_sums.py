"""Long sums of float32 in any shape, beside float64."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from anatune.network.graph import building as b
from anatune.network.relax.rest.sums import BLOCK
from tests.unit.network.relax.rest.test_loops import THREADS, run

SHAPES = [
    ((1_000_000,), (0,)),
    ((300_001, 3), (0,)),
    ((3, 100_001), (1,)),
    ((20_000, 70), (0,)),
    ((40, 9, 2_001), (0, 2)),
    ((3_000, 5, 40), (0, 2)),
    ((2, 3, 400, 300), (0, 2, 3)),
]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_sums_and_means_of_many_numbers(shape, axes, threads):
    alike = np.full(shape, 0.1, np.float32)
    drawn = 1 + np.random.default_rng(0).random(shape, np.float32)

    def make(v, w):
        squares = b.elementwise("multiply", w, w)
        kinds = [("sum", v), ("mean", v), ("sum", w), ("mean", squares)]
        return tuple(b.reduce_axes(name, one, axes, keepdims=False) for name, one in kinds)

    wide, others = alike.astype(np.float64), drawn.astype(np.float64)
    wanted = [wide.sum(axes), wide.mean(axes), others.sum(axes), (others**2).mean(axes)]
    for own, want in zip(run(make, alike, drawn, threads=threads), wanted, strict=True):
        np.testing.assert_allclose(own, want, rtol=1e-6)


@pytest.mark.parametrize("terms", [2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, 64 * 2 * BLOCK + 1, 12_345])
def test_no_term_is_left_out_or_added_twice(terms):
    x = np.random.default_rng(terms).integers(0, 3, (2, terms, 3)).astype(np.float32)
    x[1, -1], x[1, 0, 0], x[0, terms // 2, 1] = np.inf, np.nan, -np.inf

    def make(v):
        along = b.permute(v, (0, 2, 1))
        return b.reduce_axes("sum", v, (1,), keepdims=False), b.reduce_axes("sum", along, (2,), keepdims=False)

    for own in run(make, x):
        np.testing.assert_array_equal(own, x.sum(1))
