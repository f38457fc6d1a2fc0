"""Kernels of reductions beside NumPy in float64."""

import numpy as np
import pytest

from anatune.codegen.cpu.reductions import ReductionKernel, reduction_program
from anatune.core.sizes import Size
from tests.unit.codegen.cpu.building import built, built_for_sizes

pytest.importorskip("tvm")

SIZES = [(1, 49, 1280), (3, 5, 37), (2, 1, 1), (5, 100, 1), (1, 3, 1), (7, 1024, 1), (2, 64, 300), (4, 9, 16)]


def reduced(kind, data, threads=1, lanes=16):
    program = reduction_program(ReductionKernel(kind, *data.shape), "kernel", threads, lanes=lanes)
    return built(program, (data.shape[0], data.shape[2]), threads)(data)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_reductions_of_any_size(kind, size):
    data = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    wide = data.astype(np.float64)
    want = getattr(np, kind)(wide, axis=1)
    for threads in (1, 2):
        got = reduced(kind, data, threads)
        if kind in ("max", "min"):
            np.testing.assert_array_equal(got, want)
        else:  # pairs of sums: no term is rounded more often than the longest chain is long
            most = np.abs(wide).sum(axis=1) / (size[1] if kind == "mean" else 1)
            assert (np.abs(got - want) <= 2.0**-24 * (size[1] + 2) * most).all()


@pytest.mark.parametrize("lanes", [4, 8])
def test_vectors_of_every_length(lanes):
    data = np.random.default_rng(1).integers(-99, 99, (2, 77, 45)).astype(np.float32)
    np.testing.assert_array_equal(reduced("sum", data, lanes=lanes), data.sum(axis=1))
    np.testing.assert_array_equal(reduced("min", data[:, :, :1], lanes=lanes), data[:, :, :1].min(axis=1))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("inner", [1, 20])
def test_nan_stays_nan(kind, inner):
    data = np.ones((1, 40, inner), np.float32)
    data[0, 17, 0] = np.nan
    got = reduced(kind, data)
    assert np.isnan(got[0, 0])
    assert np.isfinite(got[0, 1:]).all()


BATCH, TOKENS, WIDTH = (Size.symbol(name, size) for name, size in (("batch", 1), ("tokens", 3), ("width", 300)))


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shape", [(BATCH, 7, 300), (BATCH * 5, TOKENS, 37), (BATCH, TOKENS, 1), (BATCH, 5, WIDTH), (3, TOKENS, WIDTH + 1)]
)
def test_one_kernel_serves_sizes_that_are_known_at_run_time(kind, shape, threads):
    call = built_for_sizes(reduction_program(ReductionKernel(kind, *shape), "kernel", threads, lanes=8), threads)
    random = np.random.default_rng(1)
    names = sorted(frozenset().union(*(size.symbols for size in shape if isinstance(size, Size))))
    for tokens in range(1, 71):
        symbols = {"batch": 1 + tokens % 3, "tokens": tokens, "width": 137 - tokens}
        sizes = [size.at(symbols) if isinstance(size, Size) else size for size in shape]
        data = random.standard_normal(sizes).astype(np.float32)
        got = call((sizes[0], sizes[2]), data, **{name: symbols[name] for name in names})
        want = getattr(np, kind)(data.astype(np.float64), axis=1)
        assert np.abs(got - want).max() <= (0 if kind == "max" else 1e-6), sizes
