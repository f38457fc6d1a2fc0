"""Concatenations have kernels of their own."""

import numpy as np
import pytest

from anatune.network.graph.nodes import Node, TensorType, tensor_type
from anatune.network.graph.operators import CONCAT
from anatune.network.graph.passes.rows import lower_concatenations
from anatune.network.graph.passes.simplify import simplify
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g


def made_of(graph):
    """Return the nodes of the graph with its concatenations, which computes the same."""
    new_graph = simplify(lower_concatenations(graph))
    arrays = [g.array(*tensor_type(value).shape, seed=3) for value in graph.inputs]
    for got, want in zip(run(new_graph, *arrays), run(graph, *arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return [node for node in new_graph.nodes() if node.op != "reshape"]


@pytest.mark.parametrize(("axis", "shape"), [(0, (1, 72)), (1, (2, 36)), (-1, (6, 12))])
def test_concatenations_are_rows_behind_each_other(axis, shape):
    x, y = g.source(2, 3, 4, name="x"), g.source(2, 3, 4, name="y")
    (node,) = made_of(g.graph(g.concat(x, y, x, axis=axis), inputs=[x, y]))
    assert node.op == CONCAT
    assert tensor_type(node).shape == shape


def test_nested_concatenations_are_one():
    x, y = g.source(2, 3, name="x"), g.source(2, 4, name="y")
    inner = g.concat(x, y, axis=1)
    (node,) = made_of(g.graph(g.concat(inner, x, axis=1), inputs=[x, y]))
    assert len(node.arguments) == 3
    assert len(made_of(g.graph(g.concat(inner, x, axis=1), inner, inputs=[x, y]))) == 2
    other = g.concat(g.concat(x, x, axis=0), g.source(4, 3, name="z"), axis=1)
    z = other.arguments[0][1]
    assert len(made_of(g.graph(other, inputs=[x, z]))) == 2


def test_concatenations_that_begin_alike_are_computed_once():
    x, y, z = (g.source(2, size, name=name) for size, name in ((3, "x"), (4, "y"), (5, "z")))
    short = g.concat(x, y, axis=1)
    long = g.concat(x, y, z, axis=1)
    longest = g.concat(long, x, axis=1)
    nodes = made_of(g.graph(short, long, longest, g.concat(x, y, axis=1), inputs=[x, y, z]))
    assert [len(node.arguments) for node in nodes] == [2, 2, 2]
    other = g.concat(y, x, axis=1)  # another order
    assert len(made_of(g.graph(short, other, inputs=[x, y]))) == 2


def test_other_dtypes_stay():
    x = g.source(2, 3)
    whole = Node("astype", (x,), TensorType((2, 3), "int64"), {"dtype": "int64"})
    both = Node("concat", ((whole, whole),), TensorType((4, 3), "int64"), {"axis": 0})
    assert [node.op for node in lower_concatenations(g.graph(both, inputs=[x])).nodes()] == ["astype", "concat"]
