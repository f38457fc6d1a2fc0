"""Attention kernels whose sizes are known at run time beside float64: every size, masks, threads, ends of memory."""

import ctypes
import dataclasses
import functools
import mmap

import numpy as np
import pytest

from anatune.core.sizes import Size
from anatune.network.compiling.attention import attention_at_run_time
from anatune.network.graph.nodes import Input, Node, TensorType
from anatune.network.graph.operators import ATTENTION
from anatune.network.graph.strided import HeadLayout
from anatune.network.kernels.attention import attention_program
from tests.unit.codegen.cpu.building import built_for_sizes
from tests.unit.network.kernels import test_attention as known

tvm = pytest.importorskip("tvm")

BATCH, QUERIES, KEYS = (Size.symbol(name, 5) for name in ("batch", "queries", "keys"))


@pytest.fixture(scope="module")
def hardware():
    from anatune import api

    return api.hardware("host")


def kernel_of(hardware, batch, queries, keys, *, dim=16, value_dim=16, mask_rows=0, is_joined=False, parts=1, **more):
    """Return a kernel of two heads; queries, keys and values are columns of one matrix, or of one each."""
    widths, lengths = (2 * dim, 2 * dim, 2 * value_dim), (queries, keys, keys)
    offsets, rows = (1, 0, 0), [width + 1 for width in widths]
    if is_joined:
        offsets, rows = (0, widths[0], widths[0] + widths[1]), [sum(widths)] * 3
    inputs = [
        Input("x", TensorType((batch * length, row), "float32")) for length, row in zip(lengths, rows, strict=True)
    ]
    places = tuple(
        HeadLayout(offset, length * row, size, row)
        for offset, length, size, row in zip(offsets, lengths, (dim, dim, value_dim), rows, strict=True)
    )
    if mask_rows:
        inputs = [*inputs, Input("mask", TensorType((mask_rows, keys), "float32"))]
    attributes = {
        "batch": batch, "heads": 2, "queries": queries, "keys": keys, "dim": dim, "value_dim": value_dim,
        "scale": dim**-0.5, "zero_rows": False, "block": 0, "places": places, "causal": None, **more,
    }  # fmt: skip
    node = Node(ATTENTION, tuple(inputs), TensorType((batch * queries, widths[2]), "float32"), attributes)
    return attention_at_run_time(dataclasses.replace(planned(hardware, int(queries), int(keys)), parts=parts), node)


@functools.cache
def planned(hardware, queries, keys):
    return known.kernel_of(hardware, queries, queries, keys)


def at(kernel, **symbols):
    """Return a kernel of numbers."""

    def number(value):
        if isinstance(value, tuple):
            return tuple(map(number, value))
        return value.at(symbols) if isinstance(value, Size) else value

    operands = {one.name: getattr(kernel, one.name) for one in dataclasses.fields(kernel) if one.name != "blocks"}
    return dataclasses.replace(kernel, **{name: number(value) for name, value in operands.items()})


def built(kernel, hardware, threads=1):
    """Return a kernel as a function of arrays and sizes that asserts that it agrees with float64."""
    call = built_for_sizes(attention_program(kernel, "kernel", hardware.fp32_lanes, threads), threads)

    def checked(mask=None, arrays=None, **symbols):
        operands = at(kernel, **symbols)
        arrays = arrays or known.tensors(operands)
        if kernel.shapes[0] == kernel.shapes[2] and kernel.places[0].offset != kernel.places[1].offset:
            arrays = arrays[:1] * 3
        masks = [] if mask is None else [mask]
        got = call((operands.batch * operands.queries, operands.heads * operands.value_dim), *arrays, *masks, **symbols)
        want = known.exact(operands, *arrays, mask)
        assert np.abs(got - want).max() <= known.BOUND * np.abs(want).max(), symbols
        return got

    checked.program = call
    return checked


@pytest.mark.parametrize(("threads", "batch"), [(1, 1), (2, BATCH)])
def test_every_number_of_tokens(hardware, threads, batch):
    call = built(kernel_of(hardware, batch, QUERIES, QUERIES, is_joined=True), hardware, threads)
    for tokens in range(1, 71):
        call(queries=tokens, **({"batch": 1 + tokens % 2} if batch is BATCH else {}))


@pytest.mark.parametrize(("dim", "value_dim", "parts"), [(7, 40, 3), (1, 1, 2)])
def test_few_and_many_queries_and_keys(hardware, dim, value_dim, parts):
    kernel = kernel_of(hardware, 1, QUERIES, KEYS, dim=dim, value_dim=value_dim, parts=parts)
    call = built(kernel, hardware, threads=parts)
    for queries in (1, 2, 4, 5, 13, 30):
        for keys in (1, 7, 8, 9, 33, 200):
            call(queries=queries, keys=keys)


def test_one_query_reads_keys_where_they_lie(hardware):
    kernel = kernel_of(hardware, BATCH, 1, KEYS)
    assert "if queries" not in attention_program(kernel, "kernel", hardware.fp32_lanes, 1)[0]
    call = built(kernel, hardware)
    for keys in range(1, 40):
        call(batch=1 + keys % 2, keys=keys)


@pytest.mark.parametrize(("group", "threads"), [(2, 1), (3, 1), (4, 2), (7, 1), (20, 1), (20, 3)])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_heads_that_share_keys_are_rows_of_one_query(hardware, queries, group, threads):
    widths = (2 * group * 16, 32, 32)
    places = tuple(
        HeadLayout(0, length * width, 16, width, 1 if width > 32 else group)
        for length, width in zip((queries, KEYS, KEYS), widths, strict=True)
    )
    kernel = kernel_of(hardware, 1, queries, KEYS, mask_rows=queries)
    shapes = tuple(zip((queries, KEYS, KEYS), widths, strict=True))
    kernel = dataclasses.replace(kernel, heads=2 * group, places=places, shapes=shapes)
    program, _ = attention_program(kernel, "kernel", hardware.fp32_lanes, threads)
    assert ("turn) * 20" in program) == (group == 20 and threads == 1)
    call, random = built(kernel, hardware, threads), np.random.default_rng(0)
    for keys, varying in ((1, 1), (19, 1), (50, 3), (33, 1), (40, 5)):
        symbols = {"keys": keys, **({"queries": varying} if queries is QUERIES else {})}
        call(random.standard_normal((at(kernel, **symbols).mask_rows, keys), np.float32), **symbols)


@pytest.mark.parametrize(("queries", "keys"), [(QUERIES, 19), (13, KEYS), (7, 19)])
def test_some_sizes_are_numbers(hardware, queries, keys):
    kernel = kernel_of(hardware, BATCH, queries, keys)
    assert kernel.is_open == (queries is QUERIES or keys is KEYS)
    call = built(kernel, hardware, threads=2)
    for batch, varying in ((1, 1), (1, 17), (3, 6)):
        symbols = {"queries": varying} if queries is QUERIES else {"keys": varying} if keys is KEYS else {}
        call(batch=batch, **symbols)


@pytest.mark.parametrize(("mask_rows", "block"), [(QUERIES, 0), (BATCH, QUERIES * 2), (BATCH * QUERIES, QUERIES * 2)])
def test_masks_repeat_over_the_rows(hardware, mask_rows, block):
    kernel = kernel_of(hardware, BATCH, QUERIES, KEYS, mask_rows=mask_rows, block=block, zero_rows=True)
    call, random = built(kernel, hardware), np.random.default_rng(0)
    for batch, queries, keys in ((1, 1, 1), (2, 3, 9), (2, 14, 40), (1, 7, 23)):
        symbols = {"batch": batch, "queries": queries, "keys": keys}
        shape = (at(kernel, **symbols).mask_rows, keys)
        mask = np.where(random.random(shape) < 0.5, 0, -np.inf).astype(np.float32)
        mask[:, 0] = 0
        mask[-1] = -np.inf if len(mask) > 1 else 0
        call(mask, **symbols)


@pytest.mark.parametrize("past", [0, KEYS - QUERIES])
def test_keys_that_no_query_of_a_block_sees_are_not_read(hardware, past):
    kernel = kernel_of(hardware, 1, QUERIES, KEYS, mask_rows=QUERIES, causal=past)
    call = built(kernel, hardware)
    for queries, keys in ((1, 8), (3, 3), (16, 16), (30, 41), (40, 40)):
        symbols = {"queries": queries, "keys": keys}
        first = at(kernel, **symbols).causal
        mask = np.where(np.tri(queries, keys, first, dtype=bool), 0, -np.inf).astype(np.float32)
        call(mask, **symbols)
    arrays = known.tensors(at(kernel, **symbols))
    others = [array.copy() for array in arrays]
    others[1][30:] = others[2][30:] = np.nan
    operands, other = (call.program((queries, 32), *own, mask, **symbols) for own in (arrays, others))
    np.testing.assert_array_equal(operands[:13], other[:13])


def test_rows_may_be_as_far_apart_as_the_batch_says(hardware):
    row = BATCH * 32
    places = (HeadLayout(0, 32, 16, row),) * 3
    kernel = dataclasses.replace(kernel_of(hardware, BATCH, QUERIES, KEYS), places=places)
    kernel = dataclasses.replace(kernel, shapes=((QUERIES, row), (KEYS, row), (KEYS, row)))
    call = built_for_sizes(attention_program(kernel, "kernel", hardware.fp32_lanes, 1))
    for batch, queries, keys in ((1, 1, 5), (2, 3, 17), (3, 20, 30)):
        operands = [np.random.default_rng(n).random((n, batch, 32), np.float32) for n in (queries, keys, keys + 1)]
        query, key, value = operands[0], operands[1], operands[2][:keys]
        got = call(
            (batch * queries, 32), *(one.reshape(len(one), -1) for one in (query, key, value)),
            batch=batch, queries=queries, keys=keys,
        )  # fmt: skip
        q, k, v = (one.astype(float).reshape(len(one), batch, 2, 16) for one in (query, key, value))
        powers = np.exp(np.einsum("qbhd,kbhd->bhqk", q, k) / 4)
        want = np.einsum("bhqk,kbhd->bqhd", powers / powers.sum(-1, keepdims=True), v).reshape(got.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5)


def at_the_end_of_a_page(array):
    """Return a copy behind which no memory may be read."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    bytes_ = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_void_p(bytes_.ctypes.data + pages * mmap.PAGESIZE)
    assert libc.mprotect(start, mmap.PAGESIZE, 0) == 0
    end = pages * mmap.PAGESIZE
    operands = bytes_[end - array.nbytes : end].view(np.float32).reshape(array.shape)
    operands[:] = array
    return operands


def test_nothing_is_read_behind_a_tensor(hardware):
    places, shapes = (HeadLayout(0, 0, 16, 32),) * 3, ((QUERIES, 32), (KEYS, 32), (KEYS, 32))
    kernel = kernel_of(hardware, 1, QUERIES, KEYS, mask_rows=QUERIES)
    kernel = dataclasses.replace(kernel, shapes=shapes, places=places)
    call = built_for_sizes(attention_program(kernel, "kernel", hardware.fp32_lanes, 1), by_reference=True)
    for queries, keys in ((1, 16), (1, 32), (2, 24), (16, 1), (16, 3), (16, 17), (32, 9)):  # whole lines, as TVM asks
        operands = [np.ones((n, 32), np.float32) for n in (queries, keys, keys)] + [
            np.zeros((queries, keys), np.float32)
        ]
        got = call((queries, 32), *map(at_the_end_of_a_page, operands), queries=queries, keys=keys)
        np.testing.assert_allclose(got, 1.0, rtol=1e-6)
