"""Rankings: the same answer as `anatune.plan` without compilers and records, and constraints that check themselves."""

from __future__ import annotations

import pytest

import anatune
from anatune.errors import SpaceError
from anatune.model.joint import find_corrections
from anatune.model.learned.corrections import NONE
from anatune.model.rank import Constraints, rank, rank_templates
from tests.wording import refuses

WORKLOAD, H100 = anatune.matmul(256, 256, 128, dtype="float16"), anatune.hardware("h100")


@pytest.mark.parametrize("asked", [{}, {"template": "triton"}, {"distinct": True}])
def test_a_ranking_is_the_plan_that_nothing_is_added_to(asked):
    plan = anatune.plan(WORKLOAD, H100, 5, correction=NONE, **asked)
    assert rank(WORKLOAD, H100, 5, Constraints(**asked), NONE) == plan
    assert plan.compilation is None
    assert plan.measured is None


def test_models_come_with_the_order_that_they_made():
    names = ("triton", "cuda")
    plan, models = rank_templates(WORKLOAD, H100, names, 3, Constraints(), find_corrections(H100, names, NONE))
    assert plan.templates == names
    assert set(models) == set(names)
    model = models[plan.template]
    assert model.predictions(model.space.point_of(plan.best)[None, :])[0] == plan.predictions[0]


@pytest.mark.parametrize(
    "wrong", [{"accuracy": "exact"}, {"time_limit_s": 0}, {"time_limit_s": True}, {"distinct": "yes"}]
)
@pytest.mark.parametrize("call", ["plan", "prune"])
def test_constraints_refuse_what_is_wrong_and_name_the_call(call, wrong):
    with refuses(SpaceError):
        Constraints(**wrong, call=call)


def test_constraints_do_not_change():
    constraints = Constraints()
    assert constraints.allowed_accuracy == "standard"
    with pytest.raises(AttributeError):
        constraints.distinct = True
