import pytest

import anatune
from anatune.plots.what_if import plot_what_if, what_if


@pytest.fixture(scope="module")
def plan():
    return anatune.plan(anatune.matmul(64, 64, 64), "xeon_gold_6230r", 3, correction="none")


@pytest.fixture(scope="module")
def questions(plan):
    return what_if(plan, (0.5, 2.0))


def test_the_device_as_it_is_stands_among_the_answers(plan, questions):
    assert [one.change.name for one in questions] == [
        "DRAM bandwidth", "vector registers of a core", "L2 of a core", "cores",
    ]  # fmt: skip
    for question in questions:
        assert [answer.factor for answer in question.answers] == [0.5, 1.0, 2.0]
        now = question.answers[question.start]
        assert now.prediction.time_s == plan.predictions[0].time_s == pytest.approx(now.kept_s)


def test_each_answer_is_the_plan_of_the_changed_device(plan, questions):
    for question in questions:
        for answer in question.answers:
            device = question.change.scaled(answer.factor)
            planned = anatune.plan(plan.workload, device, 1, correction="none")
            assert answer.prediction.time_s == planned.predictions[0].time_s
            assert answer.kept_s is None or answer.kept_s >= answer.prediction.time_s * (1 - 1e-12)


def test_what_is_illegal_there_is_told():
    plan = anatune.plan(anatune.matmul(256, 256, 256), "rtx3090", 1, template="cuda", correction="none")
    shared = what_if(plan, (0.03,))[2]
    assert shared.answers[0].kept_s is None or shared.answers[0].prediction is not None


def test_lines_are_relative_to_now(plan, questions):
    figure = plot_what_if(plan, questions)
    assert len(figure.data) == 4
    assert all(trace.y[1] == 1.0 for trace in figure.data)


def test_a_time_limit_ends_it(plan):
    shares = []
    found = what_if(plan, (2.0,), time_limit_s=1e-3, progress=shares.append)
    assert len(found) == 4
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
