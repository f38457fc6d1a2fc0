"""Attentions become one kernel that reads columns of matrices; products that feed them become one product."""

import numpy as np
import pytest

from anatune.network.graph.building import constant, take_slices
from anatune.network.graph.nodes import Constant, Node, TensorType, select_result
from anatune.network.graph.passes.attention import fuse_attention
from anatune.network.graph.passes.simplify import permute_value, reshape_value
from anatune.network.graph.strided import HeadLayout
from tests import naive_graph
from tests.unit.network.graph import graphs
from tests.unit.network.graph.passes.test_rows import causal, guarded, operators, scalar, softmax

BATCH, HEADS, TOKENS, DIM = 2, 3, 6, 4
WIDTH = HEADS * DIM


def projected(x, seed, width=WIDTH):
    return graphs.add(graphs.matmul(x, graphs.constant(x.type.shape[-1], width, seed=seed)), graphs.constant(width))


def heads(value, axes=(0, 2, 1, 3)):
    batch, tokens, width = value.type.shape
    return permute_value(reshape_value(value, (batch, tokens, HEADS, width // HEADS)), axes)


def attention(query, key, value, mask=None, normalised=softmax):
    """Return an attention as PyTorch exports it: matrices of (batch, tokens, heads * dim) in and out."""
    scores = graphs.multiply(graphs.matmul(heads(query), heads(key, (0, 2, 3, 1))), scalar(0.5))
    result = graphs.matmul(normalised(scores if mask is None else graphs.add(scores, mask)), heads(value))
    return reshape_value(permute_value(result, (0, 2, 1, 3)), (*query.type.shape[:2], value.type.shape[-1]))


def fused(graph):
    """Return the graph with all attentions fused, and its nodes of that kind."""
    new_graph = fuse_attention(graphs.prepared(graph), lambda node: True)
    return new_graph, [node for node in new_graph.nodes() if node.op == "anatune.attention"]


def agree(new_graph, graph, *inputs):
    for got, want in zip(naive_graph.run(new_graph, *inputs), naive_graph.run(graph, *inputs), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6 * np.abs(want).max())


def test_self_attention_is_two_products_and_a_kernel():
    x = graphs.source(BATCH, TOKENS, WIDTH)
    inner = attention(*(projected(x, seed) for seed in range(3)))
    graph = graphs.graph(projected(inner, 3), inputs=[x])
    new_graph, (node,) = fused(graph)
    assert operators(new_graph) == ["anatune.matmul", "anatune.attention", "anatune.matmul"]
    assert {value for value in node.arguments} == {node.arguments[0]}
    assert node.arguments[0].type.shape == (BATCH * TOKENS, 3 * WIDTH)
    row = 3 * WIDTH
    assert node.attributes["places"] == tuple(HeadLayout(n * WIDTH, TOKENS * row, DIM, row) for n in range(3))
    assert (node.attributes["scale"], node.attributes["visible"]) == (0.5, ())
    agree(new_graph, graph, graphs.array(BATCH, TOKENS, WIDTH))


def test_parts_of_one_product_are_read_in_place():
    x = graphs.source(1, TOKENS, WIDTH)
    whole = projected(x, 0, 3 * WIDTH)
    kinds = (TensorType((1, TOKENS, WIDTH), "float32"),) * 3
    split = Node("split", (whole,), kinds, {"axis": 2, "indices_or_sections": 3})
    graph = graphs.graph(
        attention(*(select_result(split, n) for n in range(3)), mask=causal(TOKENS), normalised=guarded), inputs=[x]
    )
    new_graph, (node,) = fused(graph)
    assert operators(new_graph) == ["anatune.matmul", "anatune.attention"]
    assert node.attributes["zero_rows"]
    assert node.attributes["visible"] == tuple(range(1, TOKENS + 1))
    plain = graphs.graph(attention(*(select_result(split, n) for n in range(3)), mask=causal(TOKENS)), inputs=[x])
    agree(new_graph, fuse_attention(graphs.prepared(plain), lambda node: False), graphs.array(1, TOKENS, WIDTH))


def test_slices_of_one_product_are_read_in_place():
    x = graphs.source(1, TOKENS, WIDTH)
    whole = reshape_value(projected(x, 0, 3 * WIDTH), (1, TOKENS, 3, WIDTH))
    graph = graphs.graph(
        attention(*(take_slices(whole, constant(place, "int64"), 2) for place in range(3))), inputs=[x]
    )
    new_graph, (node,) = fused(graph)
    assert operators(new_graph) == ["anatune.matmul", "anatune.attention"]
    assert [place.offset for place in node.attributes["places"]] == [0, WIDTH, 2 * WIDTH]


def test_other_lengths_and_sizes_of_keys_and_values():
    x, y = graphs.source(BATCH, TOKENS, WIDTH), graphs.source(BATCH, 9, WIDTH, name="y")
    graph = graphs.graph(attention(projected(x, 0), projected(y, 1), projected(y, 2, 2 * WIDTH)), inputs=[x, y])
    new_graph, (node,) = fused(graph)
    assert operators(new_graph) == ["anatune.matmul", "anatune.matmul", "anatune.attention"]
    assert [node.attributes[name] for name in ("queries", "keys", "dim", "value_dim")] == [TOKENS, 9, DIM, 2 * DIM]
    assert node.type.shape == (BATCH * TOKENS, 2 * WIDTH)
    agree(new_graph, graph, graphs.array(BATCH, TOKENS, WIDTH), graphs.array(BATCH, 9, WIDTH))


def test_products_that_others_read_stay_apart():
    x = graphs.source(1, TOKENS, WIDTH)
    query, key, value = (projected(x, seed) for seed in range(3))
    graph = graphs.graph(attention(query, key, value), value, inputs=[x])
    new_graph, (node,) = fused(graph)
    assert [value.type.shape for value in node.arguments] == [(TOKENS, 2 * WIDTH)] * 2 + [(TOKENS, WIDTH)]
    agree(new_graph, graph, graphs.array(1, TOKENS, WIDTH))


def test_operands_and_results_by_heads():
    shape = (BATCH, HEADS, TOKENS, DIM)
    inputs = [graphs.source(*shape, name=name) for name in "qkv"]
    scores = graphs.matmul(inputs[0], permute_value(inputs[1], (0, 1, 3, 2)))
    graph = graphs.graph(graphs.matmul(softmax(scores), inputs[2]), inputs=inputs)
    new_graph, (node,) = fused(graph)
    assert operators(new_graph) == ["anatune.attention", "permute_dims"]
    assert node.attributes["places"][1][:4] == (0, HEADS * TOKENS * DIM, TOKENS * DIM, DIM)
    agree(new_graph, graph, *(graphs.array(*shape, seed=seed) for seed in range(3)))


@pytest.mark.parametrize("reads", ["scores", "powers"])
def test_an_attention_whose_inside_is_read_is_none(reads):
    q, k, v = (graphs.source(2, TOKENS, DIM, name=name) for name in "qkv")
    scores = graphs.matmul(q, permute_value(k, (0, 2, 1)))
    powers = softmax(scores)
    graph = graphs.graph(graphs.matmul(powers, v), scores if reads == "scores" else powers, inputs=[q, k, v])
    assert not fused(graph)[1]


def test_keys_that_are_turned_already_stay():
    q, k, v = graphs.source(2, 6, 4), graphs.source(2, 4, 6, name="k"), graphs.source(2, 6, 4, name="v")
    assert not fused(graphs.graph(graphs.matmul(softmax(graphs.matmul(q, k)), v), inputs=[q, k, v]))[1]


def test_tensors_beyond_32_bits_stay():
    q, k, v = (graphs.source(2**20, 32, 64, name=name) for name in "qkv")
    scores = graphs.matmul(q, permute_value(k, (0, 2, 1)))
    assert not fused(graphs.graph(graphs.matmul(softmax(scores), v), inputs=[q, k, v]))[1]


def test_what_does_not_pay_stays_as_it_is():
    x = graphs.source(1, TOKENS, WIDTH)
    graph = graphs.prepared(graphs.graph(attention(*(projected(x, seed) for seed in range(3))), inputs=[x]))
    assert fuse_attention(graph, lambda node: False) is graph


@pytest.mark.parametrize(("hidden", "want"), [(-np.inf, (2, 3, 4)), (np.finfo(np.float32).min, (2, 4, 4)), (-1e4, ())])
def test_keys_that_a_constant_mask_leaves(hidden, want):
    q, k, v = (graphs.source(2, 3 if name == "q" else 4, DIM, name=name) for name in "qkv")
    seen = np.tri(3, 4, 1, dtype=bool)
    if hidden == np.finfo(np.float32).min:
        seen[1] = False  # nothing is left: all keys are weighed alike
    mask = Constant(np.where(seen, 0, hidden).astype(np.float32)[None])
    scores = graphs.add(graphs.matmul(q, permute_value(k, (0, 2, 1))), mask)
    (node,) = fused(graphs.graph(graphs.matmul(softmax(scores), v), inputs=[q, k, v]))[1]
    assert node.attributes["visible"] == want
