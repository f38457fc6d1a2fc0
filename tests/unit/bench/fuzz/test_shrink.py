"""Failures are shrunk to the steps that fail, and those of one sort have one signature."""

import itertools

import numpy as np

from bench.fuzz.program import Outcome, Program, Step
from bench.fuzz.shrink import pattern, shrunk, signature

NUMBERS = (np.linspace(-2, 2, 12, dtype="float32").reshape(3, 4),) * 3


def chain(*operators):
    steps = tuple(
        Step(op, (f"v{place}",), (f"v{place + 1}",), {"alpha": 0.1}) for place, op in enumerate(operators, start=1)
    )
    outputs = tuple(f"v{place + 2}" for place in range(len(operators)))
    return Program("onnx", 0, steps, {"v1": NUMBERS}, {}, outputs, {"threads": 2, "opset": 21})


def recorded(program):
    return {name: NUMBERS[: program.num_runs] for step in program.steps for name in step.outputs}


def test_one_operator_that_fails_is_found():
    def judge(program):
        fails = any(step.op == "Tanh" for step in program.steps)
        return Outcome("wrong" if fails else "right", "v3 is 1, expected 2", (), program)

    first = judge(chain("Relu", "Exp", "Tanh", "Neg", "Abs"))
    found = shrunk(first, judge, recorded)
    (step,) = found.program.steps
    assert (step.op, dict(step.attributes), found.program.num_runs, found.program.settings["threads"]) == (
        "Tanh",
        {},
        1,
        1,
    )
    assert signature(found) == "wrong: Tanh: "


def test_operators_that_fail_together_stay_together():
    def judge(program):
        operators = [step.op for step in program.steps]
        fails = ("Exp", "Tanh") in itertools.pairwise(operators)
        return Outcome("crash" if fails else "right", "SIGSEGV", (), program)

    found = shrunk(judge(chain("Relu", "Exp", "Tanh", "Neg")), judge, recorded)
    assert [step.op for step in found.program.steps] == ["Exp", "Tanh"]


def test_another_failure_is_not_taken_for_it():
    def judge(program):
        whole = len(program.steps) > 2
        return Outcome("raw", "KeyError: 'v1'" if whole else "ValueError: too few", (), program)

    found = shrunk(judge(chain("Relu", "Exp", "Tanh")), judge, recorded)
    assert len(found.program.steps) == 3


def test_numbers_and_names_of_a_message_do_not_count():
    assert pattern("v12 is 3.5e-7, expected 4 of 'abc'") == pattern("v7 is -1, expected 99 of 'x'")
