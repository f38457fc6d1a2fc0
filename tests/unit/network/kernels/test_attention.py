"""The attention kernel beside float64: odd sizes, masks, hidden keys, threads."""

import dataclasses

import msgspec
import numpy as np
import pytest

from anatune.core.workload.operators import matmul
from anatune.network.kernels.attention import AttentionKernel, QueryBlocks, attention_program, pitch
from anatune.templates.cpu.model.model import CpuModel

tvm = pytest.importorskip("tvm")

BOUND = 2e-6
"""The largest error over the result's magnitude, for sums of up to 200 products."""


@pytest.fixture(scope="module")
def hardware():
    from anatune import api

    return api.hardware("host")


def schedule(m, n, k, hardware):
    model = CpuModel(matmul(m, n, k), hardware.with_threads(1), constants=())
    result = model.space.schedule_of(model.rank(1).points[0])
    return msgspec.structs.replace(result, options={**result.options, "packed": (), "packed_ahead": ()})


def blocks_of(hardware, rows, queries, dim, value_dim, seen):
    """Return blocks of `rows` queries, each with as many keys as its last query sees."""
    result = []
    for first in range(0, queries, rows):
        size = min(rows, queries - first)
        keys = max(seen[first : first + size])
        built_node = [schedule(*own, hardware) for own in ((size, keys, dim), (size, value_dim, keys))]
        if result and (result[-1].rows, result[-1].keys) == (size, keys):
            result[-1] = dataclasses.replace(result[-1], count=result[-1].count + 1)
        else:
            result.append(QueryBlocks(first, 1, size, keys, *built_node))
    return tuple(result)


def kernel_of(hardware, rows, queries, keys, *, batch=1, heads=2, dim=16, value_dim=16, seen=None, **more):
    """Return a kernel whose tensors are one: columns of matrices of 3 more columns than they need."""
    widths = [heads * dim + 3, heads * dim + 3, heads * value_dim + 3]
    lengths = [queries, keys, keys]
    places = tuple(
        (place + 1, length * width, size, width, 1)
        for place, (length, width, size) in enumerate(zip(lengths, widths, (dim, dim, value_dim), strict=True))
    )
    return AttentionKernel(
        batch=batch, heads=heads, queries=queries, keys=keys, dim=dim, value_dim=value_dim,
        shapes=tuple((batch * length, width) for length, width in zip(lengths, widths, strict=True)), places=places,
        **{"scale": dim**-0.5, "mask_rows": 0, "zero_rows": False, **more},
        blocks=blocks_of(hardware, rows, queries, dim, value_dim, seen or [keys] * queries),
    )  # fmt: skip


def built(kernel, hardware, threads=1, lanes=None):
    from anatune.codegen.compat import compile_module, parse_program, target_of

    function = parse_program(*attention_program(kernel, "kernel", lanes or hardware.fp32_lanes, threads))
    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    code = compile_module(module, target_of(hardware, threads=threads))

    def call(*arrays):
        shape = (kernel.batch * kernel.queries, kernel.heads * kernel.value_dim)
        result = tvm.runtime.tensor(np.full(shape, np.nan, np.float32))
        code["kernel"](*(tvm.runtime.tensor(array) for array in arrays), result)
        return result.numpy()

    return call


def heads_of(kernel, number, array):
    offset, _, size, _, group = kernel.places[number]
    operands = (kernel.dim, kernel.dim, kernel.value_dim)[number]
    rows = array.reshape(kernel.batch, -1, array.shape[1])
    starts = [offset + size * (head // group) for head in range(kernel.heads)]
    return np.stack([rows[..., start : start + operands] for start in starts], axis=1)


def exact(kernel, query, key, value, mask=None):
    query, key, value = (
        heads_of(kernel, n, one.astype(np.float64)) for n, one in enumerate((query, key, value))
    )  # fmt: skip
    scores = np.einsum("bhqd,bhkd->bhqk", query, key) * kernel.scale
    if mask is not None:
        rows = np.arange(scores[..., 0].size).reshape(scores.shape[:-1])
        block = kernel.block or rows.size
        operands = kernel.mask_rows // (rows.size // block)
        scores = scores + mask.astype(np.float64)[rows // block * operands + rows % operands]
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = powers / powers.sum(axis=-1, keepdims=True)
    if kernel.zero_rows:
        weights[np.isneginf(scores).all(axis=-1)] = 0
    result = np.einsum("bhqk,bhkd->bqhd", weights, value)
    return result.reshape(kernel.batch * kernel.queries, -1)


def tensors(kernel, spread=1.0):
    random = np.random.default_rng([*kernel.shapes[0], kernel.keys])
    return [(spread * random.standard_normal(shape)).astype(np.float32) for shape in kernel.shapes]


def agree(kernel, hardware, arrays, mask=None, **options):
    masks = [] if mask is None else [mask]
    got, want = built(kernel, hardware, **options)(*arrays, *masks), exact(kernel, *arrays, mask)
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


@pytest.mark.parametrize(
    ("rows", "queries", "keys", "dim", "value_dim"),
    [
        (8, 16, 32, 16, 16),
        (7, 37, 41, 20, 9),
        (5, 3, 200, 64, 64),
        (16, 33, 1, 1, 1),
        (1, 1, 17, 8, 24),
        (4, 8, 128, 7, 40),
    ],
)
def test_sizes_of_all_kinds(hardware, rows, queries, keys, dim, value_dim):
    kernel = kernel_of(hardware, min(rows, queries), queries, keys, batch=2, dim=dim, value_dim=value_dim)
    agree(kernel, hardware, tensors(kernel))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_heads_and_their_parts_are_spread_over_threads(hardware, threads, parts):
    kernel = kernel_of(hardware, 6, 20, 24, heads=3, parts=parts)
    assert f"T.parallel({threads})" in attention_program(kernel, "kernel", hardware.fp32_lanes, threads)[0]
    agree(kernel, hardware, tensors(kernel), threads=threads)


@pytest.mark.parametrize(("mask_rows", "block"), [(1, 0), (11, 44), (22, 0), (44, 0), (2, 22), (22, 22), (4, 11)])
@pytest.mark.parametrize("zero_rows", [False, True])
def test_masks_repeat_over_the_rows(hardware, mask_rows, block, zero_rows):
    kernel = kernel_of(hardware, 4, 11, 19, batch=2, mask_rows=mask_rows, block=block, zero_rows=zero_rows)
    mask = np.where(np.random.default_rng(mask_rows).random((mask_rows, 19)) < 0.5, 0, -np.inf).astype(np.float32)
    mask[:, 0] = 0
    if zero_rows:
        mask[0] = -np.inf
    agree(kernel, hardware, tensors(kernel), mask)


@pytest.mark.parametrize("hidden", [-np.inf, np.finfo(np.float32).min])
@pytest.mark.parametrize("parts", [1, 2])
def test_keys_that_no_query_of_a_block_sees_are_not_read(hardware, hidden, parts):
    mask = np.where(np.tri(21, 24, 3, dtype=bool), 0, hidden).astype(np.float32)
    kernel = kernel_of(
        hardware, 4, 21, 24, seen=list(range(4, 25)), mask_rows=21, scale=0.5, parts=parts
    )  # fmt: skip
    arrays = tensors(kernel)
    agree(kernel, hardware, arrays, mask, threads=parts)
    others = [array.copy() for array in arrays]
    others[1][12:] = others[2][12:] = np.nan  # no query of the first two blocks sees them
    call = built(kernel, hardware)
    np.testing.assert_array_equal(call(*others, mask)[:8], call(*arrays, mask)[:8])


def test_rows_without_anything_to_see_are_not_numbers_unless_asked_for(hardware):
    mask = np.full((4, 6), -np.inf, np.float32)
    kernel = kernel_of(hardware, 4, 4, 6, mask_rows=4)
    assert np.isnan(built(kernel, hardware)(*tensors(kernel), mask)).all()


def test_numbers_that_are_none_stay_in_their_rows(hardware):
    kernel = kernel_of(hardware, 4, 8, 10, heads=1)
    arrays = tensors(kernel)
    arrays[0][2] = np.nan
    got = built(kernel, hardware)(*arrays)
    assert np.isnan(got[2]).all()
    assert not np.isnan(np.delete(got, 2, axis=0)).any()


@pytest.mark.parametrize("scale", [40.0, -1.0, 1.0])
def test_scores_far_from_each_other(hardware, scale):
    kernel = kernel_of(hardware, 8, 16, 50, scale=scale)
    arrays = tensors(kernel)
    got, want = built(kernel, hardware)(*arrays), exact(kernel, *arrays)
    # a score is wrong by some 2**-22 of its largest terms, which is what the powers' logarithms then are
    assert np.abs(got - want).max() <= (abs(scale) * 16 * 2.0**-22 + BOUND) * np.abs(want).max()


@pytest.mark.parametrize("power", [0, 8, 14, 20, 40, 58])
@pytest.mark.parametrize("scale", [0.3, 17**-0.5, 1 / 3])
def test_scores_of_any_magnitude(hardware, scale, power):
    """The products of the numbers are exact; above 2**31 the largest ones share a row."""
    kernel = kernel_of(hardware, 8, 16, 50, scale=float(np.float32(scale)))
    random = np.random.default_rng(power)
    query, key = (random.integers(-3, 4, shape) * np.float32(2) ** power for shape in kernel.shapes[:2])
    arrays = [query.astype(np.float32), key.astype(np.float32), tensors(kernel)[2]]
    got, want = built(kernel, hardware)(*arrays), exact(kernel, *arrays)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_buffers_have_whole_vectors_and_no_rows_a_power_of_two_apart(lanes):
    for length in (1, 16, 200, 256, 1024):
        result = pitch(length, lanes)
        assert result >= length
        assert result % lanes == 0
        assert result % 256
