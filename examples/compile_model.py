"""A whole model: a small ONNX network, planned kernel by kernel, compiled for this CPU, saved, loaded and run."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import anatune

draw = np.random.default_rng(0)
weights = {
    "filters": draw.standard_normal((16, 3, 3, 3)),
    "bias": draw.standard_normal(16),
    "matrix": draw.standard_normal((16, 10)),
}
nodes = [
    helper.make_node("Conv", ["x", "filters", "bias"], ["c"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c"], ["r"]),
    helper.make_node("GlobalAveragePool", ["r"], ["p"]),
    helper.make_node("Flatten", ["p"], ["f"]),
    helper.make_node("MatMul", ["f", "matrix"], ["y"]),
]
graph = helper.make_graph(
    nodes,
    "small",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "small.onnx")

model = anatune.compile("small.onnx", hw="host", threads=1)  # outputs are compared with the original's in float64
print(model.report())
model.save("small")

loaded = anatune.load("small")  # needs neither ONNX nor a compiler
print(loaded(np.ones((1, 3, 16, 16), dtype=np.float32)))
