"""``anatune plan`` with a range: text, JSON, and one line for what cannot be."""

import json

import pytest

from anatune.model.ranges.plan import RangePlan

WORDS = ("plan", "--hw", "rtx3090", "matmul", "9..24x32x64")


def test_a_range_is_planned_as_json_and_read_back(anatune):
    answer = anatune(*WORDS, "--kernels", "2", "--json")
    plan = RangePlan.from_json(answer.stdout)
    assert len(plan.programs) <= 2
    assert plan.intervals[0].first == 9
    assert plan.intervals[-1].last == 24
    assert json.loads(answer.stdout)["loss"] == plan.loss


def test_a_range_is_planned_as_text(anatune):
    said = anatune(*WORDS, "--loss", "50%").stdout
    assert "matmul i=9..24 j=32 k=64 float32" in said
    assert "proven loss <= " in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("matmul", "24..9x32x64"), "larger than the last"),
        (("matmul", "1..9x1..9x64"), "2 ranges"),
        (("conv2d", "1x8x9x9", "8x8x1..3x3", "--padding", "1"), "ry"),
        (("matmul", "1..9x32x64", "--kernels", "10"), "at most the number of extents"),
        (("matmul", "1..9x32x64", "--loss", "much"), "--loss much"),
        (("matmul", "1..9x32x64", "--loss", "5%", "--kernels", "2"), "leave out --kernels"),
        (("matmul", "1..9x32x64", "--explain"), "--explain"),
        (("matmul", "9x32x64", "--kernels", "2"), "--kernels"),
    ],
)
def test_what_cannot_be_is_one_line(anatune, words, message):
    answer = anatune("plan", "--hw", "rtx3090", *words)
    assert answer.returncode in (1, 2)
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("command", [("tune",), ("prune", "--keep", "5")])
def test_commands_of_one_shape_say_what_to_do_with_a_range(anatune, command):
    answer = anatune(*command, "--hw", "rtx3090", "matmul", "1..9x32x64")
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert line.startswith(f"error: {command[0]} takes one shape, but matmul 1..9x32x64 ")
    assert "`anatune plan --hw rtx3090 matmul 1..9x32x64`" in line
