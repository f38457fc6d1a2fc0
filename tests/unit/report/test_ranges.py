"""Plans for a range as text: whose template each kernel is of, and what is proven against which schedules."""

import pytest

import anatune
from anatune.core.workload.ranges import parse_ranged_workload
from anatune.report.ranges import range_lines


def said(plan):
    return " ".join(" ".join(line.text for line in range_lines(plan, width=200)).split())


def test_all_templates_together_are_proven_against():
    plan = anatune.plan_range("matmul 32,64x64x64", "rtx4090", kernels=2)
    assert (plan.templates, plan.left_out) == (("cuda",), ())
    assert "proven loss <= " in said(plan)
    assert "cuda, i " in said(plan)


@pytest.mark.parametrize(
    ("words", "dtype", "template", "left_out"),
    [
        ("matmul 32,64x64x64", "float16", "cuda", ("triton",)),
        ("matmul 8x64x32,64", "float16", None, ("triton",)),
        ("matmul 1,17x512x512", "float32", None, ("thin",)),
    ],
)
def test_nothing_is_proven_where_a_template_is_left_out(words, dtype, template, left_out):
    plan = anatune.plan_range(
        parse_ranged_workload(words.split(), dtype=dtype), "rtx4090", kernels=1, template=template
    )
    assert plan.left_out == left_out
    assert anatune.RangePlan.from_json(plan.to_json()) == plan
    text = said(plan)
    assert "proven" not in text
    assert left_out[0] in text
    assert "among schedules of cuda" in text


def test_kernels_of_several_templates_are_named():
    plan = anatune.plan_range(parse_ranged_workload(["matmul", "32,64x64x64"], dtype="float16"), "rtx4090", kernels=2)
    assert plan.templates == ("cuda", "triton")
    for program in plan.programs:
        assert f" {program.schedule.template}, " in said(plan)
        assert f'"template":"{program.schedule.template}"' in plan.to_json()
