"""Operators that take elements from places, or put them there."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import Constant, Input, Node
from anatune.network.graph.onnx.call import UnknownValueError
from tests.unit.network.graph.onnx.one_node import check, model_of, read
from tests.wording import refuses

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
INDICES = np.array([[0, -1, 2, 1]])


def ints(*numbers):
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Gather", (X, INDICES), {"axis": 1}),
        ("Gather", (X, np.array(-1)), {"axis": -1}),
        ("Gather", (X > 3, np.array([1, 1], np.int32)), {}),
        ("GatherElements", (X[0], INDICES.repeat(3, 0)), {"axis": -1}),
        ("GatherND", (X, np.array([[1, -1], [0, 2]])), {}),
        ("GatherND", (X, np.array([[1], [-1]])), {"batch_dims": 1}),
        *(
            ("ScatterElements", (X[0], INDICES, X[1, :1]), {"axis": 0, "reduction": word})
            for word in ("none", "add", "mul", "min", "max")
        ),
        ("ScatterElements", (X[0], ints([1, -1], [3, 2])[..., :1], X[1, :2, :1]), {"axis": 1}),
        *(
            ("ScatterND", (X, np.array([[1], [-1]]), X[::-1]), {"reduction": word})
            for word in ("add", "mul", "min", "max")
        ),
        ("ScatterND", (X, np.array([[1, -1], [0, 2]]), X[0, :2]), {}),
        ("ScatterND", (X, np.zeros((0, 2), np.int64), X[0, :0]), {}),
        ("OneHot", (ints(1, -1, 7), np.array(3), np.array([2, 5], np.int32)), {"axis": 0}),
        ("ReverseSequence", (X, ints(1, 3)), {"batch_axis": 0, "time_axis": 1}),
        ("ReverseSequence", (X, ints(1, 0, 2)), {"batch_axis": 1, "time_axis": 0}),
        ("NonZero", (np.array([[1, 0], [0, 3]]),), {}),
        ("Unique", (ints(2, 1, 1, 3),), {"outputs": 4}),
        ("Unique", (ints(2, 1, 1, 3),), {"outputs": 4, "sorted": 0}),
        ("Unique", (np.array([[1, 0], [1, 0], [0, 1]]),), {"outputs": 4, "axis": 0}),
    ],
)
def test_as_the_reference_evaluator(op, operands, attributes):
    check(op, *operands, **attributes)


def test_indices_may_leave_out_the_last_elements_of_other_dimensions():
    places = np.array([[2, 0]])
    check("GatherElements", X[0], places, axis=1, want=[np.take_along_axis(X[0, :1], places, 1)])


def test_scatter_is_the_older_name():
    want = X[0].copy()
    want[1, 0] = 9
    check("Scatter", X[0], np.array([[-2]]), np.array([[9]], np.float32), axis=0, opset=9, want=[want])


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_rows_of_a_cache(mode):
    cache, rows = np.zeros((2, 4, 3), np.float32), np.ones((2, 2, 3), np.float32)
    check("TensorScatter", cache, rows, ints(1, 3 if mode == "circular" else 2), axis=1, mode=mode, opset=24)


def test_unknown_indices_are_counted_from_the_end_at_run_time():
    (output,) = read(model_of("Gather", X, np.array([0]), unknown=(1,), axis=2)).outputs
    data, indices = output.arguments
    assert isinstance(data, Constant)
    assert (output.op, output.type.shape) == ("take", (2, 3, 1))
    assert isinstance(indices, Node)
    assert indices.op == "where"
    assert isinstance(indices.arguments[2], Input)


@pytest.mark.parametrize("op", ["NonZero", "Unique"])
def test_how_many_there_are_has_to_be_known(op):
    with refuses(UnknownValueError):
        read(model_of(op, X, unknown=(0,)))


def test_known_places_outside_of_a_tensor():
    for places in ([3, 4, 5], [4], [-5], [[0, 4]]):
        with refuses(WorkloadError):
            read(model_of("Gather", np.zeros(4, np.float32), np.array(places, np.int64), unknown=(0,)))


def test_a_number_has_no_places():
    check("NonZero", np.float32(1), want=[np.zeros((0, 1), np.int64)])


SCATTERED = [
    ("GatherElements", [X, np.array([[[9]]], np.int64)], {}),
    ("ScatterElements", [X, np.array([[[9]]], np.int64), np.ones((1, 1, 1), np.float32)], {}),
    ("ScatterND", [X, np.array([[9]], np.int64), np.ones((1, 3, 4), np.float32)], {}),
    ("MaxUnpool", [X[None, :, :1, :1], np.array([[[[99]], [[0]]]], np.int64)], {"kernel_shape": [2, 2]}),
]


@pytest.mark.parametrize(("op", "operands", "attributes"), SCATTERED)
def test_no_kernel_goes_outside_of_a_tensor(op, operands, attributes):
    with refuses(WorkloadError):
        read(model_of(op, *operands, unknown=(0,), **attributes))
    graph = read(model_of(op, *operands, unknown=(1,), **attributes))
    assert {"minimum", "maximum"} <= {node.op for node in graph.nodes()}


@pytest.mark.parametrize(("indices", "updates"), [((2, 4, 4), (2, 4, 4)), ((1, 3, 4), (1, 3, 2))])
def test_scatters_of_sizes_that_do_not_fit(indices, updates):
    with refuses(WorkloadError):
        read(model_of("ScatterElements", X, np.zeros(indices, np.int64), np.zeros(updates, np.float32), unknown=(0,)))
