"""Reductions of dimensions next to each other have kernels of their own."""

import numpy as np
import pytest

from anatune.graph.nodes import Node, TensorType, tensor_type
from anatune.graph.operators import REDUCTION
from anatune.graph.passes.windows import with_reductions
from tests.naive_graph import run
from tests.unit.graph import graphs as g


def reduction(op, data, axis, *, keepdims=False):
    shape = np.empty(tensor_type(data).shape).sum(axis=axis, keepdims=keepdims).shape
    return Node(op, (data,), TensorType(shape, "float32"), {"axis": axis, "keepdims": keepdims})


def made_of(node, data):
    """Return the nodes that a reduction becomes, which compute the same."""
    graph = g.graph(node, inputs=[data])
    made = with_reductions(graph)
    array = g.array(*tensor_type(data).shape)
    for got, want in zip(run(made, array), run(graph, array), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)
    return made.nodes()


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(("axis", "sizes"), [
    ((1, 2), (2, 12, 5)), ((-1,), (24, 5, 1)), ((0,), (1, 2, 60)), (None, (1, 120, 1)), ((2, 1), (2, 12, 5)),
])  # fmt: skip
def test_reductions_of_neighbours(op, axis, keepdims, sizes):
    x = g.source(2, 3, 4, 5)
    nodes = made_of(reduction(op, x, axis, keepdims=keepdims), x)
    (own,) = [node for node in nodes if node.op == REDUCTION]
    assert tensor_type(own.arguments[0]).shape == sizes
    assert own.attributes == {"kind": op}


def test_dimensions_of_one_element_are_no_gap():
    x = g.source(2, 3, 1, 5)
    assert REDUCTION in [node.op for node in made_of(reduction("sum", x, (1, 3)), x)]


@pytest.mark.parametrize("axis", [(0, 2), (1, 3)])
def test_reductions_of_dimensions_apart_stay(axis):
    x = g.source(2, 3, 4, 5)
    assert [node.op for node in made_of(reduction("sum", x, axis), x)] == ["sum"]


@pytest.mark.parametrize(
    ("layout", "shape"), [("NCHW", (2, 3, 1, 1)), ("NHWC", (2, 1, 1, 5)), ("NCHW4c", (2, 3, 1, 1, 4))]
)
def test_a_global_pool_is_a_mean(layout, shape):
    x = g.source(2, 3, 4, 5, *shape[4:])
    attributes = {"output_size": (1, 1), "layout": layout, "out_layout": layout}
    node = Node("nn.adaptive_avg_pool2d", (x,), TensorType(shape, "float32"), attributes)
    assert REDUCTION in [one.op for one in made_of(node, x)]
