"""Models without inputs, as they are read and as onnxruntime computes them."""

from importlib import import_module

import numpy as np

from anatune.network.graph.nodes import Constant
from tests import naive_graph
from tests.unit.network.graph.onnx.one_node import read


def computed(model):
    """Return what is read of a model without inputs."""
    graph = read(model)
    if all(isinstance(value, Constant) for value in graph.outputs):
        return [value.array for value in graph.outputs]
    return [
        np.asarray(array).astype(value.type.dtype)
        for array, value in zip(naive_graph.run(graph), graph.outputs, strict=True)
    ]


def by_onnxruntime(model):
    """Return what onnxruntime computes; None: it cannot."""
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return session.run(None, {})
    except Exception:  # noqa: BLE001  of its C++
        return None


def check_equal(got, want, atol=2e-4):
    for actual, other in zip(got, want, strict=False):  # operators may return fewer results than a node names
        assert (actual.shape, actual.dtype) == (other.shape, other.dtype)
        is_byte = actual.dtype.kind in "iu" and actual.dtype.itemsize == 1
        np.testing.assert_allclose(actual.astype(float), other.astype(float), rtol=1e-3, atol=1 if is_byte else atol)
