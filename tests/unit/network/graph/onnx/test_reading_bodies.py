"""Operators without a reader are spelt by their bodies in the standard."""

import numpy as np
from onnx import helper

from anatune.network.graph.onnx import reading
from tests.unit.network.graph.onnx.one_node import model_of


def test_inputs_may_be_weights_or_left_out_or_computed():
    operands = np.ones((1, 2, 5), np.float32), np.ones((2, 1, 3), np.float32), None, np.ones((1, 2, 2), np.float32)
    model = model_of("CausalConvWithState", *operands, unknown=(0,), opset=27, outputs=2)
    model.graph.node.insert(0, helper.make_node("Relu", ["x0"], ["positive"]))
    model.graph.node[1].input[0] = "positive"
    before = len(model.graph.value_info)
    spelt = {node.op_type for node in reading.inline_bodies(model, "it")[0].graph.node}
    assert "Conv" in spelt
    assert "CausalConvWithState" not in spelt
    assert len(model.graph.value_info) == before
