"""Softmax, layer norm and activations of a graph become anatune's, whatever they are spelt like."""

import numpy as np
import pytest

from anatune.network.graph.nodes import Constant, Node, Scalar, TensorType
from anatune.network.graph.passes.activations import fuse_activations
from tests import naive_graph
from tests.unit.network.graph import graphs

ATTENTION = [1, 2, 8, 8]


def scalar(value):
    return Constant(np.float32(value).reshape(()))


def unary(op, data, dtype=None, **attributes):
    return Node(op, (data,), TensorType(data.type.shape, dtype or data.type.dtype), attributes)


def softmax(data):
    return unary("nn.softmax", data, axis=-1)


def guarded(scores):
    """Return the softmax of PyTorch's attention: rows of nothing but -inf are zeros."""
    bools = TensorType(scores.type.shape, "bool")
    lowest = Node("equal", (scores, scalar(-np.inf)), bools)
    some = unary("astype", unary("logical_not", lowest), "int8")
    any_row = Node("max", (some,), TensorType((*scores.type.shape[:-1], 1), "int8"), {"axis": (-1,), "keepdims": True})
    none = unary("logical_not", unary("astype", any_row, "bool"))
    zeros = Constant(np.zeros(scores.type.shape, np.float32))
    return Node("where", (none, zeros, softmax(scores)), scores.type)


def causal(size):
    return Constant(np.triu(np.full((1, 1, size, size), -np.inf, np.float32), 1))


def operators(graph):
    return [node.op for node in graph.nodes() if node.op != "reshape"]


def test_an_attention_is_two_products_and_a_softmax():
    x, y = graphs.source(1, 2, 8, 4), graphs.source(1, 2, 4, 8, name="y")
    scaled = [graphs.multiply(value, scalar(0.5)) for value in (x, y)]
    scores = graphs.add(graphs.matmul(*scaled), causal(8))
    graph = graphs.graph(guarded(scores), inputs=[x, y])
    new_graph = graphs.prepared(graph)
    assert operators(new_graph) == ["anatune.batch_matmul", "anatune.softmax"]
    (node,) = [node for node in new_graph.nodes() if node.op == "anatune.softmax"]
    assert node.attributes == {"scale": 0.25, "zero_rows": True, "block": 16}
    assert [value.type.shape for value in node.arguments] == [(16, 8), (8, 8)]
    inputs = [graphs.array(*value.type.shape) for value in (x, y)]
    plain = graphs.graph(softmax(scores), inputs=[x, y])
    np.testing.assert_allclose(naive_graph.run(new_graph, *inputs)[0], naive_graph.run(plain, *inputs)[0], atol=1e-6)


def test_a_mask_of_zeros_is_left_out():
    x = graphs.source(*ATTENTION)
    zeros = Constant(np.zeros((1, 1, 8, 8), np.float32))
    (node,) = [
        n for n in graphs.prepared(graphs.graph(softmax(graphs.add(x, zeros)), inputs=[x])).nodes() if n.op[0] == "a"
    ]
    assert len(node.arguments) == 1


@pytest.mark.parametrize(
    ("shape", "rows", "block"),
    [
        ((8,), 1, 48),
        ((6, 8), 6, 48),
        ((1, 1, 6, 8), 6, 48),
        ((4, 6, 8), 24, 48),
        ((2, 1, 1, 8), 2, 24),
        ((2, 1, 6, 8), 12, 24),
        ((2, 4, 1, 8), 8, 6),
        ((2, 4, 6, 8), 48, 48),
    ],
)
def test_masks_are_repeated_along_neighbouring_dimensions(shape, rows, block):
    x, mask = graphs.source(2, 4, 6, 8), graphs.source(*shape, name="mask")
    graph = graphs.graph(softmax(graphs.add(x, mask)), inputs=[x, mask])
    new_graph = graphs.prepared(graph)
    (node,) = [node for node in new_graph.nodes() if node.op != "reshape"]
    assert node.arguments[1].type.shape == (rows, 8)
    assert node.attributes["block"] == block
    inputs = [graphs.array(*value.type.shape) for value in (x, mask)]
    np.testing.assert_allclose(naive_graph.run(new_graph, *inputs)[0], naive_graph.run(graph, *inputs)[0], atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 1, 8), (2, 4, 6, 1)])
def test_other_masks_stay_sums(shape):
    x, mask = graphs.source(2, 4, 6, 8), graphs.source(*shape, name="mask")
    new_graph = graphs.prepared(graphs.graph(softmax(graphs.add(x, mask)), inputs=[x, mask]))
    assert operators(new_graph) == ["add", "anatune.softmax"]


def test_a_condition_on_other_scores_stays():
    x, y = graphs.source(*ATTENTION), graphs.source(*ATTENTION, name="y")
    other = guarded(x)
    result = Node("where", (other.arguments[0], other.arguments[1], softmax(y)), x.type)
    assert "where" in operators(graphs.prepared(graphs.graph(result, inputs=[x, y])))


@pytest.mark.parametrize("flags", [(True, True), (False, True), (False, False)])
def test_layer_norm_along_the_last_dimensions(flags):
    x = graphs.source(2, 3, 4, 5)
    attributes = {"axes": (-2, -1), "epsilon": 1e-5, "center": flags[0], "scale": flags[1]}
    norm = Node("nn.layer_norm", (x, graphs.constant(4, 5), graphs.constant(4, 5, seed=1)), x.type, attributes)
    graph = graphs.graph(norm, inputs=[x])
    new_graph = graphs.prepared(graph)
    assert operators(new_graph) == ["anatune.layer_norm"]
    data = graphs.array(2, 3, 4, 5)
    np.testing.assert_allclose(naive_graph.run(new_graph, data)[0], naive_graph.run(graph, data)[0], atol=1e-9)
    first = Node("nn.layer_norm", (x, graphs.constant(2), graphs.constant(2)), x.type, {**attributes, "axes": (0,)})
    assert operators(graphs.prepared(graphs.graph(first, inputs=[x]))) == ["nn.layer_norm"]


def spelt_gelu(x):
    half = graphs.multiply(x, scalar(0.5))
    return graphs.multiply(half, graphs.add(unary("erf", Node("divide", (x, scalar(2**0.5)), x.type)), scalar(1)))


def spelt_gelu_tanh(x):
    cube = Node("power", (x, scalar(3)), x.type)
    inner = graphs.multiply(graphs.add(x, graphs.multiply(cube, scalar(0.044715))), scalar(0.7978845608))
    return graphs.multiply(graphs.multiply(x, scalar(0.5)), graphs.add(unary("tanh", inner), scalar(1)))


def spelt_silu(x):
    return graphs.multiply(x, unary("sigmoid", x))


@pytest.mark.parametrize(
    ("spelt", "name"), [(spelt_gelu, "nn.gelu"), (spelt_gelu_tanh, "nn.gelu_tanh"), (spelt_silu, "nn.silu")]
)
def test_activations_are_known_by_their_values(spelt, name):
    x = graphs.source(2, 8)
    inner = graphs.add(x, graphs.constant(8))
    assert operators(fuse_activations(graphs.graph(spelt(inner), inputs=[x]))) == ["add", name]


@pytest.mark.parametrize(
    ("spelt", "step"), [(spelt_gelu, "gelu"), (spelt_gelu_tanh, "gelu_tanh"), (spelt_silu, "silu")]
)
def test_activations_behind_products_are_fused(spelt, step):
    x = graphs.source(4, 8)
    graph = graphs.graph(spelt(graphs.add(graphs.matmul(x, graphs.constant(8, 16)), graphs.constant(16))), inputs=[x])
    new_graph = graphs.prepared(graph)
    assert operators(new_graph) == ["anatune.matmul"]
    assert new_graph.nodes()[-1].attributes["epilogue"] == ("bias", step)
    data = graphs.array(4, 8)
    np.testing.assert_allclose(naive_graph.run(new_graph, data)[0], naive_graph.run(graph, data)[0], atol=1e-6)


def test_activations_that_follow_nothing_stay():
    x = graphs.source(4, 100)
    (node,) = graphs.prepared(graphs.graph(spelt_gelu(x), inputs=[x])).nodes()
    assert (node.op, node.type.shape) == ("nn.gelu", (4, 100))


def test_what_is_nearly_an_activation_is_none():
    x = graphs.source(2, 8)
    near = graphs.multiply(x, unary("sigmoid", graphs.multiply(x, scalar(1.001))))
    assert operators(fuse_activations(graphs.graph(near, inputs=[x]))) == ["multiply", "sigmoid", "multiply"]
    both = graphs.multiply(graphs.source(2, 8, name="y"), unary("sigmoid", x))
    assert "sigmoid" in operators(fuse_activations(graphs.graph(both, inputs=[x])))


@pytest.mark.parametrize(
    ("bounds", "op"),
    [((0, 6), "nn.relu6"), ((0, 6.1), "clip"), ((0, 100), "clip"), ((-1, 6), "clip"), ((0, 8.9), "clip")],
)
def test_a_clip_is_relu6_with_its_bounds_alone(bounds, op):
    x = graphs.source(2, 8)
    clip = Node("clip", (x, *(Scalar(float(bound), "float32") for bound in bounds)), x.type)
    assert operators(fuse_activations(graphs.graph(clip, inputs=[x]))) == [op]
    least = Node("minimum", (Node("maximum", (x, scalar(bounds[0])), x.type), scalar(bounds[1])), x.type)
    assert len(operators(fuse_activations(graphs.graph(least, inputs=[x])))) == (1 if op == "nn.relu6" else 2)
