"""Pairs of outputs and inputs, and what graphs do with them in place."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.building import broadcast, concat, elementwise, reshape, scatter
from anatune.network.graph.meanings import put
from anatune.network.graph.nodes import Graph, Input, TensorType
from anatune.network.graph.operators import PUT
from anatune.network.graph.state import StatePair, attach_state, find_growth, find_pairs
from tests.wording import refuses


def growing(held, tokens):
    past, new = Input("past", TensorType((1, held, 8), "float32")), Input("new", TensorType((1, tokens, 8), "float32"))
    joined = concat([past, elementwise("add", new, 1)], 1)
    return Graph((past, new), (joined, elementwise("add", joined, 2)), is_tuple=True)


def test_names_of_exported_decoders():
    inputs = ["ids", "past_key_values.0.key", "past_1", "x"]
    outputs = ["logits", "present.0.key", "present_1", "presentation"]
    assert find_pairs("auto", inputs, outputs, "it") == [(1, 1), (2, 2)]
    with refuses(WorkloadError):
        find_pairs("auto", ["ids"], ["logits"], "it")


def test_what_grows_is_put_behind_what_is_held():
    sizes = [{"held_": 5, "tokens_": 7}, {"held_": 11, "tokens_": 13}]
    graphs = [growing(*one.values()) for one in sizes]
    (pair,) = find_growth(graphs, sizes, [StatePair("past", 0, 0)], "it")
    assert (pair.axis, pair.symbol, pair.by) == (1, "held_", "tokens_")
    graph = attach_state(graphs[0], [pair._replace(most=40)], "it")
    assert [value.name for value in graph.inputs] == ["new", "past"]
    last = graph.outputs[-1]
    assert (last.op, last.type.shape, last.arguments[2].value) == (PUT, (1, 40, 8), 5)
    part = graph.outputs[0].arguments[0]
    assert (part.op, part.arguments[0], part.type.shape) == ("strided_slice", last, (1, 12, 8))
    empty = attach_state(growing(0, 7), [pair._replace(most=40)], "it")
    assert empty.outputs[-1].op == PUT


@pytest.mark.parametrize("is_read", [False, True])
def test_rows_are_put_where_nothing_else_reads_what_was_held(is_read):
    held, rows = Input("held", TensorType((2, 6, 4), "float32")), Input("rows", TensorType((2, 3, 4), "float32"))
    places = Input("places", TensorType((3,), "int64"))
    new = scatter(held, broadcast(reshape(places, (1, 3, 1)), (2, 3, 4)), rows, 1, "update")
    out = elementwise("add", held if is_read else new, 1)
    graph = attach_state(Graph((held, rows, places), (out, new), is_tuple=True), [StatePair("held", 1, 0)], "it")
    assert graph.outputs[-1].op == ("scatter_elements" if is_read else PUT)
    assert graph.inputs[-1] is held


@pytest.mark.parametrize("is_read", [False, True])
def test_rows_of_pages_are_put_where_they_lie(is_read):
    pool, rows = Input("pool", TensorType((5, 2, 4), "float32")), Input("rows", TensorType((3, 4), "float32"))
    places = Input("places", TensorType((3,), "int64"))
    flat = reshape(pool, (10, 4))
    new = reshape(scatter(flat, broadcast(reshape(places, (3, 1)), (3, 4)), rows, 0, "update"), (5, 2, 4))
    out = elementwise("add", flat if is_read else new, 1)
    graph = attach_state(Graph((pool, rows, places), (out, new), is_tuple=True), [StatePair("pool", 1, 0)], "it")
    last = graph.outputs[-1]
    assert (last.op, last.type) == ("reshape", pool.type)
    assert last.arguments[0].op == ("scatter_elements" if is_read else PUT)
    assert last.arguments[0].arguments[0].arguments[0] is pool


@pytest.mark.parametrize("places", [2, [4, 0, 2]])
def test_what_is_put(places):
    data, rows = np.zeros((2, 6, 4)), np.random.default_rng(0).standard_normal((2, 3, 4))
    result = put(data, rows, places, 1)
    listed = [2, 3, 4] if places == 2 else places
    assert np.array_equal(result[:, listed], rows)
    assert np.count_nonzero(result) == rows.size
    assert not data.any()


def test_heads_of_a_group_read_one_place():
    from anatune.network.graph.meanings import attention

    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal(shape) for shape in ((4, 3, 8), (2, 5, 8), (2, 5, 8)))
    attrs = {"batch": 1, "heads": 4, "queries": 3, "keys": 5, "dim": 8, "value_dim": 8, "scale": 1.0,
             "zero_rows": False, "block": 12}  # fmt: skip
    grouped = attention(query, key, value, places=((0, 0, 24, 8, 1), *[(0, 0, 40, 8, 2)] * 2), **attrs)
    key, value = (np.repeat(one, 2, axis=0) for one in (key, value))
    plain = attention(query, key, value, places=((0, 0, 24, 8, 1), *[(0, 0, 40, 8, 1)] * 2), **attrs)
    assert np.allclose(grouped, plain, rtol=1e-12)
