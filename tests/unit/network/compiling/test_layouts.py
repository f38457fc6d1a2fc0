"""Layouts of a graph: what the model predicts decides, and the loops of one order are those of another."""

import numpy as np
import pytest

import anatune
from anatune.core.workload.operators import CONSTRUCTORS
from anatune.core.workload.orders import CHANNELS_FIRST, CHANNELS_LAST, Order
from anatune.network.compiling.layouts import choice as module
from anatune.network.compiling.layouts.choice import choose_layouts, transpose_s
from anatune.network.compiling.layouts.moving import move_loops, swap_rows_and_columns
from anatune.network.compiling.planning import ProductPlanner, plan_products
from anatune.network.graph.nodes import TensorType
from anatune.network.graph.operators import CONVOLUTION, WINDOW
from anatune.network.graph.passes.layouts import LayoutForm, apply_layout
from anatune.network.graph.passes.order import CPU, CPU_KERNELS, run_passes
from anatune.templates.cpu.model.model import CpuModel
from tests.naive_graph import run
from tests.unit.network.graph import graphs as g

BLOCKS = Order(block=16)


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("xeon_gold_6230r").with_threads(1)


def test_channels_last_is_kept_where_nothing_else_is_clearly_faster(hardware):
    graph = run_passes(CPU, g.residual_network())
    choice, found = choose_layouts(graph, ProductPlanner(graph, hardware))
    assert found.layouts == {"NHWC": 6}
    assert found.transposes == 1
    assert found.predicted_s == pytest.approx(found.channels_last_s)
    assert 0.0 <= found.gap < 1e-6
    x = g.array(1, 3, 16, 16)
    np.testing.assert_allclose(run(g.in_orders(graph, choice), x)[0], run(graph, x)[0], rtol=1e-6, atol=1e-6)


def test_what_was_compared_is_not_planned_again(hardware, monkeypatch):
    graph = run_passes(CPU, g.residual_network())
    planner = ProductPlanner(graph, hardware)
    choice, _ = choose_layouts(graph, planner)
    known, calls = dict(planner.planned), []
    kernels = plan_products(g.in_orders(graph, choice), planner, lambda *done: calls.append(done))
    new = set(planner.planned) - set(known)
    assert {workload.operator for workload, _ in new} == {"matmul"}
    assert calls == [(len(known) + 1, len(known) + 1)]
    assert all(one.schedule.workload == one.workload for one in kernels)


def test_a_graph_without_convolutions_has_no_layouts(hardware):
    x = g.source(8, 16)
    graph = run_passes(CPU, g.graph(g.matmul(x, g.constant(16, 8)), inputs=[x]))
    assert choose_layouts(graph, ProductPlanner(graph, hardware)) == ({}, None)


@pytest.mark.parametrize("size", [1, 2])
def test_depthwise_convolutions_alone_cost_nothing_that_is_compared(hardware, size):
    x = g.source(1, 9, size, size)
    graph = run_passes(CPU, g.graph(g.convolution(x, 9, 3, padding=1, groups=9), inputs=[x]))
    _, found = choose_layouts(graph, ProductPlanner(graph, hardware))
    assert found.gap == 0.0


def costing(monkeypatch, factors):
    """Let kernels take the time that `factors` of their forms say, times that with channels last."""
    kernel_s = module._LayoutCosts.kernel_s

    def changed(self, node, form):
        last = kernel_s(self, node, LayoutForm(CHANNELS_LAST, CHANNELS_LAST))
        return last * factors.get(form, 2.0)

    monkeypatch.setattr(module._LayoutCosts, "kernel_s", changed)


def chain():
    x = g.source(1, 32, 28, 28)
    first = g.relu(g.convolution(x, 32, 3, padding=1, seed=1))
    second = g.relu(g.convolution(first, 32, 3, padding=1, seed=2))
    return run_passes(CPU, g.graph(g.mean(second, 2, 3, keepdims=False), inputs=[x]))


def test_blocks_are_chosen_where_they_pay_and_a_transpose_where_it_does(hardware, monkeypatch):
    graph = chain()
    planner = ProductPlanner(graph, hardware)
    last = LayoutForm(CHANNELS_LAST, CHANNELS_LAST)
    costing(monkeypatch, {last: 1.0, LayoutForm(BLOCKS, BLOCKS): 0.1})
    choice, found = choose_layouts(graph, planner)
    assert found.layouts == {"NCHW16c": 2}
    assert found.transposes == 1
    assert [node.op for node in g.in_orders(graph, choice).nodes()].count("permute_dims") == 1
    costing(monkeypatch, {last: 1.0, LayoutForm(CHANNELS_FIRST, CHANNELS_FIRST): 1.5})
    choice, found = choose_layouts(graph, planner)
    assert (found.layouts, found.transposes) == ({"NHWC": 2}, 1)
    costing(monkeypatch, {last: 1.0, LayoutForm(CHANNELS_FIRST, CHANNELS_LAST): 0.7})
    choice, found = choose_layouts(graph, planner)
    assert (found.layouts, found.transposes) == ({"NCHW:NHWC": 1, "NHWC": 1}, 0)


@pytest.mark.parametrize("layout", ["NCHW", "NCHW:NHWC", "NCHW16c", "NHWC:NCHW16c", "NCHW16c:NHWC"])
@pytest.mark.parametrize("taps", [1, 3])
def test_loops_of_one_order_are_loops_of_another(hardware, layout, taps):
    source = anatune.conv2d(1, 64, 14, 14, 64, taps, taps, padding=taps // 2, stride=taps // 2 + 1, layout="NHWC")
    plan = anatune.plan(source, hardware, 1, template="cpu")
    workload = CONSTRUCTORS["conv2d"](**{**source.attribute, "layout": layout})
    moved = move_loops(plan.best, workload, hardware, ("weight",))
    assert moved.workload == workload
    assert moved.unroll == plan.best.unroll
    for axis, factors in plan.best.tiles.items():
        inner = moved.tiles.get(f"{axis}i", (1,) * len(factors))
        assert factors == tuple(np.multiply(moved.tiles[axis], inner)) or np.prod(factors) == np.prod(
            moved.tiles[axis]
        ) * np.prod(inner)
    model = CpuModel(workload, hardware, constants=("weight",))
    times = [model.times(model.space.point_of(one)[None])[0][0] for one in (moved, swap_rows_and_columns(moved))]
    assert min(times) < 1.5 * plan.predictions[0].time_s


def test_turning_takes_bytes_over_bandwidth_unless_nothing_moves(hardware):
    kind = TensorType((1, 64, 56, 56), "float32")
    away, back = (transpose_s(kind, *pair, hardware) for pair in ((CHANNELS_FIRST, CHANNELS_LAST),) * 2)
    assert away == back > 0.0
    whole = 3 * 4 * 64 * 56 * 56
    assert away >= whole / (16.0 * hardware.compute.clock_hz)
    assert transpose_s(TensorType((1, 64, 1, 1), "float32"), CHANNELS_FIRST, BLOCKS, hardware) == 0.0


def test_prepared_graphs_have_channels_last():
    made = g.prepared(g.residual_network())
    assert {node.attributes["layout"] for node in made.nodes() if node.op == CONVOLUTION} == {"NHWC"}


@pytest.mark.parametrize(("group", "is_window"), [(2, True), (4, True), (12, False), (64, False)])
def test_small_groups_are_window_kernels_where_those_are_faster(group, is_window):
    x = g.source(1, 4 * group, 14, 14)
    inner = g.relu(g.convolution(x, 4 * group, 3, stride=2, padding=1, groups=4))
    graph = run_passes(CPU, g.graph(inner, inputs=[x]))
    choice, _ = choose_layouts(graph, ProductPlanner(graph, anatune.hardware("epyc_7763").with_threads(1)))
    assert [form.unit > 0 for node, form in choice.items() if node.op == CONVOLUTION] == [is_window]
    lowered = run_passes(CPU_KERNELS, apply_layout(graph, choice))
    kinds = [node.attributes["kind"] for node in lowered.nodes() if node.op == WINDOW]
    assert kinds == ["grouped"] * is_window
    data = g.array(1, 4 * group, 14, 14)
    np.testing.assert_allclose(run(lowered, data)[0], run(graph, data)[0], rtol=1e-5, atol=1e-5)
