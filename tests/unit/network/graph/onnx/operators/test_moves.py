"""Operators that move elements to places that are known when a model is read."""

import numpy as np
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.onnx.call import UnknownValueError
from tests.unit.network.graph.onnx.one_node import check, model_of, read
from tests.wording import refuses

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.arange(48, dtype=np.float32).reshape(1, 12, 2, 2)


def ints(*numbers):
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Shape", (X,), {"start": -2}),
        ("Shape", (X,), {"start": 1, "end": -1}),
        ("Size", (X,), {}),
        ("Reshape", (X, ints(0, -1)), {}),
        ("Transpose", (X,), {}),
        ("Squeeze", (X[:1, :, None],), {}),
        ("Squeeze", (X[:1], ints(-3)), {}),
        ("Unsqueeze", (X, ints(-1, 0)), {}),
        ("Flatten", (X,), {"axis": -1}),
        ("Flatten", (X,), {"axis": 0}),
        ("Expand", (X[:, :1], ints(5, 1, 3, 1)), {}),
        ("Concat", (X, X[:, :0], X[:, :1]), {"axis": -2}),
        ("Slice", (X, ints(-1, 0), ints(-100, 3), ints(2, 1), ints(-2, 2)), {}),
        ("Slice", (X, ints(1), ints(np.iinfo(np.int64).max)), {}),
        ("Tile", (X, ints(2, 1, 3)), {}),
        ("Pad", (X, ints(1, 0, 2, 0, 1, 0)), {"mode": "edge"}),
        ("Pad", (X, ints(1, 2), None, ints(-1)), {"mode": "reflect"}),
        ("Pad", (X, ints(1, 2), None, ints(-2)), {"mode": "wrap"}),
        ("Pad", (X > 3, ints(1, 0, 0, 0, 0, 2), np.array(True)), {}),
        ("DepthToSpace", (IMAGE,), {"blocksize": 2, "mode": "DCR"}),
        ("DepthToSpace", (IMAGE,), {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", (IMAGE,), {"blocksize": 2}),
        ("Trilu", (X, np.array(-1, np.int64)), {"upper": 0}),
        ("Trilu", (X > 5,), {}),
        ("CenterCropPad", (X, ints(2, 7)), {"axes": [1, 2]}),
        ("Compress", (X, np.array([True, False, True])), {"axis": 1}),
        ("Compress", (X, np.array([False, True])), {}),
    ],
)
def test_as_the_reference_evaluator(op, operands, attributes):
    check(op, *operands, **attributes)


def test_numbers_are_attributes_of_older_versions():
    check("Slice", X, starts=[1], ends=[-1], axes=[2], opset=9, want=[X[:, :, 1:-1]])
    check("Squeeze", X[:1], axes=[0], opset=11, want=[X[0]])
    check("Unsqueeze", X, axes=[1], opset=11, want=[X[:, None]])
    check("Split", X, split=[1, 2], axis=1, opset=11, outputs=2, want=[X[:, :1], X[:, 1:]])
    padded = np.pad(X, ((0, 0), (0, 1), (2, 0)), constant_values=7)
    check("Pad", X, pads=[0, 0, 2, 0, 1, 0], value=7.0, opset=10, want=[padded])


def test_pads_below_zero_cut():
    want = np.pad(X[:, 1:, :2], ((0, 0), (0, 1), (0, 0)), constant_values=5)
    check("Pad", X, ints(0, -1, 0, 0, 1, -2), np.float32(5), want=[want])


def test_splits_of_a_count_have_a_smaller_last_part():
    check("Split", X, axis=2, num_outputs=3, outputs=3, want=[X[..., :2], X[..., 2:], X[..., :0]])
    check("Split", X, ints(3, 0, 1), axis=-1, outputs=3, want=[X[..., :3], X[..., :0], X[..., 3:]])


def test_zeros_are_sizes_where_that_is_allowed():
    check("Reshape", X[:0], ints(0, 5), allowzero=1, want=[np.zeros((0, 5), np.float32)])


def test_a_number_around_may_be_unknown():
    model = model_of("Pad", X, ints(0, 0, 1, 0, 0, 0), np.float32(5), unknown=(2,))
    (output,) = read(model).outputs
    assert (output.op, output.type.shape) == ("where", (2, 3, 5))


def test_a_diagonal_may_be_unknown():
    for attributes, op in (({}, "triu"), ({"unknown": (0, 1)}, "where")):
        (output,) = read(model_of("Trilu", X, np.array(-1, np.int64), **{"unknown": (0,), **attributes})).outputs
        assert (output.op, output.type.shape) == (op, X.shape)


def test_sizes_that_are_unknown_name_the_inputs_that_decide():
    with refuses(UnknownValueError) as error:
        read(model_of("Reshape", X, ints(6, 4), unknown=(0, 1)))
    assert error.value.inputs == ("x1",)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Split", (X, ints(1, 1)), {"axis": 1, "outputs": 2}),
        ("Pad", (X, ints(1, 1)), {}),
        ("Reshape", (X, ints(5, 5)), {}),
        ("Slice", (X,), {"opset": 9}),
    ],
)
def test_what_contradicts_itself_is_refused_in_one_line(op, operands, attributes):
    with refuses(WorkloadError) as error:
        read(model_of(op, *operands, **attributes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Concat", [X, X[:, :2]], {"axis": 0}),
        ("Reshape", [X, np.array([-2, -X.size // 2], np.int64)], {}),
        ("Split", [X], {"num_outputs": 1 << 40}),
        ("Trilu", [X.reshape(-1)], {}),
    ],
)
def test_what_fits_nowhere_is_one_line(op, operands, attributes):
    with refuses(WorkloadError):
        read(model_of(op, *operands, unknown=range(len(operands) if op == "Concat" else 1), **attributes))
