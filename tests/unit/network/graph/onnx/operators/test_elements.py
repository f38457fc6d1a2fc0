"""Readers of operators on elements: what is known is computed, the rest is spelt in operators that TVM has code for."""

import ml_dtypes
import numpy as np
import onnx
import pytest

from anatune.errors import WorkloadError
from anatune.network.graph.nodes import tensor_type
from tests.unit.network.graph.onnx.one_node import check, found, model_of, read
from tests.wording import refuses

X = np.array([[-2, -0.5, 0, 1.5, np.nan, np.inf]], np.float32)


def test_the_gelu_of_onnxruntime_has_a_default_of_its_own():
    x = X[:, :4]
    check("QuickGelu", x, want=[x / (1 + np.exp(-1.702 * x))], domain="com.microsoft", opset=1)
    check("QuickGelu", x, want=[x / (1 + np.exp(-x))], domain="com.microsoft", opset=1, alpha=1.0)


@pytest.mark.parametrize("opset", [6, 7, 20])
def test_broadcasts_of_old_versions_begin_at_an_axis(opset):
    x, y = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.arange(3, dtype=np.float32)
    if opset == 6:
        check("Add", x, y, want=[x + y[:, None]], opset=6, broadcast=1, axis=1)
    else:
        check("Add", x, y[:, None], want=[x + y[:, None]], opset=opset)


def test_bounds_are_attributes_and_then_operands():
    check("Clip", X, want=[np.clip(X, -1, 1)], opset=6, min=-1.0, max=1.0)
    check("Clip", X, None, np.float32(1), want=[np.minimum(X, 1)], opset=12)


@pytest.mark.parametrize(("op", "count"), [("Pow", 2), ("Mod", 2), ("IsNaN", 1), ("IsInf", 1)])
def test_what_has_no_bfloat16_is_computed_in_float32(op, count):
    operands = [X.astype(ml_dtypes.bfloat16)] * count
    attributes = {"fmod": 1} if op == "Mod" else {}
    (output,) = (graph := read(model_of(op, *operands, unknown=range(count), **attributes))).outputs
    assert {tensor_type(one).dtype for one in graph.nodes()[:count]} == {"float32"}
    assert tensor_type(output).dtype == ("bool" if op.startswith("Is") else "bfloat16")


def test_signs_and_equalities_of_types_that_have_none():
    check("Sign", np.array([0, 3], np.uint8), want=[np.array([0, 1], np.uint8)])
    check("Equal", *(truths := (np.array([True, False]), np.array([True, True]))))
    nodes = read(model_of("Equal", *truths, unknown=(0, 1))).nodes()
    assert [node.op for node in nodes] == ["astype", "astype", "equal"]


def test_operands_have_one_type():
    with refuses(WorkloadError):
        read(model_of("Add", X, X.astype(np.float64), unknown=(0, 1)))
    with refuses(WorkloadError):
        read(model_of("Sum", X, X, X.astype(np.float64), unknown=(0, 1, 2)))


def test_numbers_that_graphs_do_not_have():
    x = np.ones(2, np.complex64)
    with refuses(WorkloadError):
        read(model_of("Identity", x, unknown=(0,)))
    with refuses(WorkloadError):
        read(model_of("Identity", x))


def test_casts():
    (truths,) = found("Cast", X, to=onnx.TensorProto.BOOL)
    np.testing.assert_array_equal(truths, X != 0)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_integers_shrink_by_fractions(dtype):
    check("Shrink", np.array([0, 1, 2, 5], dtype), want=[np.array([0, 0, 1, 4], dtype)], bias=0.5, lambd=1.5)
