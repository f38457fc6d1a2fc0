"""What every template must keep to, and that a new one is a record and its parts: `trial_template` is one."""

import json

import numpy as np
import pytest

import anatune
from anatune import api, templates
from anatune.errors import SpaceError
from anatune.report.plans import plan_lines, template_text
from anatune.search.base import STRATEGIES, make_strategy
from anatune.templates import tuning_template
from anatune.templates.base.model import Model
from tests.contracts.trial_template import JOINED, TRIAL
from tests.wording import refuses

DEVICES = {"gpu": anatune.hardware("a100"), "cpu": anatune.hardware("xeon_gold_6230r")}
WORKLOAD = anatune.matmul(32, 64, 48, dtype="float16")
OWN = {
    "winograd": anatune.conv2d(1, 20, 9, 10, 33, 3, 3, padding=1),
    "thin": anatune.matmul(3, 300, 200),
    "amx": anatune.matmul(35, 64, 96, dtype="bfloat16"),
    "scaled": anatune.scaled_matmul(5, 100, 128, dtype="float32xint4", group=32),
}
"""Workloads of templates that do not take every one."""
OWN_DEVICES = {name: anatune.hardware("xeon_8480") for name in ("fp16_accumulation", "amx")}
"""Devices of templates that do not take every one."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setitem(templates.TEMPLATES, TRIAL.name, TRIAL)


@pytest.fixture(params=[*templates.TEMPLATES, TRIAL.name])
def template(request):
    return templates.get_template(request.param)


def test_a_model_and_its_space_are_of_the_template(template):
    hardware = OWN_DEVICES.get(template.name, DEVICES[template.kind])
    workload = OWN.get(template.name, WORKLOAD)
    made = api.model(workload, hardware, template.name)
    assert isinstance(made, Model)
    assert made.space.template == template.name
    points = made.space.sample_points(20, seed=1)
    assert np.array_equal(made.space.decode(made.space.encode(points)), points)
    assert not made.check(points).any()
    for point in points:
        schedule = made.space.schedule_of(point)
        assert schedule.check().template == template.name
        assert np.array_equal(made.space.point_of(schedule), point)
        assert anatune.Schedule.from_json(schedule.to_json()) == schedule
        levels = template.levels(workload)
        assert {axis: len(factors) for axis, factors in schedule.tiles.items()} == {
            a: len(n) for a, n in levels.items()
        }
        hash(template.program_key(schedule))


def test_the_default_comes_first_and_tuning_takes_a_wider_one_where_it_applies():
    assert templates.template_of(None, DEVICES["gpu"]) is templates.CUDA
    assert templates.template_of(None, DEVICES["cpu"]) is templates.CPU
    assert tuning_template(WORKLOAD, DEVICES["gpu"]) is templates.PIPELINED
    assert tuning_template(anatune.elementwise((64,)), DEVICES["gpu"]) is templates.CUDA
    assert tuning_template(WORKLOAD, DEVICES["cpu"]) is templates.CPU


def test_one_that_joins_answers_alone_where_the_default_does_not_take_the_workload(monkeypatch):
    cpu, other = DEVICES["cpu"], anatune.matmul(16, 32, 24, dtype="float8_e4m3fn")
    assert templates.joined_templates(other, cpu, "standard") == (templates.CPU,)
    with refuses(SpaceError):
        anatune.plan(other, cpu)
    monkeypatch.setitem(templates.TEMPLATES, JOINED.name, JOINED)
    assert templates.joined_templates(other, cpu, "standard") == (JOINED,)
    assert templates.joined_templates(anatune.matmul(16, 32, 24), cpu, "standard") == (templates.CPU, JOINED)
    assert tuning_template(other, cpu) is JOINED
    plan = anatune.plan(other, cpu, 2)
    assert plan.templates == ("joined",)
    assert plan.best.template == api.space(other, cpu).template == api.model(other, cpu).space.template == "joined"
    assert "float8_e4m3fn" in "\n".join(line.text for line in plan_lines(plan))
    assert template_text(other, cpu, "joined").startswith("template: joined (the default)")


def test_a_new_template_is_planned_predicted_and_pruned():
    workload, hardware = anatune.matmul(16, 32, 24), DEVICES["cpu"]
    plan = anatune.plan(workload, hardware, 3, template="trial")
    assert plan.best.template == "trial"
    assert plan.guarantee.kind == "exhaustive"
    assert plan.rejected["inner_points"] > 0
    table = anatune.predict(workload, hardware, plan.schedules)
    assert table["time_s"].tolist() == [one.time_s for one in plan.predictions]
    assert anatune.prune(workload, hardware, keep=5, template="trial").num_kept == 5
    assert json.loads(plan.to_json())["schedules"][0]["tiles"]["i"] == list(plan.best.tiles["i"])
    assert "axis  outer  inner" in "\n".join(line.text for line in plan_lines(plan))


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_strategies_walk_a_new_template(strategy):
    model = api.model(anatune.matmul(16, 32, 24), DEVICES["cpu"], "trial")
    asked = make_strategy(strategy, model, seed=1).ask(6)
    assert asked
    assert all(one.template == "trial" for one in asked)
    assert len({schedule.key for schedule in asked}) == len(asked)


def test_the_schedules_of_a_new_template_are_checked():
    space = anatune.space(anatune.matmul(16, 32, 24), DEVICES["cpu"], template="trial")
    with refuses(anatune.AnatuneError):
        space.schedule({"i": (3, 3)})
