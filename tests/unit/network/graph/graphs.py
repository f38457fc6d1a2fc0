"""Small graphs, written by hand."""

import numpy as np

from anatune.network.graph.nodes import Constant, Graph, Input, Node, Shape, TensorType, select_result
from anatune.network.graph.passes.layouts import apply_layout, choose_order
from anatune.network.graph.passes.order import CPU, run_passes
from anatune.network.graph.passes.simplify import simplify

_CONVOLUTIONS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}


def prepared(graph):
    """Return a graph behind all passes but those for CPUs, with channels last wherever an operator can have them so."""
    whole = run_passes(CPU, graph)
    return in_orders(whole, choose_order(whole))


def in_orders(graph, choice):
    """Return a graph with its activations in the chosen orders."""
    return simplify(apply_layout(graph, choice))


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def constant(*shape, seed=0):
    return Constant(array(*shape, seed=seed))


def source(*shape, name="x"):
    return Input(name, TensorType(shape, "float32"))


def convolution(data, outputs, taps, *, stride=1, padding=0, groups=1, seed=0):
    n, channels, *sizes = data.type.shape
    rank = len(sizes)
    weight = constant(outputs, channels // groups, *[taps] * rank, seed=seed)
    shape = [(size + 2 * padding - taps) // stride + 1 for size in sizes]
    layout, kernel = _CONVOLUTIONS[rank]
    attributes = {
        "strides": (stride,) * rank,
        "padding": (padding,) * (2 * rank),
        "dilation": (1,) * rank,
        "groups": groups,
        "data_layout": layout,
        "kernel_layout": kernel,
        "out_layout": layout,
        "out_dtype": "float32",
    }
    kind = TensorType((n, outputs, *shape), "float32")
    return Node(f"nn.conv{rank}d", (data, weight), kind, attributes, f"relax.attrs.Conv{rank}DAttrs")


def batch_norm(data, seed=1):
    channels = data.type.shape[1]
    gamma, beta, mean = (constant(channels, seed=seed + place) for place in range(3))
    variance = Constant(np.abs(array(channels, seed=seed + 3)) + 0.5)
    kind = TensorType((channels,), "float32")
    attributes = {"axis": 1, "epsilon": 1e-5, "center": True, "scale": True, "momentum": 0.1, "training": False}
    norm = Node("nn.batch_norm", (data, gamma, beta, mean, variance), (data.type, kind, kind), attributes, "kind")
    return select_result(norm, 0)


def relu(data):
    return Node("nn.relu", (data,), data.type)


def add(first, second):
    return _broadcast("add", first, second)


def multiply(first, second):
    return _broadcast("multiply", first, second)


def _broadcast(op, first, second):
    shape = np.broadcast_shapes(first.type.shape, second.type.shape)
    return Node(op, (first, second), TensorType(shape, "float32"))


def matmul(first, second):
    kind = TensorType((*first.type.shape[:-1], second.type.shape[-1]), "float32")
    return Node("matmul", (first, second), kind, {"out_dtype": "float32"}, "relax.attrs.MatmulAttrs")


def reshape(data, *shape):
    return Node("reshape", (data, Shape(shape)), TensorType(shape, "float32"))


def max_pool(data):
    n, channels, height, width = data.type.shape
    attributes = {
        "pool_size": (3, 3), "strides": (2, 2), "dilation": (1, 1), "padding": (1, 1, 1, 1), "ceil_mode": False,
        "count_include_pad": False, "layout": "NCHW", "out_layout": "NCHW",
    }  # fmt: skip
    kind = TensorType((n, channels, (height - 1) // 2 + 1, (width - 1) // 2 + 1), "float32")
    return Node("nn.max_pool2d", (data,), kind, attributes, "relax.attrs.Pool2DAttrs")


def mean(data, *axes, keepdims=True):
    shape = [1 if a in axes else size for a, size in enumerate(data.type.shape) if keepdims or a not in axes]
    attributes = {"axis": axes, "keepdims": keepdims}
    return Node("mean", (data,), TensorType(tuple(shape), "float32"), attributes, "relax.attrs.StatisticalAttrs")


def concat(*values, axis=1):
    shape = list(values[0].type.shape)
    shape[axis] = sum(value.type.shape[axis] for value in values)
    kind = TensorType(tuple(shape), "float32")
    return Node("concat", (values,), kind, {"axis": axis}, "relax.attrs.ConcatAttrs")


def graph(*outputs, inputs):
    return Graph(tuple(inputs), outputs, is_tuple=len(outputs) > 1)


def residual_network():
    """Two residual blocks, the second with a convolution in its shortcut, then a classifier."""
    x = source(1, 3, 16, 16)
    stem = max_pool(relu(batch_norm(convolution(x, 8, 3, padding=1))))
    first = relu(batch_norm(convolution(stem, 8, 3, padding=1, seed=2), 11))
    first = relu(add(batch_norm(convolution(first, 8, 3, padding=1, seed=3), 21), stem))
    second = relu(batch_norm(convolution(first, 16, 3, stride=2, padding=1, seed=4), 31))
    shortcut = batch_norm(convolution(first, 16, 1, stride=2, seed=5), 41)
    second = relu(add(batch_norm(convolution(second, 16, 3, padding=1, seed=6), 51), shortcut))
    flat = reshape(mean(second, 2, 3), 1, 16)
    return graph(add(constant(10), matmul(flat, constant(16, 10))), inputs=[x])
