"""Kernels of rows: elementary functions within their bounds over all of float32, softmax and layer norm."""

import functools

import numpy as np
import pytest
from scipy import special

from anatune.core.sizes import Size
from anatune.emit.elementary import FUNCTIONS, QUOTIENTS
from anatune.emit.kernels import (
    element_addresses,
    emit_call,
    finish_function,
    open_kernel,
    start_function,
    write_spread_loop,
)
from anatune.emit.llvm import LlvmCode
from anatune.emit.script import Script
from anatune.network.kernels.rows import RowKernel, row_program
from anatune.templates.cpu.program.microkernel import module_ir
from tests.unit.codegen.cpu.building import built_for_sizes

pytest.importorskip("tvm")

LENGTH = 1000
EDGES = np.float32([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38])
_TAIL = 2 * np.sqrt(2 / np.pi)
EXACT = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "erf": special.erf,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "gelu": lambda x: x * special.ndtr(x),
    "gelu_tanh": lambda x: x * special.expit(_TAIL * (x + 0.044715 * x**3)),
    "relu6": lambda x: np.clip(x, 0, 6),
}
MOST_ULP = {"exp": 2, "expm1": 2, "log1p": 2, "erf": 2, "tanh": 2, "sigmoid": 3}


def built(kernel, lanes=None, threads=1):
    """Return a kernel as a function of arrays, the data first."""
    from anatune import api

    run = built_for_sizes(row_program(kernel, "kernel", lanes or api.hardware("host").fp32_lanes, threads), threads)
    return lambda data, *more, **symbols: run(data.shape, data, *more, **symbols)


def apply_function(function, data):
    """Return what a function of an `LlvmCode` and a vector makes of vectors of numbers."""
    from anatune import api

    lanes = api.hardware("host").fp32_lanes
    vectors = np.resize(data, (-(-data.size // lanes), lanes))
    shapes = {"data": vectors.shape, "result": vectors.shape}
    text, code = Script(), LlvmCode(lanes, "float32", "add")
    open_kernel(text, "kernel", "vectors", shapes)
    item = functools.partial(emit_call, text, "kernel_vector", [(tensor, f"r * {lanes}") for tensor in shapes])
    write_spread_loop(text, "r", len(vectors), item, threads=1, work=1, least=2)
    start_function(code, "kernel_vector", 2)
    given, result = (code.address(base, "float32", 0) for base in element_addresses(code, ["float"] * 2))
    code.store_vector(function(code, code.load_vector(given, "float32", 1, lanes)), result, "float32", lanes)
    run = built_for_sizes((str(text), module_ir([finish_function(code)])), 1)
    return run(vectors.shape, vectors).ravel()[: data.size].reshape(data.shape)


@pytest.fixture(scope="module")
def numbers():
    """Return float32 numbers of all sizes, (n, LENGTH)."""
    bits = np.arange(0, 2**32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    dense = [np.linspace(-reach, reach, 100_001, dtype=np.float32) for reach in (1, 10, 105)]
    result = np.concatenate([EDGES, *dense, bits])
    return result[: len(result) // LENGTH * LENGTH].reshape(-1, LENGTH)


@pytest.mark.parametrize("name", EXACT)
def test_elementary_functions_keep_their_bounds(numbers, name):
    with np.errstate(all="ignore"):
        wide = numbers.astype(np.float64)
        want = EXACT[name](wide)
        got = apply_function(FUNCTIONS[name], numbers)
        rounded = want.astype(np.float32)
        finite = np.isfinite(rounded) & np.isfinite(wide)
        spacing = np.spacing(np.abs(np.where(finite, rounded, 1)))
        errors = np.where(finite, np.abs(got - want), 0)
    assert (errors <= MOST_ULP.get(name, 4) * spacing).all()
    others = ~finite & ~np.isneginf(numbers)
    np.testing.assert_array_equal(got[others], rounded[others])
    assert not np.isnan(got[finite]).any()


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_quotients_keep_their_bounds_where_they_are_normal_numbers(numbers, name):
    with np.errstate(all="ignore"):
        want = EXACT[name](numbers.astype(np.float64))
    got = apply_function(lambda code, x: code.binary("div", *QUOTIENTS[name](code, x)), numbers)
    spacing = np.spacing(np.abs(want).astype(np.float32))
    is_known = ~np.isnan(numbers)
    assert (np.abs(got - want) <= np.maximum(3 * spacing, 2.0**-126))[is_known].all()
    np.testing.assert_array_equal(np.isnan(got), ~is_known)
    for part in range(2):  # products with other dividends and divisors do not overflow
        parts = apply_function(lambda code, x, part=part: QUOTIENTS[name](code, x)[part], numbers)
        assert (np.abs(parts[is_known]) <= 2).all()


def test_limits():
    data = np.float32([[np.inf, -np.inf, np.nan]])
    for name, want in {"exp": [np.inf, 0, np.nan], "erf": [1, -1, np.nan], "tanh": [1, -1, np.nan]}.items():
        np.testing.assert_array_equal(apply_function(FUNCTIONS[name], data)[0], np.float32(want))


def softmax(data, mask=None, scale=1.0, zero_rows=False):
    values = data.astype(np.float64) * scale
    if mask is not None:
        values = values + mask.astype(np.float64)[np.arange(len(data)) % len(mask)]
    with np.errstate(invalid="ignore"):
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        result = powers / powers.sum(axis=1, keepdims=True)
    if zero_rows:
        result[np.isneginf(values).all(axis=1)] = 0
    return result


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


@pytest.mark.parametrize("zero_rows", [False, True])
@pytest.mark.parametrize("scale", [0.3, 17**-0.5, 1 / 3, 7.0, 1.0])
def test_scaled_elements_of_any_magnitude(scale, zero_rows):
    """The largest element times a scale is rounded, by up to 128 above 2**31: it cannot be taken off behind that."""
    random, length = np.random.default_rng(0), 70
    spread = np.float32(2.0) ** np.arange(-149, 125)[:, None]
    data = (spread * random.standard_normal((len(spread), length))).astype(np.float32)
    data[::3, 5], data[1::3, 7], data[::4, 9:12] = -np.inf, np.finfo(np.float32).min, data[::4].max(axis=1)[:, None]
    want = softmax(data, scale=float(np.float32(scale)))
    got = built(RowKernel("softmax", len(data), length, scale, zero_rows=zero_rows))(data)
    assert np.abs(got - want).max() <= 2.0**-21
    open_length = of_any_size(RowKernel("softmax", BATCH * 3, TOKENS, scale, zero_rows=zero_rows), 1)
    some = np.ascontiguousarray(data[-9:])
    assert np.abs(open_length(some, batch=3, tokens=length) - want[-9:]).max() <= 2.0**-21


@pytest.mark.parametrize(("mask_rows", "block"), [(2, 6), (4, 6), (12, 12), (3, 4)])
def test_blocks_of_rows_have_their_own_part_of_the_mask(mask_rows, block):
    random = np.random.default_rng(mask_rows)
    data, mask = (random.standard_normal((rows, 20)).astype(np.float32) for rows in (12, mask_rows))
    operands = mask_rows // (12 // block)
    places = [row // block * operands + row % operands for row in range(12)]
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


BATCH, TOKENS = Size.symbol("batch", 8), Size.symbol("tokens", 128)


@functools.cache
def of_any_size(kernel, threads, lanes=None):
    return built(kernel, lanes, threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_one_kernel_serves_rows_of_any_number_and_length(name, threads):
    run = of_any_size(RowKernel(name, BATCH * 3, TOKENS, epsilon=1e-5 if name == "layer_norm" else 0.0), threads)
    random = np.random.default_rng(threads)
    for length in [*range(1, 71), 128, 1000, 3001]:
        batch = 1 + length % 4
        data = (9 * random.standard_normal((3 * batch, length))).astype(np.float32)
        got = run(data, batch=batch, tokens=length)
        wide = data.astype(np.float64)
        off = wide - wide.mean(1, keepdims=True)
        want = {"softmax": softmax(data), "layer_norm": off / np.sqrt((off**2).mean(1, keepdims=True) + 1e-5)}[name]
        assert np.abs(got - want).max() <= 2e-6, length


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_one_masked_softmax_serves_any_number_of_tokens(lanes):
    rows = BATCH * TOKENS * 6
    kernel = RowKernel("softmax", rows, TOKENS, 0.5, BATCH * TOKENS, zero_rows=True, block=TOKENS * 6)
    run = of_any_size(kernel, 1, lanes)
    random = np.random.default_rng(lanes)
    for batch, tokens in [(1, 1), (3, 1), (1, 7), (2, 17), (3, 33), (1, 70)]:
        data = (9 * random.standard_normal((batch, 6, tokens, tokens))).astype(np.float32)
        mask = np.where(random.random((batch, 1, tokens, tokens)) < 0.5, 0, -np.inf).astype(np.float32)
        matrices = (data.reshape(-1, tokens), mask.reshape(-1, tokens))
        got = run(*matrices, batch=batch, tokens=tokens)
        want = softmax(matrices[0], np.broadcast_to(mask, data.shape).reshape(-1, tokens), 0.5, zero_rows=True)
        assert np.abs(got - want).max() <= 1e-6


def test_rows_of_any_number_are_spread_where_there_are_many():
    some, _ = row_program(RowKernel("softmax", BATCH, 77), "kernel", 8, 2)
    assert "if (batch * 77) >= 8192:" in some
    assert some.count("T.parallel(") == some.count("T.serial(batch)") == 1
    many, _ = row_program(RowKernel("softmax", BATCH * 128, 77), "kernel", 8, 2)
    assert "T.parallel((batch * 128))" in many
    assert "if" not in many.split("import_llvm")[1]


@pytest.mark.parametrize("length", [8_193, 65_536, 1_000_003])
def test_sums_of_long_rows(length):
    """Powers of equal elements are equal numbers, whose sums are off by 1e-5 one after the other."""
    data = np.random.default_rng(0).random((2, length), np.float32)
    data[1, 1:] = -1.2
    got = built(RowKernel("softmax", 2, length))(data)
    np.testing.assert_allclose(got, softmax(data), rtol=1.5e-6)
    near = 1 + data[:1]
    factor, term = np.ones(length, np.float32), np.zeros(length, np.float32)
    got = built(RowKernel("layer_norm", 1, length, operands=2, epsilon=1e-5))(near, factor, term)
    wide = near.astype(np.float64)
    away = wide - wide.mean(1, keepdims=True)
    want = away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got, want, atol=2e-6)
