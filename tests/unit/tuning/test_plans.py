"""What is asked of a plan beside the model, checked when it is asked."""

from __future__ import annotations

import pytest

import anatune
from anatune.errors import RecordError, SpaceError
from anatune.model.rank import Constraints
from anatune.tuning.plans import Evidence, plan_with_evidence
from tests.wording import refuses

WORKLOAD, H100 = anatune.matmul(256, 256, 128), anatune.hardware("h100")


@pytest.mark.parametrize("wrong", [{"compile": -1}, {"compile": 1001}, {"compile": True}, {"compile_progress": 3}])
def test_evidence_refuses_what_is_wrong(wrong):
    with refuses(SpaceError):
        Evidence(**wrong)


def test_a_plan_without_evidence_is_the_ranking():
    plain = anatune.plan(WORKLOAD, H100, 3)
    assert plan_with_evidence(WORKLOAD, H100, 3, Constraints(), Evidence()) == plain


def test_records_that_are_not_there_are_told_before_anything_is_ranked(tmp_path):
    called, evidence = [], Evidence(records=tmp_path / "none.sqlite")
    with refuses(RecordError):
        plan_with_evidence(WORKLOAD, H100, 3, Constraints(), evidence, progress=called.append)
    assert not called
