"""Planning of a graph's products: each different sum once, on all cores, errors and progress come through."""

import pytest

import anatune
from anatune.errors import SpaceError
from anatune.network.compiling import planning
from anatune.network.compiling.planning import ProductPlanner, plan_products, strip_epilogue
from anatune.network.graph.nodes import Graph
from tests.unit.network.graph.graphs import prepared, residual_network
from tests.wording import refuses


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("xeon_gold_6230r").with_threads(1)


def test_cores_together_choose_what_one_chooses(hardware, monkeypatch):
    calls = []
    monkeypatch.setattr(planning, "usable_cores", lambda: 4)
    graph = prepared(residual_network())
    found = plan_products(graph, ProductPlanner(graph, hardware), lambda *done: calls.append(done))
    monkeypatch.setattr(planning, "usable_cores", lambda: 1)
    alone = plan_products(graph, ProductPlanner(graph, hardware))
    assert [(one.name, one.schedule, one.prediction) for one in found] == [
        (one.name, one.schedule, one.prediction) for one in alone
    ]
    different = len({strip_epilogue(one.workload) for one in found})
    assert calls == [(number, different) for number in range(1, different + 1)]
    for one in found:
        assert one.schedule.workload == one.workload


def test_error_of_a_search_ends_planning(hardware, monkeypatch):
    def refuse(_, wanted):
        raise SpaceError(f"no schedule of {wanted[0].describe()} is legal")

    monkeypatch.setattr(ProductPlanner, "first_choice", refuse)
    monkeypatch.setattr(planning, "usable_cores", lambda: 1)  # of several searches at once, any may fail first
    graph = prepared(residual_network())
    with refuses(SpaceError):
        plan_products(graph, ProductPlanner(graph, hardware))


def test_weights_of_few_bits_serve_steps_and_prompts():
    """Of one packed form: prompts unpack them to float32 where that is faster, and vectors are those of both."""
    zen3 = anatune.hardware("epyc_7763").with_threads(1)
    planner = ProductPlanner(Graph((), (), is_tuple=True), zen3)
    few = anatune.scaled_matmul(11, 8192, 2048, dtype="float32xint4", group=32)
    prompts, steps = (planner.ranged_choice(few, ("weight", "scales"), "i", most) for most in (128, 8))
    assert (prompts.options["floats"], prompts.tiles["j"][1]) == (True, 2)
    assert "floats" not in steps.options
