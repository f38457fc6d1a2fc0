"""Kernels of rows: elementary functions within their bounds over all of float32, softmax and layer norm."""

import numpy as np
import pytest
from scipy import special

from anatune.codegen.cpu.rows import RowKernel, row_program

tvm = pytest.importorskip("tvm")

LENGTH = 1000
EDGES = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38])
_TAIL = 2 * np.sqrt(2 / np.pi)
EXACT = {
    "exp": np.exp,
    "erf": special.erf,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: x * special.expit(_TAIL * (x + 0.044715 * x**3)),
    "relu6": lambda x: np.clip(x, 0, 6),
}


def built(kernel, lanes=None, threads=1):
    """Return a kernel as a function of arrays."""
    from anatune import api
    from anatune.codegen.compat import compile_module, parse_program, target_of

    hardware = api.hardware("host")
    function = parse_program(*row_program(kernel, "kernel", lanes or hardware.fp32_lanes, threads))
    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    code = compile_module(module, target_of(hardware, threads=threads))

    def call(*arrays):
        result = tvm.runtime.tensor(np.full_like(arrays[0], np.nan))
        code["kernel"](*(tvm.runtime.tensor(array) for array in arrays), result)
        return result.numpy()

    return call


@pytest.fixture(scope="module")
def numbers():
    """Return float32 numbers of all sizes, (n, LENGTH)."""
    bits = np.arange(0, 2**32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [np.linspace(-reach, reach, 100_001, dtype=np.float32) for reach in (1, 10, 105)]
    found = np.concatenate([EDGES, *dense, bits])
    return found[: len(found) // LENGTH * LENGTH].reshape(-1, LENGTH)


@pytest.mark.parametrize("name", EXACT)
def test_elementary_functions_keep_their_bounds(numbers, name):
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float64)
        want = EXACT[name](wide)
        got = built(RowKernel(name, *numbers.shape))(numbers)
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded) & np.isfinite(wide)
        spacing = np.spacing(np.abs(np.where(finite, rounded, 1)))
        errors = np.where(finite, np.abs(got - want), 0)
    if name in ("exp", "erf", "tanh"):
        assert (errors <= 2 * spacing).all()
    elif name == "sigmoid":
        assert (errors <= 3 * np.maximum(spacing, 2.0**-126)).all()
    else:
        assert (errors <= 2.0**-22 * np.abs(np.where(finite, wide, 0)) + 2.0**-148).all()
    others = ~finite & ~np.isneginf(numbers)
    np.testing.assert_array_equal(got[others], rounded[others])
    assert not np.isnan(got[finite]).any()


def test_limits():
    data = np.float32([[np.inf, -np.inf, np.nan]])
    for name, want in {"exp": [np.inf, 0, np.nan], "erf": [1, -1, np.nan], "tanh": [1, -1, np.nan]}.items():
        np.testing.assert_array_equal(built(RowKernel(name, 1, 3))(data)[0], np.float32(want))


def softmax(data, mask=None, scale=1.0, zero_rows=False):
    values = data.astype(np.float64) * scale
    if mask is not None:
        values = values + mask.astype(np.float64)[np.arange(len(data)) % len(mask)]
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        found = powers / powers.sum(axis=1, keepdims=True)
    if zero_rows:
        found[np.isneginf(values).all(axis=1)] = 0
    return found


@pytest.mark.parametrize("length", [1, 5, 64, 65, 200])
@pytest.mark.parametrize(("scale", "mask_rows", "zero_rows"), [(1.0, 0, False), (0.125, 3, True), (1.0, 6, False)])
def test_softmax(length, scale, mask_rows, zero_rows):
    random = np.random.default_rng([length, mask_rows])
    data = (100 * random.standard_normal((6, length))).astype(np.float32)
    mask = np.where(random.random((mask_rows, length)) < 0.5, 0, -np.inf).astype(np.float32)
    if zero_rows:
        mask[0] = -np.inf
    elif mask_rows:
        mask[:, 0] = 0
    operands = [mask] if mask_rows else []
    got = built(RowKernel("softmax", 6, length, scale, mask_rows, zero_rows))(data, *operands)
    want = softmax(data, mask if mask_rows else None, scale, zero_rows)
    assert (np.abs(got - want) <= 2.0**-21 * want.max(axis=1, keepdims=True)).all()
    assert (got[want < 1e-38] == 0).all()


@pytest.mark.parametrize(("mask_rows", "block"), [(2, 6), (4, 6), (12, 12), (3, 4)])
def test_blocks_of_rows_have_their_own_part_of_the_mask(mask_rows, block):
    random = np.random.default_rng(mask_rows)
    data, mask = (random.standard_normal((rows, 20)).astype(np.float32) for rows in (12, mask_rows))
    own = mask_rows // (12 // block)
    places = [row // block * own + row % own for row in range(12)]
    got = built(RowKernel("softmax", 12, 20, 1.0, mask_rows, block=block))(data, mask)
    assert np.abs(got - softmax(data, mask[places])).max() <= 1e-6


def test_shares_of_two_are_right_down_to_the_smallest_normal_number():
    x = np.linspace(-110, 0, 200_001, dtype=np.float32)
    data = np.stack([np.zeros_like(x), x], axis=1)
    got, want = built(RowKernel("softmax", *data.shape))(data), softmax(data)
    is_normal = want >= 1.0001 * 2.0**-126
    assert (np.abs(got - want) <= 3 * np.spacing(want.astype(np.float32)))[is_normal].all()
    assert got[~is_normal].max() <= 1.0001 * 2.0**-126


def test_a_number_that_is_none_makes_its_row_so():
    data = np.random.default_rng(0).standard_normal((3, 100)).astype(np.float32)
    data[0, 70], data[1, 3] = np.nan, np.uint32(0x7FC00001).view(np.float32)
    data[2, 5] = np.inf
    assert np.isnan(built(RowKernel("softmax", 3, 100))(data)).all()


def test_a_softmax_of_nothing_but_infinities_is_not_a_number_unless_asked_for():
    data = np.full((2, 20), -np.inf, np.float32)
    assert np.isnan(built(RowKernel("softmax", 2, 20))(data)).all()
    assert (built(RowKernel("softmax", 2, 20, zero_rows=True))(data) == 0).all()


@pytest.mark.parametrize("length", [5, 64, 65, 200])
@pytest.mark.parametrize("operands", [0, 2])
def test_layer_norm_of_values_far_from_zero(length, operands):
    random = np.random.default_rng(length)
    data = (random.standard_normal((6, length)) + 100).astype(np.float32)
    more = [random.standard_normal(length).astype(np.float32) for _ in range(operands)]
    got = built(RowKernel("layer_norm", 6, length, epsilon=1e-5, operands=operands))(data, *more)
    wide = data.astype(np.float64)
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    if operands:
        want = want * more[0] + more[1]
    assert np.abs(got - want).max() <= 1e-4


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_vectors_of_any_width_and_threads(lanes):
    data = np.random.default_rng(0).standard_normal((129, 77)).astype(np.float32)
    kernel = RowKernel("softmax", 129, 77)
    text, _ = row_program(kernel, "kernel", lanes, 2)
    assert "T.parallel(129)" in text
    assert "T.parallel" not in row_program(RowKernel("softmax", 4, 77), "kernel", lanes, 2)[0]
    assert np.abs(built(kernel, lanes, 2)(data) - softmax(data)).max() <= 1e-6
