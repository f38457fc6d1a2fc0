"""Quantised ONNX models, written line by line."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from anatune.network.graph.passes.order import CPU, run_passes
from tests.naive_graph import run
from tests.unit.network.graph.onnx.one_node import read


class Model:
    """An ONNX model of conversions and operators, built line by line."""

    def __init__(self, *shape, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], []
        self.inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)]
        self.shape = shape

    def known(self, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def node(self, op, *operands, **attributes):
        name = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attributes))
        return name

    def through(self, value, scale, zero, dtype="uint8"):
        """Return a value as integers and back."""
        scale, zero = self.known(np.float32(scale)), self.known(np.dtype(dtype).type(zero))
        return self.node("DequantizeLinear", self.node("QuantizeLinear", value, scale, zero), scale, zero)

    def weight(self, *shape, axis=None, dtype="int8", zero=0):
        """Return integers as numbers, with a scale for the tensor or for each part of it along an axis."""
        limits = np.iinfo(dtype)
        integers = self.random.integers(max(limits.min, -127), limits.max + 1, shape).astype(dtype)
        scales = np.float32(0.01) if axis is None else self.random.uniform(0.005, 0.02, shape[axis]).astype(np.float32)
        zeros = np.full(scales.shape, zero, dtype)
        attributes = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", self.known(integers), self.known(scales), self.known(zeros), **attributes)

    def bias(self, size, weight, scale):
        """Return a bias as quantisers write it: int32, in the unit of sums of data of a scale and of a weight."""
        (node,) = (node for node in self.nodes if weight in node.output)
        units = {one.name: numpy_helper.to_array(one) for one in self.weights}[node.input[1]] * np.float32(scale)
        integers = self.known(self.random.integers(-999, 1000, size).astype(np.int32))
        return self.node("DequantizeLinear", integers, self.known(units), axis=0)

    def model(self, *outputs):
        """Return the model."""
        outputs = [helper.make_empty_tensor_value_info(name) for name in outputs]
        graph = helper.make_graph(self.nodes, "model", self.inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)

    def graphs(self, *outputs):
        """Return the graph as it is read, and behind all passes for CPUs."""
        return read(self.model(*outputs)), run_passes(CPU, read(self.model(*outputs)))

    def check(self, *outputs, unit):
        """Compare both graphs; return the nodes behind the passes."""
        plain, new_graph = self.graphs(*outputs)
        x = self.random.standard_normal(self.shape).astype(np.float32)
        for got, want in zip(run(new_graph, x), run(plain, x), strict=True):
            off = np.abs(got.astype(np.float64) - want)
            assert off.max() <= 1.001 * unit
            assert (off > 0.5 * unit).mean() <= 0.01
        return new_graph.nodes()
