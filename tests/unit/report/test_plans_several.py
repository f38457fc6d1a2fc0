"""Plans of several templates as text: whose schedules, what to expect of their arithmetic, whose rules."""

import dataclasses
import re

import pytest

import anatune
from anatune import templates
from anatune.report.explain import explanation, nothing_legal_text
from anatune.report.plans import plan_lines, rejected_lines
from tests.contracts.trial_template import JOINED

HARDWARE = anatune.hardware("xeon_gold_6230r").with_threads(1)
MATMUL = anatune.matmul(16, 32, 24)


@pytest.fixture
def plan(monkeypatch):
    monkeypatch.setitem(templates.TEMPLATES, JOINED.name, JOINED)
    return anatune.plan(MATMUL, HARDWARE, 200, accuracy="relaxed")


def text_of(plan):
    return " ".join(" ".join(line.text.split()) for line in plan_lines(plan, width=200))


def test_a_table_says_whose_schedules_there_are(plan):
    text = text_of(plan)
    assert "templates: cpu, joined, ranked together, accuracy relaxed; --template NAME ranks one" in text
    assert "allows more" not in text
    assert "joined, error " in text
    assert "cpu, i " in text
    assert "error: expected error relative to a typical result" in text
    assert "axis outer inner" in text
    alone = text_of(anatune.plan(MATMUL, HARDWARE, 3, template="cpu"))
    assert "error" not in alone
    assert "template: cpu" in alone
    standard = text_of(anatune.plan(MATMUL, HARDWARE, 3))
    assert "accuracy standard; --template NAME ranks one, --accuracy relaxed allows more kernels" in standard


def test_an_explanation_compares_templates_and_counts_each_ones_rules(plan):
    said = "\n".join(explanation(plan))
    other = "joined" if plan.template == "cpu" else "cpu"
    assert f"The best schedule of the template {other} would take" in said
    assert "No schedule that multiplies every pair can" in said
    assert "Rule inner_points of joined" in said or "inner_points" in said
    assert any(" of cpu " in line for line in rejected_lines(plan))
    first = next(at for at, one in enumerate(plan.schedules) if one.template == "joined")
    moved = dataclasses.replace(plan, schedules=plan.schedules[first:], predictions=plan.predictions[first:])
    said = "\n".join(explanation(dataclasses.replace(moved, template="joined")))
    assert "Its kernel does not compute plain sums of products: expect errors of about" in said
    assert "--template cpu computes plain sums" in said


def test_nothing_legal_counts_the_rules_of_all(plan):
    empty = dataclasses.replace(plan, schedules=[], predictions=[], num_legal=0)
    said = nothing_legal_text(empty)
    assert " of cpu " in said


def test_the_first_schedule_of_each_template_is_a_table(plan):
    lines = [line.text for line in plan_lines(plan)]
    assert len({schedule.template for schedule in plan.schedules}) == 2
    assert sum(bool(re.match(r"\d+ +axis ", line)) for line in lines) == 2
