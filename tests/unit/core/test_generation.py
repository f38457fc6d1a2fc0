"""Dtypes that a GPU has no arithmetic for: a rule of the device, counted for every point, in every call."""

from __future__ import annotations

import pytest

import anatune
from anatune.core.generation import generation_limit
from anatune.errors import BuildError, SpaceError
from anatune.report.explain import explanation, nothing_legal_text
from anatune.templates import make_model
from anatune.templates.cuda.pipelined_space import stage_counts
from tests.wording import refuses

T4, V100, A100, MI50 = (anatune.hardware(name) for name in ("t4", "v100_sxm2", "a100_sxm", "mi50"))
SMALL = anatune.matmul(8, 12, 4, dtype="bfloat16")
LARGE = anatune.matmul(512, 512, 512, dtype="bfloat16")


@pytest.mark.parametrize("template", ["cuda", "pipelined"])
@pytest.mark.parametrize("workload", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("hardware", [T4, V100], ids=["t4", "v100"])
def test_the_whole_space_is_rejected_and_counted(workload, hardware, template):
    plan = anatune.plan(workload, hardware, template=template)
    assert (plan.schedules, plan.num_legal) == ([], 0)
    assert plan.rejected == {**dict.fromkeys(plan.rejected, 0), "compute_capability": plan.space_size}
    text = nothing_legal_text(plan)
    assert f"compute capability that the dtype needs: 8; limit {hardware.compute_capability:g}" in text
    assert "\n" not in text
    rule = next(rule for rule in plan.rules if rule.id == "compute_capability")
    assert (rule.needed, rule.limit) == (8.0, hardware.compute_capability)


def test_predictions_and_verdicts_name_the_rule():
    space = anatune.space(LARGE, T4)
    drawn = anatune.space(LARGE, A100).sample(3, seed=0)
    table = anatune.predict(LARGE, T4, drawn)
    assert set(table["rule"]) == {"compute_capability"}
    assert not table["legal"].any()
    assert space.sample(3, seed=0) == []
    model = make_model(LARGE, T4)
    refused = 1 + [rule.id for rule in model.rules].index("compute_capability")
    assert (model.check(space.sample_points(50, 0, legal=False)) == refused).all()
    subset = anatune.prune(LARGE, T4, keep=4, candidates=drawn)
    assert (subset.num_legal, list(subset)) == (0, [])
    verdict = subset.explain(drawn[0])
    assert (verdict.rule, verdict.needed, verdict.limit) == ("compute_capability", 8.0, 7.5)
    assert "compute_capability: compute capability that the dtype needs: 8, at most 7.5" in verdict.text
    assert list(anatune.prune(LARGE, T4, keep=4)) == []


def test_other_devices_and_dtypes_are_not_touched():
    assert anatune.plan(LARGE, A100, top_k=1, template="cuda").rejected["compute_capability"] == 0
    assert anatune.plan(SMALL, MI50, top_k=1).schedules  # planned, though no code is generated for it
    for dtype in ("float32", "float16", "int8"):
        plan = anatune.plan(anatune.matmul(8, 12, 4, dtype=dtype), T4, top_k=1)
        assert plan.schedules
        assert "compute_capability" not in plan.rejected


def test_results_in_bfloat16_count_too():
    pooling = anatune.max_pool2d(1, 4, 8, 8, 2, 2, dtype="bfloat16")
    assert anatune.plan(pooling, V100).num_legal == 0


def test_what_only_code_generation_cannot_do_is_told_and_planned():
    plan = anatune.plan(anatune.matmul(64, 64, 64), MI50, top_k=1)
    limit = generation_limit(plan.workload, MI50)
    assert limit.startswith("mi50 ")
    assert any(limit in text for text in explanation(plan))
    huge = anatune.elementwise((65536, 65536), op="relu")
    assert "4294967296 elements" in generation_limit(huge, A100)
    plan = anatune.plan(huge, A100, top_k=1)
    assert any(generation_limit(huge, A100) in text for text in explanation(plan))
    with refuses(BuildError):
        plan.best.apply()
    assert generation_limit(anatune.matmul(64, 64, 64), A100) == ""


def test_third_buffers_need_padding_with_zeros_on_either_side():
    pooling = anatune.max_pool2d(1, 2, 8, 8, 3, 3, stride=2, padding="SAME")  # padding behind the data only
    assert min(pooling.reads[0].offsets) == 0
    assert stage_counts(pooling, A100) == (1, 2)
    with refuses(SpaceError):
        anatune.space(pooling, A100, template="pipelined").schedule({}, stages=3)
