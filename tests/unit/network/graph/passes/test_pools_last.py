"""Average pools come behind the 1x1 convolutions that read them."""

import numpy as np
import pytest

from anatune.network.graph.nodes import Node, TensorType, tensor_type
from anatune.network.graph.passes.pools import move_pools_last
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g


def pool(data, *, stride=1, counts=True, padding=1):
    n, channels, *sizes = tensor_type(data).shape
    attributes = {
        "pool_size": (3, 3), "strides": (stride, stride), "dilation": (1, 1), "padding": (padding,) * 4,
        "ceil_mode": False, "count_include_pad": counts, "layout": "NCHW", "out_layout": "NCHW",
    }  # fmt: skip
    shape = [(size + 2 * padding - 3) // stride + 1 for size in sizes]
    return Node("nn.avg_pool2d", (data,), TensorType((n, channels, *shape), "float32"), attributes)


def ops(graph):
    """Return the operators of the graph with pools last, which computes the same."""
    new_graph = move_pools_last(graph)
    arrays = [g.array(*tensor_type(value).shape, seed=9) for value in graph.inputs]
    for got, want in zip(run(new_graph, *arrays), run(graph, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    return [node.op for node in new_graph.nodes()]


def test_fewer_channels_are_pooled():
    x = g.source(2, 8, 6, 7)
    assert ops(g.graph(g.relu(g.convolution(pool(x), 4, 1)), inputs=[x])) == ["nn.conv2d", "nn.avg_pool2d", "nn.relu"]
    plain = pool(x, counts=False, padding=0)
    assert ops(g.graph(g.convolution(plain, 4, 1), inputs=[x])) == ["nn.avg_pool2d", "nn.conv2d"]  # a larger image


@pytest.mark.parametrize(
    ("pooled", "convolved"),
    [({"counts": False}, {}), ({"stride": 2}, {}), ({}, {"outputs": 8}), ({}, {"taps": 3}), ({}, {"groups": 2})],
)
def test_what_would_change_or_cost_more_stays(pooled, convolved):
    x = g.source(2, 8, 6, 7)
    options = {"outputs": 4, "taps": 1, **convolved}
    assert ops(g.graph(g.convolution(pool(x, **pooled), **options), inputs=[x])) == ["nn.avg_pool2d", "nn.conv2d"]


def test_a_pool_that_others_read_stays():
    x = g.source(2, 8, 6, 7)
    inner = pool(x)
    assert ops(g.graph(g.convolution(inner, 4, 1), inner, inputs=[x])) == ["nn.avg_pool2d", "nn.conv2d"]
