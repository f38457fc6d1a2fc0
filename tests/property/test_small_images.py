"""Random convolutions and pools of small images, compiled whole, beside onnxruntime: extents of 1 anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anatune

pytest.importorskip("tvm", reason="code generation needs apache-tvm")
onnx = pytest.importorskip("onnx", reason="models are ONNX files")
onnxruntime = pytest.importorskip("onnxruntime", reason="it says what is right")
from onnx import helper, numpy_helper  # noqa: E402

Array = Any


class Windows:
    """Operators over windows, each of an input of its own, as one model."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: dict[str, Array] = {}
        self.outputs: list[str] = []
        self.text: list[str] = []

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def known(self, array: Array, dtype: str = "float32") -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def add(self) -> None:
        """Add an operator with what comes behind it."""
        rank = self.pick(1, 2, 2, 2, 3)
        channels, batch = self.pick(1, 2, 3, 9, 16), self.pick(1, 1, 2)
        sizes = [self.pick(1, 1, 2, 3, 5) for _ in range(rank)]
        window = [self.pick(1, 1, 2, 3, 5) for _ in range(rank)]
        dilations = [self.pick(1, 1, 2) for _ in range(rank)]
        strides = [self.pick(1, 1, 2, 3, 7) for _ in range(rank)]
        kind = self.pick("Conv", "Conv", "Conv", "QDQ", "QDQ", "MaxPool", "AveragePool", "Global")
        if kind == "AveragePool":
            dilations = [1] * rank
        reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
        most = [k - 1 if "Pool" in kind else k for k in window]
        before = [min(self.pick(0, 1, k // 2), k) for k in most]
        after = [max(min(self.pick(0, 1, k // 2), k), min(k, r - s - b)) for k, r, s, b in
                 zip(most, reach, sizes, before, strict=True)]  # fmt: skip
        if any(s + b + a < r for s, b, a, r in zip(sizes, before, after, reach, strict=True)):
            window, dilations, before, after = ([one] * rank for one in (1, 1, 0, 0))
        named = {"kernel_shape": window, "strides": strides, "pads": [*before, *after]}
        x = f"x{len(self.inputs)}"
        self.inputs[x] = self.random.standard_normal((batch, channels, *sizes)).astype(np.float32)
        if kind in ("Conv", "QDQ"):
            y = self.convolution(x, channels, window, kind == "QDQ", {**named, "dilations": dilations})
        elif kind == "Global":
            y = self.node(self.pick("GlobalAveragePool", "GlobalMaxPool"), x)
        elif kind == "MaxPool":
            y = self.node(kind, x, dilations=dilations, **named)
        else:
            y = self.node(kind, x, count_include_pad=self.pick(0, 1), **named)
        for _ in range(self.pick(0, 1, 2)):
            y = self.node(self.pick("Relu", "Sigmoid", "Neg"), y)
        self.outputs.append(y)
        self.text.append(f"{kind} of {self.inputs[x].shape} {named} {dilations}")

    def convolution(self, x: str, channels: int, window: list[int], is_quantised: bool, named: dict[str, Any]) -> str:
        """Return a convolution, float32 or of 8 bits whose result stays float32."""
        groups = self.pick(1, channels, channels)
        outputs = groups * self.pick(1, 1, 2)
        shape = (outputs, channels // groups, *window)
        self.text.append(f"groups {groups}, outputs {outputs}")
        if not is_quantised:
            operands = [self.known(self.random.standard_normal(shape))]
            if self.pick(True, False):
                operands.append(self.known(self.random.standard_normal(outputs)))
            return self.node("Conv", x, *operands, group=groups, **named)
        dtype, zero = self.pick(("uint8", 120), ("int8", 3))
        scale = (self.known(0.05), self.known(zero, dtype))
        x = self.node("DequantizeLinear", self.node("QuantizeLinear", x, *scale), *scale)
        own = (self.known(self.random.uniform(0.01, 0.03, outputs)), self.known(np.zeros(outputs), "int8"))
        weight = self.known(self.random.integers(-20, 20, shape), "int8")
        return self.node("Conv", x, self.node("DequantizeLinear", weight, *own, axis=0), group=groups, **named)

    def model(self) -> Any:
        inputs = [helper.make_tensor_value_info(name, 1, one.shape) for name, one in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(name, 1, None) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "windows", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def wrong_chains(seed: int, count: int) -> list[str]:
    """Return which of some random operators come out wrong, each as it was made."""
    windows = Windows(seed)
    texts = []
    for _ in range(count):
        windows.text.clear()
        windows.add()
        texts.append("; ".join(windows.text))
    model = windows.model()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, windows.inputs)
    found = anatune.compile(model, threads=1, check=False)(*windows.inputs.values())
    # the largest of padding alone is the least number in onnxruntime, -inf here and in PyTorch
    return [
        text for text, one, other in zip(texts, found, expected, strict=True)
        if one.shape != other.shape or not np.allclose(np.nan_to_num(one), other, rtol=1e-4, atol=1e-4)
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_small_images_are_those_of_onnxruntime(seed: int) -> None:
    assert wrong_chains(seed, 12) == []
