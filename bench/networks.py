"""Six small networks as ONNX models, written by hand: no download and no PyTorch is needed.

They are fixed: the same numbers in every run. `bench.snapshot write FILE --networks` compiles them.

| network | what it has |
|---|---|
| residual | convolutions of 7x7, 3x3 and 1x1, strides, folded norms, sums of residuals, pools |
| encoder | embeddings, layer norms, attention of four heads, GELU: two layers of a transformer |
| decoder | RMS norms, rotary embeddings, caches that grow, shared heads, SwiGLU: one layer |
| recurrent | an LSTM in both directions, a GRU behind it |
| quantised | convolutions and a product of 8-bit integers between QuantizeLinear and DequantizeLinear |
| mixed | a batch that varies; depthwise and grouped convolutions, branches, resizing, TopK, ArgMax, CumSum |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["NETWORKS"]

_OPSET, _IR_VERSION = 18, 10
_DTYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class _Network:
    """Nodes and weights of a model that is being written."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its result, or a list of the names of several."""
        names = [f"v{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a weight; return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, *values: int) -> str:
        """Add a list of integers; return its name."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add normal numbers, scaled to the shape's second and further extents by default; return their name."""
        factor = float(np.prod(shape[1:] or shape)) ** -0.5 if scale is None else scale
        return self.constant(self.random.standard_normal(shape) * factor)

    def factors(self, size: int) -> str:
        """Add numbers near one; return their name."""
        return self.constant(self.random.uniform(0.5, 1.5, size))

    def conv(self, x: str, inputs: int, outputs: int, taps: int = 3, stride: int = 1, group: int = 1) -> str:
        """Add a convolution with a norm behind it."""
        x = self.op(
            "Conv", x, self.weight(outputs, inputs // group, taps, taps), kernel_shape=[taps] * 2,
            strides=[stride] * 2, pads=[taps // 2] * 4, group=group,
        )  # fmt: skip
        shift, mean = self.weight(outputs, scale=0.1), self.weight(outputs, scale=0.1)
        return self.op("BatchNormalization", x, self.factors(outputs), shift, mean, self.factors(outputs))

    def relu(self, x: str) -> str:
        """Add a rectifier."""
        return self.op("Relu", x)

    def linear(self, x: str, inputs: int, outputs: int, *, bias: bool = True) -> str:
        """Add a product with a weight, on tensors of any rank."""
        weight = self.constant(self.random.standard_normal((inputs, outputs)) * inputs**-0.5)
        x = self.op("MatMul", x, weight)
        return self.op("Add", x, self.weight(outputs, scale=0.1)) if bias else x

    def layer_norm(self, x: str, width: int) -> str:
        """Add a layer norm."""
        return self.op("LayerNormalization", x, self.factors(width), self.weight(width, scale=0.1), axis=-1)

    def split_heads(self, x: str, dim: int) -> str:
        """Turn (batch, tokens, heads * dim) into (batch, heads, tokens, dim)."""
        return self.op("Transpose", self.op("Reshape", x, self.integers(0, 0, -1, dim)), perm=[0, 2, 1, 3])

    def join_heads(self, x: str) -> str:
        """Undo `split_heads`."""
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.integers(0, 0, -1))

    def model(self, inputs: dict[str, tuple[str, Sequence[int | str]]], *results: str) -> onnx.ModelProto:
        """Return the model: inputs by name with dtype and shape, and its results."""
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(name, _DTYPES[dtype], shape) for name, (dtype, shape) in inputs.items()],
            [helper.make_empty_tensor_value_info(result) for result in results],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
        return onnx.shape_inference.infer_shapes(model)


def residual() -> onnx.ModelProto:
    """Return a residual network on images of 56x56."""
    net = _Network(1)
    x = net.relu(net.conv("x", 3, 32, 7, stride=2))
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for inputs, outputs, stride in ((32, 32, 1), (32, 64, 2)):
        inner = net.relu(net.conv(x, inputs, outputs, stride=stride))
        inner = net.conv(inner, outputs, outputs)
        shortcut = x if stride == 1 else net.conv(x, inputs, outputs, 1, stride=stride)
        x = net.relu(net.op("Add", inner, shortcut))
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    x = net.op("Gemm", x, net.weight(16, 64), net.weight(16, scale=0.1), transB=1)
    return net.model({"x": ("float32", [1, 3, 56, 56])}, x)


def encoder() -> onnx.ModelProto:
    """Return two layers of a transformer on 32 tokens."""
    tokens, width, heads, words = 32, 64, 4, 50
    net = _Network(2)
    x = net.op("Add", net.op("Gather", net.weight(words, width, scale=1.0), "x"), net.weight(tokens, width, scale=1.0))
    x = net.layer_norm(x, width)
    for _ in range(2):
        query, key, value = (net.split_heads(net.linear(x, width, width), width // heads) for _ in range(3))
        scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
        scores = net.op("Div", scores, net.constant((width / heads) ** 0.5))
        mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), value)
        x = net.layer_norm(net.op("Add", x, net.linear(net.join_heads(mixed), width, width)), width)
        up = net.linear(x, width, 4 * width)
        gate = net.op("Add", net.op("Erf", net.op("Div", up, net.constant(2**0.5))), net.constant(1))
        up = net.op("Mul", net.op("Mul", up, gate), net.constant(0.5))
        x = net.layer_norm(net.op("Add", x, net.linear(up, 4 * width, width)), width)
    return net.model({"x": ("int64", [1, tokens])}, x)


def decoder() -> onnx.ModelProto:
    """Return a layer of Llama's form for one stream: ids (1, tokens), and a cache that grows by them."""
    width, heads, groups, dim, hidden, words = 64, 4, 2, 16, 96, 40
    net = _Network(3)
    zero, step = net.constant(0, np.int64), net.constant(1, np.int64)
    past = net.op("Squeeze", net.op("Shape", "past_key_values.0.key", start=2, end=3))
    end = net.op("Add", past, net.op("Squeeze", net.op("Shape", "x", start=1, end=2)))
    positions = net.op("Unsqueeze", net.op("Range", past, end, step), net.integers(1))
    frequencies = net.constant(np.tile(100.0 ** -(np.arange(0, dim, 2) / dim), 2))
    angles = net.op("Mul", net.op("Cast", positions, to=TensorProto.FLOAT), frequencies)
    cos, sin = net.op("Cos", angles), net.op("Sin", angles)
    is_seen = net.op("LessOrEqual", net.op("Range", zero, end, step), positions)
    mask = net.op("Where", is_seen, net.constant(0), net.constant(-np.inf))

    def norm(x: str) -> str:
        mean = net.op("ReduceMean", net.op("Mul", x, x), net.integers(-1))
        return net.op("Div", x, net.op("Sqrt", net.op("Add", mean, net.constant(1e-5))))

    def rotate(x: str) -> str:
        first, second = net.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        turned = net.op("Concat", net.op("Neg", second), first, axis=-1)
        return net.op("Add", net.op("Mul", x, cos), net.op("Mul", turned, sin))

    def repeat(x: str) -> str:
        sizes = net.integers(1), net.integers(groups), net.integers(heads // groups), net.integers(dim)
        count = net.op("Shape", x, start=2, end=3)
        shape = net.op("Concat", *sizes[:3], count, sizes[3], axis=0)
        wide = net.op("Expand", net.op("Unsqueeze", x, net.integers(2)), shape)
        return net.op("Reshape", wide, net.op("Concat", sizes[0], net.integers(heads), count, sizes[3], axis=0))

    x = net.op("Gather", net.weight(words, width, scale=1.0), "x")
    normed = norm(x)
    sizes = (width, groups * dim, groups * dim)
    query, key, value = (net.split_heads(net.linear(normed, width, size, bias=False), dim) for size in sizes)
    caches = []
    for name, new in (("key", rotate(key)), ("value", value)):
        caches.append(f"present.0.{name}")
        net.nodes.append(helper.make_node("Concat", [f"past_key_values.0.{name}", new], caches[-1:], axis=2))
    keys, values = map(repeat, caches)
    scores = net.op("MatMul", rotate(query), net.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = net.op("Add", net.op("Mul", scores, net.constant(dim**-0.5)), mask)
    mixed = net.op("MatMul", net.op("Softmax", scores, axis=-1), values)
    x = net.op("Add", x, net.linear(net.join_heads(mixed), width, width, bias=False))
    normed = norm(x)
    gate = net.linear(normed, width, hidden, bias=False)
    gate = net.op("Mul", gate, net.op("Sigmoid", gate))
    gate = net.op("Mul", gate, net.linear(normed, width, hidden, bias=False))
    x = net.op("Add", x, net.linear(gate, hidden, width, bias=False))
    logits = net.linear(norm(x), width, words, bias=False)
    cache = ("float32", [1, groups, "past", dim])
    inputs = {"x": ("int64", [1, "tokens"]), "past_key_values.0.key": cache, "past_key_values.0.value": cache}
    return net.model(inputs, logits, *caches)


def recurrent() -> onnx.ModelProto:
    """Return recurrent layers on 12 steps of two sequences."""
    steps, batch, width, hidden = 12, 2, 24, 32
    net = _Network(4)
    sequences, *_ = net.op(
        "LSTM", "x", net.weight(2, 4 * hidden, width, scale=0.2), net.weight(2, 4 * hidden, hidden, scale=0.2),
        net.weight(2, 8 * hidden, scale=0.1), outputs=3, hidden_size=hidden, direction="bidirectional",
    )  # fmt: skip
    joined = net.op("Reshape", net.op("Transpose", sequences, perm=[0, 2, 1, 3]), net.integers(steps, batch, -1))
    sequences, last = net.op(
        "GRU", joined, net.weight(1, 3 * hidden, 2 * hidden, scale=0.2), net.weight(1, 3 * hidden, hidden, scale=0.2),
        net.weight(1, 6 * hidden, scale=0.1), outputs=2, hidden_size=hidden, linear_before_reset=1,
    )  # fmt: skip
    scores = net.linear(net.op("Squeeze", sequences, net.integers(1)), hidden, 10)
    return net.model({"x": ("float32", [steps, batch, width])}, net.op("LogSoftmax", scores, axis=-1), last)


def quantised() -> onnx.ModelProto:
    """Return a network of 8-bit integers on images of 28x28, as quantisers write it."""
    net = _Network(5)

    def through(x: str, scale: float) -> str:
        scales, zero = net.constant(scale), net.constant(128, np.uint8)
        return net.op("DequantizeLinear", net.op("QuantizeLinear", x, scales, zero), scales, zero)

    def weight(*shape: int) -> str:
        values = net.constant(net.random.integers(-127, 128, shape), np.int8)
        scales = net.constant(net.random.uniform(0.5, 1.5, shape[0]) * 0.01)
        return net.op("DequantizeLinear", values, scales, net.constant(np.zeros(shape[0]), np.int8), axis=0)

    x = through("x", 0.03)
    for inputs, outputs, stride in ((16, 32, 2), (32, 32, 1)):
        parts = {"kernel_shape": [3, 3], "strides": [stride] * 2, "pads": [1] * 4}
        inner = net.op("Conv", x, weight(outputs, inputs, 3, 3), net.weight(outputs, scale=0.1), **parts)
        inner = through(net.relu(inner), 0.1)
        x = inner if stride == 2 else through(net.op("Add", x, inner), 0.2)
    x = through(net.op("Flatten", net.op("GlobalAveragePool", x)), 0.05)
    x = net.op("Gemm", x, weight(20, 32), net.weight(20, scale=0.1), transB=1)
    return net.model({"x": ("float32", [1, 16, 28, 28])}, x)


def mixed() -> onnx.ModelProto:
    """Return a network of many operators on images of 16x16, of a batch that varies."""
    net = _Network(6)
    x = net.conv("x", 8, 32, 1)
    x = net.op("Clip", x, net.constant(0), net.constant(6))
    deep = net.op("HardSwish", net.conv(x, 32, 32, group=32))
    grouped = net.relu(net.conv(x, 32, 32, stride=2, group=4))
    grouped = net.op("Resize", grouped, "", net.constant([1, 1, 2, 2]), mode="nearest")
    pooled = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1)
    x = net.conv(net.op("Concat", deep, grouped, pooled, axis=1), 96, 24, 1)
    x = net.op("Add", x, net.op("Mul", x, net.op("Sigmoid", net.op("ReduceMean", x, net.integers(2, 3)))))
    rows = net.op("Transpose", net.op("Reshape", x, net.integers(0, 24, -1)), perm=[0, 2, 1])
    rows = net.op("Tanh", net.linear(net.layer_norm(rows, 24), 24, 16))
    largest, _ = net.op("TopK", rows, net.integers(5), outputs=2, axis=1)
    sums = net.op("CumSum", largest, net.constant(1, np.int64))
    classes = net.op("ArgMax", net.op("ReduceMax", rows, net.integers(1), keepdims=0), axis=-1)
    return net.model({"x": ("float32", ["batch", 8, 16, 16])}, sums, classes)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    network.__name__: network for network in (residual, encoder, decoder, recurrent, quantised, mixed)
}
"""Name -> what writes the network."""
