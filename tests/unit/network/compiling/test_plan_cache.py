"""Plans of earlier models: found again by what they depend on, and by nothing else."""

import pytest

import anatune
from anatune.core.workload.operators import matmul
from anatune.network.compiling import plan_cache
from anatune.network.compiling.plan_cache import PlanCache
from anatune.network.compiling.planning import ProductPlanner, plan_products
from tests.unit.network.graph.graphs import prepared, residual_network


@pytest.fixture(scope="module")
def hardware():
    return anatune.hardware("xeon_gold_6230r").with_threads(1)


WORKLOAD = matmul(16, 32, 24)


def test_found_again_and_the_same(tmp_path, hardware):
    planned = anatune.plan(WORKLOAD, hardware, 2).schedules
    for _ in range(2):
        cache = PlanCache(hardware, "standard", tmp_path)
        assert cache.schedules(WORKLOAD, ("w",), "cpu", lambda: list(planned)) == list(planned)
    assert len([*tmp_path.rglob("*.json")]) == 1

    def never():
        raise AssertionError("planned again")

    found = PlanCache(hardware, "standard", tmp_path).schedules(WORKLOAD, ("w",), "cpu", never)
    assert [one.key for one in found] == [one.key for one in planned]


def test_whatever_the_answer_depends_on_is_asked(tmp_path, hardware, monkeypatch):
    asked = []

    def search():
        asked.append(None)
        return []

    def look(spec=hardware, accuracy="standard", workload=WORKLOAD, known=("w",), template="cpu"):
        PlanCache(spec, accuracy, tmp_path).schedules(workload, known, template, search)

    look()
    look(accuracy="relaxed")
    look(workload=matmul(16, 32, 23))
    look(known=())
    look(template="winograd")
    look(spec=anatune.hardware("xeon_gold_6230r").with_threads(2))
    monkeypatch.setattr(plan_cache, "sources_of", lambda *folders: "other sources")
    look()
    monkeypatch.setattr(plan_cache, "digest_of_cards", lambda: "other corrections")
    look()
    assert len(asked) == 8
    look()
    assert len(asked) == 8


def test_damaged_entries_are_planned_again(tmp_path, hardware):
    cache = PlanCache(hardware, "standard", tmp_path)
    cache.schedules(WORKLOAD, (), "cpu", list)
    (entry,) = tmp_path.rglob("*.json")
    cache.schedules(WORKLOAD, ("w",), "cpu", list)
    (foreign,) = set(tmp_path.rglob("*.json")) - {entry}
    for content in (b"", b"damaged", entry.read_bytes()[:32] + b"[]x", foreign.read_bytes()):
        entry.write_bytes(content)
        asked = []
        cache.schedules(WORKLOAD, (), "cpu", lambda asked=asked: asked.append(None) or [])
        assert asked


def test_a_second_model_is_planned_as_the_first(tmp_path, hardware):
    graph = prepared(residual_network())
    plans = [
        plan_products(graph, ProductPlanner(graph, hardware, cache=kept))
        for kept in (None, *(PlanCache(hardware, "standard", tmp_path) for _ in range(2)))
    ]
    schedules = [[(one.name, one.schedule, one.prediction) for one in plan] for plan in plans]
    assert schedules[0] == schedules[1] == schedules[2]
