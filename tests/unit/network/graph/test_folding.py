"""Operators on constants: what a model computes of its weights alone is computed once, when it is compiled."""

import numpy as np
import pytest

from anatune.network.graph.folding import fold
from anatune.network.graph.nodes import Constant, Node, Shape, TensorType, select_result
from anatune.network.graph.operators import CONVOLUTION
from anatune.network.graph.passes.order import CPU, run_passes
from anatune.network.graph.passes.simplify import simplify
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g

AXIS = {"axis": (1, 2, 3), "keepdims": True}
ROWS = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def node(op, *arguments, shape=None, **attributes):
    return Node(op, arguments, TensorType(shape or arguments[0].type.shape, "float32"), attributes)


def norm_by_powers(weight):
    squares = node("power", node("abs", weight), Constant(np.float32(2)))
    return node("power", node("sum", squares, shape=(8, 1, 1, 1), **AXIS), Constant(np.float32(0.5)))


def norm_by_products(weight):
    return node("sqrt", node("sum", g.multiply(weight, weight), shape=(8, 1, 1, 1), **AXIS))


@pytest.mark.parametrize("norm", [norm_by_powers, norm_by_products])
def test_weight_norms_are_weights(norm):
    x, weight, gain = g.source(1, 4, 6, 6), g.constant(8, 4, 3, 3), g.constant(8, 1, 1, 1)
    spread = node("broadcast_to", norm(weight), Shape((8, 4, 3, 3)), shape=(8, 4, 3, 3))
    scaled = g.multiply(node("divide", weight, spread), gain)
    convolution = g.convolution(x, 8, 3)
    new_graph = run_passes(CPU, g.graph(convolution.of((x, scaled)), inputs=[x]))
    assert [one.op for one in new_graph.nodes()] == [CONVOLUTION]
    length = np.sqrt((weight.array.astype(np.float64) ** 2).sum((1, 2, 3), keepdims=True))
    np.testing.assert_allclose(new_graph.nodes()[0].arguments[1].array, weight.array / length * gain.array, rtol=1e-5)


@pytest.mark.parametrize(
    ("new_graph", "want"),
    [
        (node("abs", Constant(ROWS)), np.abs(ROWS)),
        (node("nn.relu6", Constant(4 * ROWS)), np.clip(4 * ROWS, 0, 6)),
        (node("nn.leakyrelu", Constant(ROWS), alpha=0.1), np.maximum(ROWS, 0.1 * ROWS)),
        (node("nn.softmax", Constant(ROWS), axis=-1), np.exp(ROWS) / np.exp(ROWS).sum(-1, keepdims=True)),
        (g.matmul(Constant(ROWS), Constant(ROWS.T.copy())), ROWS @ ROWS.T),
        (node("variance", Constant(ROWS), shape=(3,), axis=(1,), keepdims=False), ROWS.var(1)),
        (node("stack", (Constant(ROWS), Constant(ROWS)), shape=(2, 3, 4), axis=0), np.stack([ROWS, ROWS])),
        (node("tile", Constant(ROWS), shape=(3, 8), repeats=(1, 2)), np.tile(ROWS, 2)),
        (node("flip", Constant(ROWS), axis=1), ROWS[:, ::-1]),
    ],
    ids=lambda one: getattr(one, "op", ""),
)
def test_operators_on_constants(new_graph, want):
    result = fold(new_graph)
    assert isinstance(result, Constant)
    np.testing.assert_allclose(result.array, want, rtol=1e-5, atol=1e-6)


def test_constants_of_equal_values_are_one():
    x, weight = g.source(4, 16), g.constant(16, 16)
    copies = [Constant(weight.array.copy()) for _ in range(2)]
    turned = [node("permute_dims", one, axes=(1, 0)) for one in (weight, *copies)]
    changed = weight.array.copy()
    changed[3, 3] += 1
    other = Constant(changed)
    graph = g.graph(*(g.matmul(x, one) for one in (weight, *copies, other, *turned)), inputs=[x])
    new_graph = simplify(graph)
    assert len(new_graph.constants()) == 3
    assert len(new_graph.nodes()) == 3
    for got, want in zip(run(new_graph, g.array(4, 16)), run(graph, g.array(4, 16)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_signs_of_zeros_and_what_is_no_number_tell_constants_apart():
    numbers = [0.0, -0.0, np.nan, 0.0, np.nan]
    x = g.source(4)
    graph = g.graph(*(g.add(x, Constant(np.full(4, number, np.float32))) for number in numbers), inputs=[x])
    assert len(simplify(graph).constants()) == 3


def test_what_has_no_elements_is_a_constant():
    x, empty = g.source(2, 6, name="x"), g.source(2, 0, name="empty")
    split = Node("split", (x,), tuple(TensorType((2, size), "float32") for size in (2, 0, 4)), {"axis": 1})
    parts = [select_result(split, place) for place in range(3)]
    nothing = g.matmul(empty, Node("permute_dims", (empty,), TensorType((0, 2), "float32"), {"axes": (1, 0)}))
    outputs = [g.concat(empty, x, parts[1]), g.concat(empty, empty), parts[1], parts[2], nothing]
    new_graph = simplify(g.graph(*outputs, inputs=[x, empty]))
    assert new_graph.outputs[0] is x
    assert [one.op for one in new_graph.nodes()] == ["strided_slice"]
    constants = [one.array for one in new_graph.outputs if isinstance(one, Constant)]
    assert [array.shape for array in constants] == [(2, 0), (2, 0), (2, 2)]
    assert not constants[2].any()
