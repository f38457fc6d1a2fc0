"""Orders of activations: any choice computes the same, and what has a form is what `can_have` says."""

import itertools
from collections import Counter

import numpy as np
import pytest

from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order
from anatune.network.graph.nodes import tensor_type
from anatune.network.graph.operators import CONVOLUTION, PRODUCTS
from anatune.network.graph.passes.layouts import (
    MODEL_FORM,
    LayoutForm,
    apply_layout,
    can_have,
    choose_order,
    operand_orders,
)
from anatune.network.graph.passes.products import fuse_products
from anatune.network.graph.passes.simplify import simplify
from anatune.network.graph.products import workload_of
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g

BLOCKS = Order(block=4)
ORDERS = (CHANNELS_FIRST, CHANNELS_LAST, BLOCKS)


def random_graph(seed):
    """Return convolutions, sums, pools, concatenations and reductions, each of what came before."""
    rng = np.random.default_rng(seed)
    x = g.source(2, int(rng.choice([3, 4, 8])), 9, 7)
    constants = [x]
    for number in range(10):
        data = constants[int(rng.integers(max(0, len(constants) - 3), len(constants)))]
        channels, height, width = data.type.shape[1:]
        alike = [one for one in constants if one.type == data.type and one is not data]
        kind = rng.integers(8)
        if kind <= 2:
            groups = int(rng.choice([1, 2, channels])) if channels % 2 == 0 else 1
            outputs = channels if groups == channels else int(rng.choice([4, 8, 12, 6]))
            taps = int(rng.choice([1, 3])) if min(height, width) > 2 else 1
            result = g.convolution(data, outputs, taps, padding=taps // 2, groups=groups, seed=number)
            result = g.add(result, g.constant(1, outputs, 1, 1, seed=number)) if rng.integers(2) else result
        elif kind == 3 and alike:
            result = g.relu(g.add(data, alike[0]))
        elif kind == 4 and min(height, width) > 2:
            result = g.max_pool(data)
        elif kind == 5:
            same = [one for one in constants if one.type.shape[2:] == data.type.shape[2:]]
            result = g.concat(*(same[-2:] if len(same) > 1 else (data, data)))
        elif kind == 6:
            result = g.multiply(data, g.mean(data, *((2, 3) if rng.integers(2) else (1,))))
        else:
            result = g.relu(g.add(data, g.constant(*((channels, 1, 1) if rng.integers(2) else (1,)), seed=number)))
        constants.append(result)
    last = g.mean(constants[-1], 2, 3, keepdims=False)
    return g.graph(constants[-1], constants[-2], last, inputs=[x])


def forms_of(node, orders=ORDERS):
    return [form for form in itertools.starmap(LayoutForm, itertools.product(orders, orders)) if can_have(node, form)]


def check(graph, choice):
    """Return the graph in the chosen orders, which computes the same."""
    new_graph = apply_layout(graph, choice)
    inputs = [g.array(*tensor_type(value).shape, seed=5) for value in graph.inputs]
    for got, want in zip(run(new_graph, *inputs), run(graph, *inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    for node in new_graph.nodes():
        if node.op in PRODUCTS:
            workload = workload_of(node)
            assert workload.write.shape == tensor_type(node).shape
            assert [access.shape for access in workload.operands] == [tensor_type(a).shape for a in node.arguments]
    return new_graph


@pytest.mark.parametrize("seed", range(40))
def test_any_choice_computes_the_same(seed):
    graph = fuse_products(simplify(random_graph(seed)))
    rng = np.random.default_rng([seed, 1])
    seen = Counter()
    for _ in range(3):
        forms = {node: forms_of(node) for node in graph.nodes()}
        choice = {key: found[int(rng.integers(len(found)))] for key, found in forms.items()}
        seen.update(order for form in choice.values() for order in form)
        check(graph, choice)
    assert len(seen) > 1


@pytest.mark.parametrize("order", ORDERS)
def test_one_order_everywhere_needs_no_transposes_inside(order):
    x = g.source(1, 8, 9, 9)
    branches = [g.relu(g.convolution(x, 8, taps, padding=taps // 2, seed=taps)) for taps in (1, 3)]
    joined = g.max_pool(g.concat(*branches))
    graph = fuse_products(simplify(g.graph(g.relu(g.convolution(joined, 16, 1)), inputs=[x])))
    new_graph = check(graph, choose_order(graph, order))
    assert [node.op for node in new_graph.nodes()].count("permute_dims") == (0 if order == CHANNELS_FIRST else 2)


def test_channels_that_blocks_do_not_divide_stay_in_the_models_order():
    x = g.source(1, 3, 9, 9)
    graph = fuse_products(simplify(g.graph(g.convolution(g.convolution(x, 8, 3), 6, 3), inputs=[x])))
    first, second = (node for node in graph.nodes() if node.op == CONVOLUTION)
    choice = choose_order(graph, BLOCKS)
    assert choice[first] == LayoutForm(CHANNELS_FIRST, BLOCKS)
    assert choice[second] == LayoutForm(BLOCKS, CHANNELS_FIRST)
    assert not can_have(second, LayoutForm(BLOCKS, BLOCKS))
    new_graph = check(graph, choice)
    assert [node.attributes["layout"] for node in new_graph.nodes()] == ["NCHW:NCHW4c", "NCHW4c:NCHW"]


def test_a_value_is_turned_once_for_all_readers():
    x = g.source(1, 8, 9, 9)
    graph = fuse_products(simplify(g.graph(*(g.convolution(x, 8, 3, seed=seed) for seed in range(3)), inputs=[x])))
    new_graph = check(graph, {node: LayoutForm(BLOCKS, CHANNELS_FIRST) for node in graph.nodes()})
    assert [node.op for node in new_graph.nodes()].count("permute_dims") == 1


def test_operands_are_what_a_form_orders():
    x = g.source(1, 8, 9, 9)
    first = g.convolution(x, 8, 3, padding=1)
    graph = fuse_products(simplify(g.graph(g.relu(g.add(g.convolution(first, 8, 3, padding=1), first)), inputs=[x])))
    last = graph.nodes()[-1]
    data, residual = last.arguments[0], last.arguments[2]
    form = LayoutForm(CHANNELS_LAST, BLOCKS)
    assert operand_orders(last, form) == [(data, CHANNELS_LAST), (residual, BLOCKS)]
    check(graph, {last: form})


def test_what_has_no_other_order_keeps_the_models():
    x = g.source(2, 8, 4)
    shaped = g.reshape(g.relu(x), 2, 32)
    assert can_have(shaped, MODEL_FORM)
    assert not can_have(shaped, LayoutForm(CHANNELS_LAST, CHANNELS_LAST))
    assert not can_have(g.mean(x, 1), LayoutForm(BLOCKS, BLOCKS))
    assert can_have(g.mean(x, 1), LayoutForm(CHANNELS_LAST, CHANNELS_LAST))
    assert not can_have(g.relu(x), LayoutForm(CHANNELS_LAST, CHANNELS_FIRST))
    assert choose_order(g.graph(shaped, inputs=[x])) == {}
