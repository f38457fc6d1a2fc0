"""Passes over every network: the same outputs, fewer operators."""

import numpy as np
import pytest

from anatune.network.graph.nodes import Constant, tensor_type
from anatune.network.graph.operators import CONVOLUTION, MATMUL, PRODUCTS
from anatune.network.graph.products import constant_operands, workload_of
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g


def check(graph, *inputs):
    """Return the prepared graph, which computes the same."""
    new_graph = g.prepared(graph)
    arrays = inputs or [g.array(*tensor_type(value).shape, seed=9) for value in graph.inputs]
    for got, want in zip(run(new_graph, *arrays), run(graph, *arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6)
    return new_graph


def ops(graph):
    return [node.op for node in graph.nodes()]


def test_a_residual_network_is_products_pools_and_one_transpose():
    new_graph = check(g.residual_network())
    assert ops(new_graph).count(CONVOLUTION) == 6
    assert [op for op in ops(new_graph) if op not in PRODUCTS] == ["permute_dims", "nn.max_pool2d", "mean", "reshape"]
    steps = [node.attributes["epilogue"] for node in new_graph.nodes() if node.op in PRODUCTS]
    assert steps.count(("bias", "add", "relu")) == 2
    assert steps[-1] == ("bias",)
    assert all(node.attributes["layout"] == "NHWC" for node in new_graph.nodes() if node.op == CONVOLUTION)
    assert all(constant_operands(node) for node in new_graph.nodes() if node.op in PRODUCTS)


def test_workloads_say_what_the_nodes_compute():
    new_graph = g.prepared(g.residual_network())
    for node in new_graph.nodes():
        if node.op in PRODUCTS:
            workload = workload_of(node)
            assert workload.write.shape == tensor_type(node).shape
            assert [access.shape for access in workload.operands] == [tensor_type(a).shape for a in node.arguments]


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolutions_of_any_rank(rank):
    x = g.source(2, 4, *[7, 6, 5][:rank])
    new_graph = check(g.graph(g.relu(g.convolution(x, 8, 3, stride=2, padding=1)), inputs=[x]))
    assert [op for op in ops(new_graph) if op in PRODUCTS] == [CONVOLUTION]


def test_grouped_and_depthwise_convolutions():
    x = g.source(1, 8, 6, 6)
    new_graph = check(
        g.graph(g.convolution(g.convolution(x, 8, 3, padding=1, groups=8), 16, 1, groups=2, seed=3), inputs=[x])
    )
    assert ops(new_graph) == ["permute_dims", CONVOLUTION, CONVOLUTION, "permute_dims"]


def test_a_product_that_is_read_twice_keeps_its_result():
    x = g.source(1, 4, 6, 6)
    inner = g.convolution(x, 4, 3, padding=1)
    new_graph = check(g.graph(g.relu(inner), g.multiply(inner, g.constant(1, 4, 1, 1)), inputs=[x]))
    (node,) = (node for node in new_graph.nodes() if node.op == CONVOLUTION)
    assert node.attributes["epilogue"] == ()


def test_a_sum_of_two_products_is_fused_into_the_later_one():
    x = g.source(1, 4, 6, 6)
    new_graph = check(g.graph(g.add(g.convolution(x, 8, 3, padding=1), g.convolution(x, 8, 1, seed=4)), inputs=[x]))
    first, second = (node for node in new_graph.nodes() if node.op == CONVOLUTION)
    assert (first.attributes["epilogue"], second.attributes["epilogue"]) == ((), ("add",))
    assert second.arguments[2] is first


def test_a_value_added_to_itself_is_not_its_own_residual():
    x = g.source(1, 4, 6, 6)
    inner = g.convolution(x, 4, 1)
    new_graph = check(g.graph(g.add(inner, inner), inputs=[x]))
    assert "add" in ops(new_graph)


def test_linear_layers_on_three_dimensions_are_one_matrix_product():
    x = g.source(2, 5, 8)
    linear = g.add(g.matmul(g.reshape(x, 10, 8), g.constant(8, 8)), g.constant(8))
    new_graph = check(g.graph(g.relu(g.add(g.reshape(linear, 2, 5, 8), x)), inputs=[x]))
    assert ops(new_graph) == ["reshape", MATMUL, "reshape"]
    (node,) = (node for node in new_graph.nodes() if node.op == MATMUL)
    assert node.attributes["epilogue"] == ("bias", "add", "relu")


def test_weights_that_are_repeated_for_a_batch_are_one_matrix():
    x = g.source(3, 6, 8)
    repeated = Constant(np.broadcast_to(g.array(8, 5), (3, 8, 5)))
    new_graph = check(g.graph(g.add(g.matmul(x, repeated), g.constant(5)), inputs=[x]))
    (node,) = [node for node in new_graph.nodes() if node.op in PRODUCTS]
    assert [value.type.shape for value in node.arguments] == [(18, 8), (8, 5), (5,)]
    new_graph = check(g.graph(g.matmul(x, g.constant(3, 8, 5)), inputs=[x]))
    assert "anatune.batch_matmul" in ops(new_graph)


def test_products_of_two_activations_are_batched_and_know_no_operand():
    x, y = g.source(2, 3, 5, 4, name="x"), g.source(2, 3, 4, 6, name="y")
    new_graph = check(g.graph(g.matmul(x, y), inputs=[x, y]))
    (node,) = (node for node in new_graph.nodes() if node.op in PRODUCTS)
    assert workload_of(node).operator == "batch_matmul"
    assert constant_operands(node) == ()


def test_batch_norm_that_follows_no_product_is_a_product_and_a_sum():
    x = g.source(1, 4, 5, 5)
    assert ops(check(g.graph(g.batch_norm(g.relu(x)), inputs=[x]))) == ["nn.relu", "multiply", "add"]


def test_factors_behind_a_bias_scale_both():
    x = g.source(1, 4, 5, 5)
    biased = g.add(g.convolution(x, 4, 3), g.constant(1, 4, 1, 1, seed=5))
    new_graph = check(
        g.graph(g.add(g.multiply(biased, g.constant(1, 4, 1, 1)), g.constant(1, 4, 1, 1, seed=7)), inputs=[x])
    )
    assert [op for op in ops(new_graph) if op != "permute_dims"] == [CONVOLUTION]


def test_channels_stay_last_through_concatenations_and_pools():
    x = g.source(1, 4, 8, 8)
    both = g.concat(g.convolution(x, 4, 1), g.convolution(x, 8, 3, padding=1, seed=2))
    new_graph = check(g.graph(g.convolution(g.max_pool(g.relu(both)), 4, 1, seed=3), inputs=[x]))
    assert ops(new_graph).count("permute_dims") == 2  # of the input and of the output
    (joined,) = (node for node in new_graph.nodes() if node.op == "concat")
    assert joined.attributes["axis"] == 3


def test_what_broadcasts_is_turned_too():
    x = g.source(1, 4, 6, 6)
    scaled = g.multiply(g.relu(g.convolution(x, 4, 3, padding=1)), g.constant(4, 1, 1))
    new_graph = check(g.graph(g.convolution(g.relu(scaled), 4, 1, seed=3), inputs=[x]))
    assert ops(new_graph).count("permute_dims") == 2


def test_a_model_without_convolutions_has_no_transposes():
    x = g.source(1, 4, 6, 6)
    assert ops(check(g.graph(g.max_pool(g.relu(x)), inputs=[x]))) == ["nn.relu", "nn.max_pool2d"]


def test_equal_nodes_are_computed_once():
    x = g.source(3, 4)
    new_graph = check(g.graph(g.add(g.relu(x), g.multiply(g.relu(x), g.relu(x))), inputs=[x]))
    assert ops(new_graph).count("nn.relu") == 1


def test_operators_on_constants_are_computed():
    x = g.source(3, 4)
    new_graph = check(g.graph(g.add(x, g.relu(x)), g.add(g.constant(3, 4), g.constant(3, 4, seed=2)), inputs=[x]))
    assert isinstance(new_graph.outputs[1], Constant)


@pytest.mark.parametrize(
    ("first", "second", "is_rounding"),
    [(12582912, -12582912, True), (12582912, -12582910, True), (0.1, 2, False), (0, 0, False)],
)
def test_sums_that_round_stay_two_behind_products(first, second, is_rounding):
    x, numbers = g.source(3, 4), [np.full(4, number, np.float32) for number in (first, second)]
    summed = g.add(g.add(g.matmul(x, g.constant(4, 4)), Constant(numbers[0])), Constant(numbers[1]))
    graph = g.graph(summed, inputs=[x])
    new_graph = g.prepared(graph)
    steps = [step for node in new_graph.nodes() if node.op in PRODUCTS for step in node.attributes["epilogue"]]
    assert len(steps) + ops(new_graph).count("add") == 1 + is_rounding
    operand = g.array(3, 4, seed=9)
    np.testing.assert_allclose(run(new_graph, operand)[0], run(graph, operand)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_factors_that_leave_the_dtype_stay_beside_the_weights(factor):
    x, weight = g.source(3, 4), Constant(np.full((4, 4), factor, np.float32))
    product = g.multiply(g.matmul(x, weight), Constant(np.full(4, factor, np.float32)))
    new_graph = g.prepared(g.graph(product, inputs=[x]))
    operand = np.full((3, 4), 1 / factor, np.float32)
    np.testing.assert_allclose(run(new_graph, operand)[0], np.full((3, 4), 4 * factor), rtol=1e-6)
