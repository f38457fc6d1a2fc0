"""What compiling a model costs, told before: of a machine that is known and one that is not; what models leave."""

import pytest

from anatune.network.compiling.costs import STAGES, ModelCost, ModelCosts, estimate_model
from anatune.network.compiling.request import CompileRequest, Listeners, MeasuringOptions
from anatune.report.tuning import model_cost_text
from tests.unit.network.graph import graphs as g
from tests.unit.tuning.fakes import HOST
from tests.wording import check_texts

COST = ModelCost(
    products=20, trials=0, plan_s=4.0, build_s=8.0, check_s=2.0, tune_s=0.0, builds=1, total_s=14.0, estimated_s=14.0
)


def estimate(products=20, trials=0, *, is_checked=True, earlier=(), compile_s=0.0, **asked):
    request = CompileRequest(measuring=MeasuringOptions(trials=trials, **asked))
    return estimate_model(products, HOST, 1, request, is_checked=is_checked, earlier=earlier, compile_s=compile_s)


def test_parts_grow_with_the_model():
    known = estimate(46, earlier=[COST] * 3)  # (46 + 6) / (20 + 6): a part of each time is the same for any model
    assert (known.plan_s, known.build_s, known.check_s, known.tune_s) == pytest.approx((8.0, 16.0, 4.0, 0.0))
    assert (known.seconds, known.basis) == (pytest.approx(28.0), "machine")
    assert known.high_s / known.seconds == pytest.approx(1.15)
    first = estimate(40)
    assert (first.basis, first.high_s / first.seconds) == ("first", 2.5)
    assert estimate(46, is_checked=False, earlier=[COST]).seconds == pytest.approx(24.0)
    assert estimate(46, earlier=[COST], compile_s=27.0).seconds == pytest.approx(28.0 + 27.0)


def test_measured_kernels_take_their_trials_and_a_second_build():
    measured = ModelCost(20, 100, 4.0, 16.0, 2.0, 60.0, 2, 82.0, 82.0)
    found = estimate(20, 400, earlier=[COST, measured])
    assert found.build_s == 16.0  # two libraries of 8 s
    assert found.tune_s == pytest.approx(400 * 0.6 + 5.0)
    assert estimate(20, 400, earlier=[measured], time_limit_s=30.0).tune_s == pytest.approx(35.0)
    assert estimate(20, 400).tune_s > 400 * 0.1
    there = estimate(20, 400, tracker="lab:9190", key="board")
    assert (there.seconds, there.basis) == (None, "elsewhere")


def test_models_that_are_quantised_are_planned_and_built_thrice():
    known = estimate_model(46, HOST, 1, CompileRequest(), is_checked=False, earlier=[COST] * 3, calibrates=True)
    assert (known.calibrate_s, known.seconds) == (pytest.approx(48.0), pytest.approx(72.0))
    assert ": calibrate 48 s, plan 8 s, build 16 s" in model_cost_text(known)


def test_each_part_is_told_as_it_begins():
    stages = []
    costs = ModelCosts(HOST, 1, CompileRequest(listeners=Listeners(on_stage=stages.append)), is_checked=False)
    for name in STAGES:
        with costs.time_stage(name):
            assert stages[-1] == STAGES[name]


def test_in_words():
    assert model_cost_text(estimate(46, earlier=[COST] * 3)) == (
        "about 28 s for 46 products (24 to 32): plan 8 s, build 16 s, check 4 s"
    )
    assert "): compile the analytical model, once 27 s, plan" in model_cost_text(estimate(46, compile_s=27.0))
    text = model_cost_text(estimate(1, 400, stop_at=0.95, time_limit_s=60.0))
    assert "for 1 product and at most 400 trials (" in text
    assert estimate(1, 400, stop_at=0.95).may_end_early
    check_texts([text])
    assert "other machines" in model_cost_text(estimate(20, 400, tracker="lab:9190", key="board"))


@pytest.mark.parametrize("first_s", [0.0, 20.0], ids=["compiled before", "compiled now"])
def test_models_learn_from_models_but_not_of_what_happens_once(tmp_path, monkeypatch, first_s):
    compiled = {"cpu": first_s}
    monkeypatch.setattr("anatune.network.compiling.costs.first_compilation_s", lambda room: compiled.pop(room, 0.0))
    now, told = [0.0], []
    x = g.source(16, 32)
    graph = g.graph(g.matmul(g.matmul(x, g.constant(32, 32)), g.constant(32, 32, seed=1)), inputs=[x])
    request = CompileRequest(threads=1, listeners=Listeners(on_estimate=told.append))
    for _ in range(2):
        costs = ModelCosts(HOST, 1, request, is_checked=True, folder=tmp_path, clock=lambda: now[0])
        assert costs.announce(graph) is told[-1]
        for part, seconds in (("plan", 1.0), ("build", 6.0), ("check", 2.0)):
            with costs.time_stage(part):
                now[0] += seconds
        costs.store(0)
    first, second = told
    assert (first.products, first.basis, first.compile_s) == (2, "first", first_s)
    assert first.seconds == pytest.approx(first.plan_s + first.build_s + first.check_s + first_s)
    if first_s:  # what that run took for its plan says nothing of later ones
        assert (second.basis, second.seconds) == ("first", pytest.approx(first.seconds - first_s))
    else:
        assert (second.plan_s, second.build_s, second.check_s, second.seconds) == pytest.approx((1.0, 6.0, 2.0, 9.0))


def test_models_without_products_neither_fail_nor_count(tmp_path):
    now, told = [0.0], []
    x = g.source(16, 32)
    empty, request = g.graph(x, inputs=[x]), CompileRequest(threads=1, listeners=Listeners(on_estimate=told.append))
    for _ in range(5):
        costs = ModelCosts(HOST, 1, request, is_checked=True, folder=tmp_path, clock=lambda: now[0])
        costs.announce(empty)
        with costs.time_stage("build"):
            now[0] += 1.0
        costs.store(0)
    assert {(one.products, one.basis) for one in told} == {(0, "first")}
    assert all(one.seconds > 0 for one in told)
