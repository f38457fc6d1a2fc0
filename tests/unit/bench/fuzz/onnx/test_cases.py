"""The oracle takes an engine that computes each operator in its dtypes, and catches faults that are planted in one."""

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from anatune.errors import WorkloadError
from bench.fuzz.onnx import cases
from bench.fuzz.onnx.oracle import evaluated, is_strange
from bench.fuzz.program import Program, Step
from bench.fuzz.worker import outcome_of

pytestmark = pytest.mark.filterwarnings("ignore")
NUMBERS = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
EDGES = np.array([[0, -0.0, 1e-6, -1e-6, 3.0, -3.0]] * 4, "float32")


def engine(program, faults=None):
    """Return what runs a program operator by operator, each as the standard's evaluator computes it in its dtypes."""

    def run(feeds):
        if any(is_strange(step) for step in program.steps):
            raise WorkloadError("an operator of a domain that is not known")
        values = {**program.weights, **feeds, "": None}
        with np.errstate(all="ignore"):
            for step in program.steps:
                operands = [values[name] for name in step.inputs]
                try:
                    results = evaluated(step, program.settings["opset"])(operands)
                except (
                    ArithmeticError,
                    RuntimeError,
                    TypeError,
                    ValueError,
                ):  # of places that are NaN, and of what is behind them
                    results = [None] * len(step.outputs)
                if faults and step.op in faults:
                    results = [faults[step.op](*operands)]
                values.update(zip(step.outputs, results, strict=False))
        return [values[name] for name in program.outputs]

    return run


def program_of(*steps, weights=None):
    names = {name for step in steps for name in step.inputs}
    inputs = {name: (NUMBERS, EDGES) for name in names if name.startswith("x")}
    settings = {"opset": 21, "threads": 1, "varies": False, "route": "session"}
    return Program("onnx", 0, steps, inputs, weights or {}, (steps[-1].outputs[0],), settings)


def step(op, *inputs, **attributes):
    return Step(op, inputs, ("y",), attributes)


def judged(monkeypatch, program, faults=None):
    monkeypatch.setattr(cases, "_caller", lambda one: engine(one, faults))
    return outcome_of(program)


@pytest.mark.parametrize("part", range(4))
def test_no_false_alarm(monkeypatch, part):
    """What each operator computes in its own dtype is right, edge inputs included."""
    for seed in range(10 * part, 10 * part + 10):
        program = cases.make(seed)
        outcome = judged(monkeypatch, program)
        assert outcome.state in ("right", "skipped", "refused"), (seed, outcome.why)


SMALL = {"c": np.array(1e-6, "float32"), "i": np.array([0, 5, 2]), "w": np.ones((6, 3), "float32")}
PLANTED = {
    "a constant of 1e-6 is dropped": (step("Add", "x1", "c"), lambda x, c: x),
    "a bound of 1e-6 is taken for 0": (step("Max", "x1", "c"), lambda x, c: np.maximum(x, 0)),
    "an index is one off": (step("Gather", "x1", "i", axis=1), lambda x, i: x[:, [0, 4, 2]]),
    "e^x - 1 loses small numbers": (step("Elu", "x1"), lambda x: np.where(x > 0, x, np.exp(x) - np.float32(1))),
    "a largest element's place is none": (step("ArgMax", "x1", axis=1, keepdims=0), lambda x: np.argmax(x, 1) - 1),
    "another dtype": (step("Add", "x1", "c"), lambda x, c: (x + c).astype("float16")),
    "one element of a product": (step("MatMul", "x1", "w"), lambda x, w: x @ w + np.eye(4, 3, dtype="float32") * 1e-3),
    "a sign of zero": (step("Neg", "x1"), lambda x: 0 - x),
    "NaN for infinity": (step("Reciprocal", "x1"), lambda x: np.where(x == 0, np.nan, 1 / x).astype("float32")),
    "rounded half up": (step("Round", "x2"), lambda x: np.floor(x + np.float32(0.5))),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_caught(monkeypatch, name):
    node, replacement = PLANTED[name]
    program = program_of(node, weights={key: SMALL[key] for key in node.inputs if key in SMALL})
    if name == "rounded half up":
        program = Program(**{**program.__dict__, "inputs": {"x2": (np.array([0.5, 1.5, 2.5], "float32"),)}})
    assert judged(monkeypatch, program).state == "right"
    outcome = judged(monkeypatch, program, {node.op: replacement})
    assert outcome.state == "wrong", name
    assert outcome.program.num_runs == 1


def test_a_case_is_its_seed():
    first, second = cases.make(12), cases.make(12)
    assert [one.op for one in first.steps] == [one.op for one in second.steps]
    assert cases.model_of(first).SerializeToString() == cases.model_of(second).SerializeToString()
    for name, arrays in first.inputs.items():
        for one, other in zip(arrays, second.inputs[name], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("seed", [1, 5, 12])
def test_the_text_is_a_program_of_the_same_model(seed):
    program = cases.make(seed)
    text = cases.text(program)
    head = (
        text.split("print('anatune'")[0]
        .replace("import anatune; onnx.save(m, 'fuzz.onnx')", "")
        .split("c = anatune")[0]
    )
    names = {}
    exec(compile(head, "case", "exec"), names)
    assert [node.op_type for node in names["m"].graph.node] == [one.op for one in program.steps]
    for name, arrays in program.inputs.items():
        np.testing.assert_array_equal(names["inputs"][name], arrays[0])
        assert names["inputs"][name].dtype == arrays[0].dtype
