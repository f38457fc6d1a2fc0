"""What a model says of kernels without a plan and of what was left to TVM."""

import pytest

from anatune import api
from anatune.network.compiling.parts import operators_of, rows_of
from anatune.network.graph.nodes import Node, TensorType
from anatune.network.relax.kernels import ModelKernel
from anatune.templates.cpu import CPU
from tests.unit.network.graph import graphs as g

HARDWARE = api.hardware("epyc_7763").with_threads(1)


def test_operators_take_the_time_of_their_bytes():
    x = g.source(8, 100)
    ids = g.source(4, name="ids")
    ids.type = TensorType((4,), "int64")
    table = g.constant(1000, 100)
    taken = Node("take", (table, ids), TensorType((4, 100), "float32"), {"axis": 0})
    graph = g.graph(Node("abs", (x,), x.type), Node("abs", (taken,), taken.type), inputs=[x, ids])
    found = {one.name: one for one in operators_of(graph, (), HARDWARE)}
    assert {name: one.count for name, one in found.items()} == {"abs": 2, "take": 1}
    assert next(iter(found)) == "abs"
    each = [CPU.streaming_s(HARDWARE, 2 * rows * 100 * 4) for rows in (8, 4)]
    assert found["abs"].predicted_s == pytest.approx(sum(each))
    assert found["take"].predicted_s == pytest.approx(each[1])  # rows that are read, not the table


def test_kernels_without_a_plan_are_summed_by_name():
    x = g.source(2, 30, 40)
    graph = g.graph(g.mean(x, 1), g.mean(g.relu(x), 1), inputs=[x])
    own = [node for node in graph.nodes() if node.op == "mean"]
    kernels = {node: ModelKernel("anatune_mean", None, {}) for node in own}
    (found,) = rows_of(graph, kernels, HARDWARE)
    assert found.count == 2
    assert found.predicted_s == pytest.approx(2 * CPU.streaming_s(HARDWARE, 4 * (2400 + 80), 2400))
