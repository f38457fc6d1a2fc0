"""Planning of a graph's products: each different sum once, on all cores, errors and progress come through."""

import pytest

import anatune
from anatune.compiling import planning
from anatune.compiling.planning import SumPlanner, plan_products, without_steps
from anatune.errors import SpaceError
from tests.unit.graph.graphs import prepared, residual_network


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("xeon_gold_6230r").with_threads(1)


def test_cores_together_choose_what_one_chooses(hardware, monkeypatch):
    calls = []
    monkeypatch.setattr(planning, "usable_cores", lambda: 4)
    graph = prepared(residual_network())
    found = plan_products(graph, SumPlanner(graph, hardware), lambda *done: calls.append(done))
    monkeypatch.setattr(planning, "usable_cores", lambda: 1)
    alone = plan_products(graph, SumPlanner(graph, hardware))
    assert [(one.name, one.schedule, one.prediction) for one in found] == [
        (one.name, one.schedule, one.prediction) for one in alone
    ]
    different = len({without_steps(one.workload) for one in found})
    assert calls == [(number, different) for number in range(1, different + 1)]
    for one in found:
        assert one.schedule.workload == one.workload


def test_error_of_a_search_ends_planning(hardware, monkeypatch):
    def refuse(_, wanted):
        raise SpaceError(f"no schedule of {wanted[0].describe()} is legal")

    monkeypatch.setattr(SumPlanner, "first_choice", refuse)
    graph = prepared(residual_network())
    with pytest.raises(SpaceError, match="no schedule of conv2d"):
        plan_products(graph, SumPlanner(graph, hardware))
