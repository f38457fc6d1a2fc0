"""Depthwise convolutions and pools with the channels last have kernels of their own."""

import numpy as np
import pytest

from anatune.core.sizes import Size
from anatune.core.workload.orders import Order
from anatune.network.graph.nodes import Node, TensorType, tensor_type
from anatune.network.graph.operators import CONVOLUTION, WINDOW
from anatune.network.graph.passes.layouts import apply_layout, choose_order
from anatune.network.graph.passes.order import CPU_KERNELS, run_passes
from anatune.network.graph.passes.products import fuse_products
from anatune.network.graph.passes.windows import lower_windows
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g


def check(graph, passes=lambda graph: run_passes(CPU_KERNELS, g.prepared(graph))):
    """Return what passes make of a graph: it computes the same."""
    new_graph = passes(graph)
    arrays = [g.array(*tensor_type(value).shape, seed=9) for value in graph.inputs]
    for got, want in zip(run(new_graph, *arrays), run(graph, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    return new_graph


def ops(graph):
    return [node.op for node in graph.nodes()]


def pool(kind, data, window, *, stride=1, padding=0, counts=False):
    """Return a pool with the channels last."""
    n, *sizes, channels = data.type.shape
    rank = len(sizes)
    layout = {1: "NWC", 2: "NHWC"}[rank]
    attributes = {
        "pool_size": (window,) * rank, "strides": (stride,) * rank, "padding": (padding,) * (2 * rank),
        "dilation": (1,) * rank, "ceil_mode": False, "count_include_pad": counts, "layout": layout,
        "out_layout": layout,
    }  # fmt: skip
    shape = (n, *((size + 2 * padding - window) // stride + 1 for size in sizes), channels)
    return Node(f"nn.{kind}_pool{rank}d", (data,), TensorType(shape, "float32"), attributes)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_take_their_steps_along(rank, stride):
    x = g.source(2, 6, *[9, 7][:rank])
    inner = g.convolution(x, 6, 3, stride=stride, padding=1, groups=6)
    new_graph = check(g.graph(g.relu(g.add(inner, g.constant(6, *[1] * rank))), inputs=[x]))
    (window,) = [node for node in new_graph.nodes() if node.op == WINDOW]
    assert window.attributes["epilogue"] == ("bias", "relu")
    assert len(tensor_type(window).shape) == 5
    assert CONVOLUTION not in ops(new_graph)


def test_a_residual_sum_behind_a_depthwise_convolution():
    x = g.source(1, 4, 5, 5)
    new_graph = check(g.graph(g.add(g.convolution(x, 4, 3, padding=1, groups=4), x), inputs=[x]))
    (window,) = [node for node in new_graph.nodes() if node.op == WINDOW]
    assert window.attributes["epilogue"] == ("add",)


@pytest.mark.parametrize("groups", [2, 1])
def test_other_convolutions_stay(groups):
    x = g.source(1, 4, 5, 5)
    new_graph = check(g.graph(g.convolution(x, 8, 3, groups=groups), inputs=[x]))
    assert WINDOW not in ops(new_graph)


@pytest.mark.parametrize(("kind", "counts"), [("max", False), ("avg", False), ("avg", True)])
@pytest.mark.parametrize("shape", [(2, 7, 5), (1, 7, 8, 5)])
def test_pools(kind, counts, shape):
    x = g.source(*shape)
    new_graph = check(g.graph(pool(kind, x, 3, stride=2, padding=1, counts=counts), inputs=[x]), lower_windows)
    assert ops(new_graph)[-1] in (WINDOW, "reshape")
    assert WINDOW in ops(new_graph)


@pytest.mark.parametrize(("size", "count"), [(8, 4), (6, 6)])
def test_adaptive_pools_of_equal_parts(size, count):
    x = g.source(1, size, size, 3)
    attributes = {"output_size": (count, count), "layout": "NHWC", "out_layout": "NHWC"}
    node = Node("nn.adaptive_avg_pool2d", (x,), TensorType((1, count, count, 3), "float32"), attributes)
    new_graph = check(g.graph(node, inputs=[x]), lower_windows)
    assert ops(new_graph) == (["reshape", WINDOW, "reshape"] if size != count else [])


def test_what_has_no_form_with_the_channels_last_stays():
    x = g.source(1, 9, 9, 4)
    first = pool("max", x, 3)
    first.attributes["layout"] = "NCHW"
    uneven = Node(
        "nn.adaptive_avg_pool2d", (x,), TensorType((1, 4, 4, 4), "float32"),
        {"output_size": (4, 4), "layout": "NHWC", "out_layout": "NHWC"},
    )  # fmt: skip
    for node in (first, uneven, pool("max", x, 9)):
        assert ops(lower_windows(g.graph(node, inputs=[x]))) == [node.op]


@pytest.mark.parametrize("stride", [1, 2])
def test_channels_in_blocks(stride):
    x = g.source(2, 8, 9, 7)
    inner = g.relu(g.add(g.convolution(x, 8, 3, stride=stride, padding=1, groups=8), g.constant(8, 1, 1)))
    plain = fuse_products(g.graph(g.max_pool(inner), inputs=[x]))

    def blocked(graph):
        return lower_windows(apply_layout(graph, choose_order(graph, Order(block=4))))

    windows = [node for node in check(plain, blocked).nodes() if node.op == WINDOW]
    assert [node.attributes["kind"] for node in windows] == ["depthwise", "max"]
    assert all(tensor_type(node).shape[:2] == (2, 2) for node in windows)


def test_pools_take_a_bias_and_a_rectifier_along():
    x = g.source(1, 6, 6, 8)
    inner = pool("avg", x, 3, padding=1, counts=True)
    nodes = check(g.graph(g.relu(g.add(inner, g.constant(8))), inputs=[x]), lower_windows).nodes()
    (window,) = [node for node in nodes if node.op == WINDOW]
    assert window.attributes["epilogue"] == ("bias", "relu")
    assert not {"add", "nn.relu"} & {node.op for node in nodes}
    both = check(g.graph(g.relu(inner), inner, inputs=[x]), lower_windows)
    assert "nn.relu" in ops(both)
    other = check(g.graph(g.add(inner, g.constant(1, 6, 6, 8)), inputs=[x]), lower_windows)
    assert "add" in ops(other)


def test_images_of_sizes_that_are_known_at_run_time_are_left_to_tvm():
    batch, width = Size.symbol("batch", 4), Size.symbol("width", 8)
    for shape, is_window in (((batch, 8, 8, 16), True), ((2, 8, width, 16), False)):
        x = g.source(*shape)
        assert (WINDOW in ops(lower_windows(g.graph(pool("max", x, 3, padding=1), inputs=[x])))) == is_window
