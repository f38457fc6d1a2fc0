"""Branches and loops, and what stays outside."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Graph
from anatune.network.graph.onnx.call import UnknownValueError
from anatune.network.graph.onnx.operators import control
from tests.unit.network.graph.onnx.one_node import BOOL, FLOAT, INT64, body_of, check, found, model_of, read
from tests.wording import refuses

X = np.arange(6, dtype=np.float32).reshape(3, 2)
node = helper.make_node


def branch(value):
    return body_of([node("Constant", [], ["value"], value_floats=value)], {}, ["value"])


def loop_body(goes_on="goes_on"):
    """Return a body that adds its step to a sum and yields that."""
    steps = [
        node("Cast", ["step"], ["number"], to=FLOAT),
        node("Add", ["sum", "number"], ["total"]),
        node("Identity", ["total"], ["row"]),
        node("Constant", [], ["limit"], value_float=3.0),
        node("Less", ["total", "limit"], ["is_less"]),
        node("Identity", ["goes_on"], ["same"]),
    ]
    inputs = {"step": (INT64, ()), "goes_on": (BOOL, ()), "sum": (FLOAT, ())}
    return body_of(steps, inputs, [{"goes_on": "same"}.get(goes_on, goes_on), "total", "row"])


def scan_body():
    """Return a body that adds up rows and yields twice the sum."""
    steps = [node("Add", ["sum", "row"], ["total"]), node("Add", ["total", "total"], ["twice"])]
    return body_of(steps, {"sum": (FLOAT, (2,)), "row": (FLOAT, (2,))}, ["total", "twice"])


def test_a_known_condition_takes_a_branch():
    for condition in (True, False):
        branches = {"then_branch": branch([1.0]), "else_branch": branch([2.0, 3.0])}
        check("If", np.array(condition), **branches)


def test_an_unknown_condition_chooses_of_equal_types():
    attributes = {"unknown": (0,), "then_branch": branch([1.0])}
    (output,) = read(model_of("If", np.array(True), else_branch=branch([2.0]), **attributes)).outputs
    assert output.op == "where"
    with refuses(UnknownValueError):
        read(model_of("If", np.array(True), else_branch=branch([2.0, 3.0]), **attributes))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_known_count_is_written_out(count):
    rows = np.cumsum(np.arange(count)).astype(np.float32)
    total, yielded = found("Loop", np.array(count), np.array(True), np.float32(0), body=loop_body(), outputs=2)
    assert total == sum(range(count))
    np.testing.assert_array_equal(yielded, rows)


def test_a_loop_ends_by_its_condition():
    for count in (None, np.array(100)):
        attributes = {"body": loop_body("is_less"), "outputs": 2}
        check(
            "Loop",
            count,
            np.array(True),
            np.float32(0),
            want=[np.float32(3), np.array([0, 1, 3], np.float32)],
            **attributes,
        )
    check("Loop", None, np.array(False), np.float32(7), want=[np.float32(7), np.zeros(0, np.float32)], **attributes)


def test_loops_that_do_not_end_are_refused(monkeypatch):
    monkeypatch.setattr(control, "_MOST_STEPS", 16)
    with refuses(WorkloadError):
        read(model_of("Loop", None, np.array(True), np.float32(0), body=loop_body(), outputs=2))


def test_a_condition_of_unknown_values_names_them():
    attributes = {"unknown": (2,), "body": loop_body("is_less"), "outputs": 2}
    with refuses(UnknownValueError) as error:
        read(model_of("Loop", None, np.array(True), np.float32(0), **attributes))
    assert error.value.inputs == ("x2",)


def test_weights_of_a_body_are_there_once():
    body = loop_body()
    body.initializer.append(numpy_helper.from_array(X, "weight"))
    body.output[2].name = "scaled"
    body.node.append(node("Mul", ["row", "weight"], ["scaled"]))
    (_, output) = read(model_of("Loop", np.array(5), None, np.float32(0), unknown=(2,), body=body, outputs=2)).outputs
    constants = [one for one in Graph((), (output,), is_tuple=False).constants() if one.array.shape == X.shape]
    assert len(constants) == 1


def test_a_scan_is_written_out():
    check("Scan", np.zeros(2, np.float32), X, body=scan_body(), num_scan_inputs=1, outputs=2)


def test_a_scan_along_other_axes_backwards():
    attributes = {
        "scan_input_axes": [1],
        "scan_input_directions": [1],
        "scan_output_axes": [-1],
        "scan_output_directions": [1],
    }
    sums = np.cumsum(X[::-1], axis=0)
    want = [sums[-1], 2 * sums[::-1].T]
    check("Scan", np.zeros(2, np.float32), X.T, body=scan_body(), num_scan_inputs=1, outputs=2, want=want, **attributes)


def test_version_8_has_batches_and_lengths():
    rows = np.stack([X, X + 1])
    first, second = np.cumsum(X, 0), np.cumsum((X + 1)[:2], 0)
    want = [np.stack([first[-1], second[-1]]), 2 * np.stack([first, np.concatenate([second, np.zeros((1, 2))])])]
    want = [one.astype(np.float32) for one in want]
    attributes = {"body": scan_body(), "num_scan_inputs": 1, "outputs": 2, "opset": 8}
    check("Scan", np.array([3, 2]), np.zeros((2, 2), np.float32), rows, want=want, **attributes)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("SequenceConstruct", {}),
        ("StringNormalizer", {}),
        ("RandomNormalLike", {}),
        ("Bernoulli", {}),
        ("ImageDecoder", {}),
        ("Scaler", {"domain": "ai.onnx.ml", "opset": 1}),
    ],
)
def test_what_stays_outside_is_refused_in_one_line(op, attributes):
    with refuses(WorkloadError) as error:
        read(model_of(op, X, **attributes))
    assert "\n" not in str(error.value)


def test_an_optional_value_that_is_there_is_a_tensor():
    check("OptionalGetElement", X, want=[X])
    check("OptionalHasElement", X, want=[np.array(True)])
    check("OptionalHasElement", want=[np.array(False)])
