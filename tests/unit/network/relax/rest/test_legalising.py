"""Places of extremes, orders and running sums as anatune writes them: rows of limits, ties and NaN, beside NumPy."""

import numpy as np
import pytest

pytest.importorskip("tvm")

from anatune.network.graph import building as b
from anatune.network.graph.meanings import argsort
from tests.unit.network.relax.rest.test_loops import run

DTYPES = [
    "float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
]  # fmt: skip


def limits(dtype):
    """Return the least and the greatest number of a dtype, and infinities where it has them."""
    if np.dtype(dtype).kind == "f":
        most = np.finfo(dtype).max
        return [-most, most, -np.inf, np.inf]
    return [np.iinfo(dtype).min, np.iinfo(dtype).max]


def rows(dtype, length):
    """Return rows of one number each, of two numbers, of NaN among others, and of anything."""
    ends = limits(dtype)
    table = np.random.default_rng(0).integers(0, 50, (3 * len(ends) + 6, length)).astype(dtype)
    for place, one in enumerate(ends):
        table[3 * place : 3 * place + 3] = one
        table[3 * place + 1, length // 2] = table[3 * place + 1, length - 1] = ends[place - 1]
        table[3 * place + 2, 0] = ends[place - 1]
    table[-6] = 0
    if np.dtype(dtype).kind == "f":
        table[-5:-2, length // 3] = table[-5:-3, -1] = np.nan
        table[-3] = np.nan
        table[-4, : length // 3] = np.inf
        table[-6, ::2] = -0.0
        table[-2, :3] = [-0.0, 1e-42, -1e-42]
    return table


@pytest.mark.parametrize("length", [7, 83])
@pytest.mark.parametrize("dtype", DTYPES)
def test_places_of_extremes_of_every_dtype(dtype, length):
    x = rows(dtype, length)

    def make(v):
        return tuple(
            b.arg_extreme(name, v, axis, keepdims=keepdims)
            for name in ("argmax", "argmin")
            for axis, keepdims in ((0, False), (1, True))
        )

    found = run(make, x)
    for own, (name, axis) in zip(found, [(n, a) for n in ("argmax", "argmin") for a in (0, 1)], strict=True):
        want = getattr(x, name)(axis=axis)
        np.testing.assert_array_equal(own.reshape(want.shape), want)


@pytest.mark.parametrize("is_falling", [False, True])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "uint32"])
def test_orders_of_every_dtype(dtype, is_falling):
    x = rows(dtype, 19)
    made = run(lambda v: b.argsort(v, 1, descending=is_falling), x, is_scheduled=False)[0]
    np.testing.assert_array_equal(made, argsort(x, 1, descending=is_falling))


@pytest.mark.slow
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_running_sums_and_products(dtype, axis, is_exclusive):
    x = (np.random.default_rng(0).random((4, 9, 5)) * 3).astype(dtype) + 1
    made = run(
        lambda v: tuple(b.cumulative(name, v, axis, exclusive=is_exclusive) for name in ("cumsum", "cumprod")),
        x,
        is_scheduled=False,
    )
    for own, name in zip(made, ("cumsum", "cumprod"), strict=True):
        want = getattr(x.astype(np.float64), name)(axis)
        if is_exclusive:
            want = np.roll(want, 1, axis)
            np.moveaxis(want, axis, 0)[0] = name == "cumprod"
        np.testing.assert_allclose(own, want, rtol=1e-6)


def test_running_sums_of_a_million():
    x = np.full(1_000_000, 0.1, np.float32)
    made = run(lambda v: b.cumulative("cumsum", v, 0), x, is_scheduled=False)[0]
    want = x.astype(np.float64).cumsum()
    assert np.abs(made / want - 1).max() < 1e-7
