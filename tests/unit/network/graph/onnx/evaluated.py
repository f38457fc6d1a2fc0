"""Models of one node that reads inputs, computed operator by operator with NumPy."""

import numpy as np
from onnx.reference import ReferenceEvaluator

from tests import naive_graph
from tests.unit.network.graph.onnx.one_node import model_of, read


def computed(op, *operands, unknown=(0,), **attributes):
    """Return the graph of a node, and what it computes in float64; operands at the places `unknown` are inputs."""
    graph = read(model_of(op, *operands, unknown=unknown, **attributes))
    return graph, naive_graph.run(graph, *(np.asarray(operands[place]) for place in unknown))


def check(op, *operands, unknown=(0,), want=None, atol=1e-5, **attributes):
    """Compare what is read of a node with arrays, or with the standard's reference evaluator; return the graph."""
    graph, got = computed(op, *operands, unknown=unknown, **attributes)
    if want is None:
        inputs = {f"x{place}": np.asarray(operands[place]) for place in unknown}
        want = ReferenceEvaluator(model_of(op, *operands, unknown=unknown, **attributes)).run(None, inputs)
    for output, actual, other in zip(graph.outputs, got, want, strict=True):
        assert (output.type.shape, output.type.dtype) == (np.shape(other), np.asarray(other).dtype.name)
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=atol)
    return graph
