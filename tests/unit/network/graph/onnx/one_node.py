"""Models of one node whose operands are known: what is read of them is computed at once, with NumPy."""

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from anatune.network.graph.nodes import Constant
from anatune.network.graph.onnx.reading import graph_of_onnx


def model_of(op, *operands, opset=22, outputs=1, unknown=(), domain="", **attributes):
    """Return a model of a node; operands that are None are left out, those at the places `unknown` are inputs."""
    names = ["" if operand is None else f"x{place}" for place, operand in enumerate(operands)]
    results = [f"y{place}" for place in range(outputs)]
    arrays = {name: np.asarray(operand) for name, operand in zip(names, operands, strict=True) if name}
    inputs = [
        helper.make_tensor_value_info(f"x{place}", _kind(arrays[f"x{place}"]), arrays[f"x{place}"].shape)
        for place in unknown
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attributes)],
        "node",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if int(name[1:]) not in unknown],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, opset)], ir_version=10)


def _kind(array):
    return helper.np_dtype_to_tensor_dtype(array.dtype)


def body_of(nodes, inputs, outputs):
    """Return a graph that a node holds, of names and (type, shape) of its inputs; `outputs` are names."""
    kinds = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    return helper.make_graph(nodes, "body", kinds, [helper.make_empty_tensor_value_info(name) for name in outputs])


def read(model):
    """Return the graph of a model."""
    shapes = {one.name: [size.dim_value for size in one.type.tensor_type.shape.dim] for one in model.graph.input}
    return graph_of_onnx(model, shapes, "node.onnx")


def found(op, *operands, **attributes):
    """Return the arrays that a node makes of known operands; `own` as of `model_of`."""
    outputs = read(model_of(op, *operands, **attributes)).outputs
    assert all(isinstance(value, Constant) for value in outputs), outputs
    return [value.array for value in outputs]


def check(op, *operands, want=None, rtol=1e-5, **attributes):
    """Compare what is read of a node with arrays, or with what the standard's reference evaluator computes."""
    got = found(op, *operands, **attributes)
    wanted = ReferenceEvaluator(model_of(op, *operands, **attributes)).run(None, {}) if want is None else want
    for actual, other in zip(got, wanted, strict=True):
        other = np.asarray(other)
        assert (actual.shape, actual.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(actual, other, rtol=rtol, atol=1e-6)


FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
