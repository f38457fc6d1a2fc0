"""Operators in place of those of ONNX's evaluator: the same answers."""

import numpy as np
import pytest

from anatune.network.relax.originals import _reference_operators

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def evaluators(op, outputs=1, **attributes):
    names = [f"y{n}" for n in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], names, **attributes)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, None)],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names],
    )
    return [ReferenceEvaluator(graph, opsets={"": 17}, new_ops=own) for own in (None, _reference_operators())]


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 0, 1]},
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "dilations": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [2, 2], "strides": [2, 2], "outputs": 2},
    ],
)
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools(op, attributes):
    if op == "AveragePool" and {"outputs", "dilations"} & attributes.keys():
        return
    theirs, ours = evaluators(op, **attributes)
    x = np.random.default_rng(0).standard_normal((2, 3, 9, 11))
    for expected, found in zip(theirs.run(None, {"x": x}), ours.run(None, {"x": x}), strict=True):
        assert found.dtype == expected.dtype
        assert found == pytest.approx(expected, rel=1e-14)


def test_borders_count_where_they_are_said_to():
    theirs, ours = evaluators("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1)
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5))
    (expected,), (found,) = theirs.run(None, {"x": x}), ours.run(None, {"x": x})
    assert found == pytest.approx(expected, rel=1e-14)


def test_erf_is_in_float64():
    theirs, ours = evaluators("Erf")
    x = np.linspace(-3.0, 3.0, 7)
    (expected,), (found,) = theirs.run(None, {"x": x}), ours.run(None, {"x": x})
    assert found.dtype == np.float64
    assert found == pytest.approx(expected, abs=1e-7)
    assert found[-1] == pytest.approx(0.9999779095030014, abs=1e-15)
