"""The seven models of the bench in small, as ONNX files written by hand: no PyTorch is needed.

Each has what its original has: the same operators in the same order, one or two of its blocks, few channels. Where
exporters spell something out (layer norm, GELU, masks), one model has it whole and another one in parts.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class _Net:
    """Nodes and weights of a model that is being written."""

    def __init__(self, seed=0):
        self.nodes, self.weights, self.random = [], [], np.random.default_rng(seed)

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def known(self, array, dtype=None):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def weight(self, *shape, scale=None):
        scale = scale or np.prod(shape[1:] or shape) ** -0.5
        return self.known(self.random.standard_normal(shape) * scale, np.float32)

    def near_one(self, size):
        return self.known(self.random.uniform(0.5, 1.5, size), np.float32)

    def numbers(self, *values):
        return self.known(values, np.int64)

    def scalar(self, value):
        return self.known(value, np.float32)

    # ---- convolutional networks ----

    def conv(self, x, inputs, outputs, taps=3, *, stride=1, pads=None, group=1, bias=False):
        taps = (taps, taps) if isinstance(taps, int) else taps
        pads = [size // 2 for size in taps] * 2 if pads is None else [pads] * 4
        more = [self.weight(outputs, scale=0.1)] if bias else []
        weight = self.weight(outputs, inputs // group, *taps)
        return self.op("Conv", x, weight, *more, kernel_shape=taps, strides=[stride] * 2, pads=pads, group=group)

    def norm(self, x, channels, epsilon=1e-5):
        shift, mean = self.weight(channels, scale=0.1), self.weight(channels, scale=0.1)
        return self.op(
            "BatchNormalization", x, self.near_one(channels), shift, mean, self.near_one(channels), epsilon=epsilon
        )

    def convolved(self, x, inputs, outputs, *given, relu="Relu", **named):
        x = self.norm(self.conv(x, inputs, outputs, *given, **named), outputs)
        if relu == "Clip":
            return self.op("Clip", x, self.scalar(0), self.scalar(6))
        return self.op(relu, x) if relu else x

    def linear(self, x, inputs, outputs):
        return self.op("Gemm", x, self.weight(outputs, inputs), self.weight(outputs, scale=0.1), transB=1)

    def pooled(self, x):
        return self.op("Flatten", self.op("GlobalAveragePool", x))

    # ---- transformers ----

    def product(self, x, inputs, outputs):
        weight = self.known(self.random.standard_normal((inputs, outputs)) * inputs**-0.5, np.float32)
        return self.op("Add", self.weight(outputs, scale=0.1), self.op("MatMul", x, weight))

    def layer_norm(self, x, width):
        return self.op(
            "LayerNormalization", x, self.near_one(width), self.weight(width, scale=0.1), epsilon=1e-5, axis=-1
        )

    def spelt_layer_norm(self, x, width):
        away = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1], keepdims=1))
        variance = self.op("ReduceMean", self.op("Pow", away, self.scalar(2)), axes=[-1], keepdims=1)
        scaled = self.op("Div", away, self.op("Sqrt", self.op("Add", variance, self.scalar(1e-12))))
        return self.op("Add", self.op("Mul", scaled, self.near_one(width)), self.weight(width, scale=0.1))

    def heads(self, x, count, heads, width, *, turned=False):
        x = self.op("Reshape", x, self.numbers(1, count, heads, width // heads))
        return self.op("Transpose", x, perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3])

    def joined(self, x, count, width):
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.numbers(1, count, width))

    def write(self, path, x, *results):
        outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, None) for result in results]
        graph = helper.make_graph(self.nodes, "network", [x], outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(onnx.shape_inference.infer_shapes(model), str(path))


def _image(size):
    return helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])


def resnet18(path):
    net = _Net()
    x = net.convolved("x", 3, 16, 7, stride=2)
    x = net.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for inputs, outputs, stride in ((16, 16, 1), (16, 32, 2)):
        inner = net.convolved(net.convolved(x, inputs, outputs, stride=stride), outputs, outputs, relu="")
        shortcut = x if stride == 1 else net.convolved(x, inputs, outputs, 1, stride=2, relu="")
        x = net.op("Relu", net.op("Add", inner, shortcut))
    net.write(path, _image(32), net.linear(net.pooled(x), 32, 10))


def resnet50(path):
    net = _Net(1)
    x = net.convolved("x", 3, 16, 7, stride=2)
    for inputs, stride in ((16, 1), (64, 2)):
        inner = net.convolved(net.convolved(x, inputs, 16, 1), 16, 16, 3, stride=stride)
        inner = net.convolved(inner, 16, 64, 1, relu="")
        shortcut = net.convolved(x, inputs, 64, 1, stride=stride, relu="")
        x = net.op("Relu", net.op("Add", inner, shortcut))
    net.write(path, _image(32), net.linear(net.pooled(x), 64, 10))


def vgg16(path):
    net, x, inputs = _Net(2), "x", 3
    for outputs in (16, 16, 0, 32, 0):
        if outputs:
            x, inputs = net.op("Relu", net.conv(x, inputs, outputs, bias=True)), outputs
        else:
            x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = net.op("Relu", net.linear(net.op("Flatten", x), 32 * 4 * 4, 64))
    net.write(path, _image(16), net.linear(net.op("Dropout", x), 64, 10))


def mobilenet_v2(path):
    net = _Net(3)
    x = net.convolved("x", 3, 16, stride=2, relu="Clip")
    for inputs, outputs, stride in ((16, 24, 2), (24, 24, 1)):
        inner = net.convolved(x, inputs, 4 * inputs, 1, relu="Clip")
        inner = net.convolved(inner, 4 * inputs, 4 * inputs, 3, stride=stride, group=4 * inputs, relu="Clip")
        inner = net.convolved(inner, 4 * inputs, outputs, 1, relu="")
        x = net.op("Add", x, inner) if inputs == outputs else inner
    net.write(path, _image(32), net.linear(net.pooled(net.convolved(x, 24, 64, 1, relu="Clip")), 64, 10))


def inception_v3(path):
    net = _Net(4)
    x = net.convolved("x", 3, 16, 3, stride=2, pads=0)
    x = net.op("MaxPool", net.convolved(x, 16, 32, 3), kernel_shape=[3, 3], strides=[2, 2])
    pooled = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4, count_include_pad=1)
    branches = [
        net.convolved(x, 32, 16, 1),
        net.convolved(net.convolved(net.convolved(x, 32, 16, 1), 16, 16, (1, 7)), 16, 24, (7, 1)),
        net.convolved(net.convolved(x, 32, 16, 1), 16, 24, 5),
        net.convolved(pooled, 32, 8, 1),
    ]
    x = net.op("Concat", *branches, axis=1)
    split = net.convolved(x, 72, 32, 1)
    parts = [net.convolved(split, 32, 16, (1, 3)), net.convolved(split, 32, 16, (3, 1))]
    smaller = net.convolved(x, 72, 32, 3, stride=2, pads=0)
    x = net.op(
        "Concat",
        smaller,
        net.op("MaxPool", net.op("Concat", *parts, axis=1), kernel_shape=[3, 3], strides=[2, 2]),
        axis=1,
    )
    net.write(path, _image(35), net.linear(net.pooled(x), 64, 10))


def bert_base(path, count=12, width=32, heads=2):
    net = _Net(5)
    places = net.op("Gather", net.weight(16, width, scale=1.0), net.numbers(*range(count)))
    kinds = net.op("Gather", net.weight(2, width, scale=1.0), net.known(np.zeros((1, count)), np.int64))
    x = net.op("Add", net.op("Add", net.op("Gather", net.weight(50, width, scale=1.0), "x"), kinds), places)
    x = net.spelt_layer_norm(x, width)
    query, key, value = (net.product(x, width, width) for _ in range(3))
    scores = net.op("MatMul", net.heads(query, count, heads, width), net.heads(key, count, heads, width, turned=True))
    scores = net.op(
        "Add",
        net.op("Div", scores, net.scalar((width / heads) ** 0.5)),
        net.known(np.zeros((1, 1, 1, count)), np.float32),
    )
    inner = net.op("MatMul", net.op("Softmax", scores, axis=-1), net.heads(value, count, heads, width))
    x = net.spelt_layer_norm(net.op("Add", net.product(net.joined(inner, count, width), width, width), x), width)
    up = net.product(x, width, 4 * width)
    half = net.op("Add", net.op("Erf", net.op("Div", up, net.scalar(2**0.5))), net.scalar(1))
    down = net.product(net.op("Mul", net.op("Mul", up, half), net.scalar(0.5)), 4 * width, width)
    tokens = helper.make_tensor_value_info("x", TensorProto.INT64, [1, count])
    net.write(path, tokens, net.spelt_layer_norm(net.op("Add", down, x), width))


def gpt2(path, count=12, width=32, heads=2):
    net = _Net(6)
    x = net.op("Add", net.op("Gather", net.weight(50, width, scale=1.0), "x"), net.weight(count, width, scale=1.0))
    rows = net.op("Reshape", net.layer_norm(x, width), net.numbers(-1, width))
    wide = net.op("Gemm", rows, net.weight(width, 3 * width, scale=width**-0.5), net.weight(3 * width, scale=0.1))
    wide = net.op("Reshape", wide, net.numbers(1, count, 3 * width))
    query, key, value = net.op("Split", wide, net.numbers(width, width, width), outputs=3, axis=2)
    scores = net.op("MatMul", net.heads(query, count, heads, width), net.heads(key, count, heads, width, turned=True))
    scores = net.op("Mul", scores, net.scalar((width / heads) ** -0.5))
    # The mask as exporters write it: truth values of sums, compared, joined with others, cut to size.
    seen = net.op("CumSum", net.known(np.ones((1, count)), np.int64), net.known(1, np.int64))
    causal = net.op("LessOrEqual", net.op("Unsqueeze", seen, net.numbers(1)), net.op("Unsqueeze", seen, net.numbers(2)))
    mask = net.op("And", net.op("Unsqueeze", causal, net.numbers(1)), net.known(np.ones((1, 1, count, count)), bool))
    scores = net.op("Where", mask, scores, net.scalar(np.finfo(np.float32).min))
    inner = net.op("MatMul", net.op("Softmax", scores, axis=-1), net.heads(value, count, heads, width))
    x = net.op("Add", net.product(net.joined(inner, count, width), width, width), x)
    up = net.product(net.layer_norm(x, width), width, 4 * width)
    cubed = net.op("Mul", net.op("Pow", up, net.scalar(3)), net.scalar(0.044715))
    inside = net.op("Tanh", net.op("Mul", net.op("Add", up, cubed), net.scalar((2 / np.pi) ** 0.5)))
    activated = net.op("Mul", net.op("Mul", up, net.scalar(0.5)), net.op("Add", inside, net.scalar(1)))
    x = net.op("Add", x, net.product(activated, 4 * width, width))
    net.write(path, helper.make_tensor_value_info("x", TensorProto.INT64, [1, count]), net.layer_norm(x, width))


MODELS = (resnet18, resnet50, vgg16, mobilenet_v2, inception_v3, bert_base, gpt2)
