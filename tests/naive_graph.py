"""Graphs of models, computed operator by operator with NumPy in float64."""

import itertools

import numpy as np
from scipy import special

from anatune.measure.run.reference import reference
from anatune.network.graph.nodes import Constant, Node, Scalar, Shape, Value, map_argument
from anatune.network.graph.operators import ATTENTION, CONCAT, OPERATORS, PRODUCTS, SOFTMAX, WINDOW
from anatune.network.graph.products import workload_of


def run(graph, *inputs):
    """Return the outputs of a graph for arrays."""
    known = {value: _in_float64(array) for value, array in zip(graph.inputs, inputs, strict=True)}

    def value_of(argument):
        if isinstance(argument, Constant):
            return _in_float64(argument.array)
        if isinstance(argument, Value):
            return known[argument]
        if isinstance(argument, Shape | Scalar):
            return argument
        return tuple(value_of(one) for one in argument)

    for node in graph.nodes():
        assert isinstance(node, Node)
        arguments = [value_of(argument) for argument in node.arguments]
        compute = _of_integers(node) or _FUNCTIONS.get(node.op) or _by_meaning(node)
        with np.errstate(invalid="ignore"):  # of rows of nothing but -inf
            found = known[node] = compute(node.attributes, *arguments)
        if not isinstance(found, tuple):
            assert found.shape == node.type.shape, node
    return [value_of(value) for value in graph.outputs]


def _in_float64(array):
    return array if array.dtype.kind in "bui" else array.astype(np.float64)


def _by_meaning(node):
    """Return what computes a node as the package's operators mean it; integers and truth values keep their dtypes."""

    def compute(attributes, *arguments):
        plain = map_argument(arguments, lambda one: one.value if isinstance(one, Scalar) else one)
        own = {name: value for name, value in attributes.items() if name not in ("dtype", "assume_inbound")}
        found = np.asarray(OPERATORS[node.op].compute(*plain, **own))
        return found.astype("float64" if node.type.dtype.startswith("float") else node.type.dtype)

    return compute


def _of_integers(node):
    """Return what computes a product of 8-bit integers, as its workload says; None: it is none."""
    if node.op not in PRODUCTS or node.arguments[0].type.dtype not in ("int8", "uint8"):
        return None
    workload = workload_of(node)
    tensors = [access.tensor for access in workload.operands]
    return lambda _, *operands: reference(workload, dict(zip(tensors, operands, strict=True))).astype(
        "float64" if node.type.dtype == "float32" else node.type.dtype
    )


def _convolution(attributes, data, weight, strides, padding, dilation, groups):
    """Convolve data [n, c, ...] with weight [k, c / groups, ...]."""
    rank = data.ndim - 2
    before, after = padding[:rank], padding[rank:]
    data = np.pad(data, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    taps = weight.shape[2:]
    sizes = [(data.shape[2 + a] - (taps[a] - 1) * dilation[a] - 1) // strides[a] + 1 for a in range(rank)]
    per_group = weight.shape[0] // groups
    out = np.zeros((data.shape[0], weight.shape[0], *sizes))
    for group in range(groups):
        own = data[:, group * weight.shape[1] : (group + 1) * weight.shape[1]]
        kernels = weight[group * per_group : (group + 1) * per_group]
        for tap in itertools.product(*map(range, taps)):
            cut = tuple(
                slice(tap[a] * dilation[a], tap[a] * dilation[a] + (sizes[a] - 1) * strides[a] + 1, strides[a])
                for a in range(rank)
            )
            part = np.einsum("nc...,kc->nk...", own[(..., *cut)], kernels[(..., *tap)])
            out[:, group * per_group : (group + 1) * per_group] += part
    return out


def _plain_convolution(attributes, data, weight):
    return _convolution(
        attributes, data, weight, *(attributes[n] for n in ("strides", "padding", "dilation", "groups"))
    )


def _fused(attributes, result, operands, channels):
    operands = list(operands)
    for step in attributes["epilogue"]:
        if step == "bias":
            result = result + operands.pop(0).reshape([-1 if a == channels else 1 for a in range(result.ndim)])
        elif step == "add":
            result = result + operands.pop(0)
        else:
            result = _ACTIVATIONS[step](result)
    assert not operands
    return result


_ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "silu": lambda x: x * special.expit(x),
    "gelu": lambda x: x * (1 + special.erf(x / 2**0.5)) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


def _own_convolution(attributes, data, weight, *operands):
    read, _, written = attributes["layout"].partition(":")
    written = written or read
    rank = len(attributes["strides"])
    found = _plain_convolution(attributes, _channels_first(data, read), _plain_weight(weight, read, written, rank))
    steps = [step for step in attributes["epilogue"] if step in ("bias", "add")]
    plain = [
        one.reshape(-1) if step == "bias" else _channels_first(one, written)
        for step, one in zip(steps, operands, strict=True)
    ]
    return _in_order(_fused(attributes, found, plain, 1), written)


def _channels_first(array, order):
    if order.endswith("c"):
        array = np.moveaxis(array, -1, 2)
        return array.reshape(array.shape[0], -1, *array.shape[3:])
    return np.moveaxis(array, -1, 1) if order.endswith("C") else array


def _in_order(array, order):
    """Return an array with its channels first in another order."""
    if order.endswith("c"):
        block = int(order.lstrip("NCDHW")[:-1])
        blocks = array.reshape(array.shape[0], -1, block, *array.shape[2:])
        return np.moveaxis(blocks, 2, -1)
    return np.moveaxis(array, 1, -1) if order.endswith("C") else array


def _plain_weight(weight, read, written, rank):
    """Return a weight as [k, c, ...]."""
    if written.endswith("C"):
        weight = weight.reshape(*weight.shape[:rank], -1, weight.shape[-1])
        return np.transpose(weight, (rank + 1, rank, *range(rank)))
    if written.endswith("c"):
        weight = np.moveaxis(weight, -1, 1)
        weight = weight.reshape(-1, *weight.shape[2:])
    if weight.ndim > rank + 2:
        weight = np.moveaxis(weight, -1, 2)
        weight = weight.reshape(weight.shape[0], -1, *weight.shape[3:])
    return weight


def _batch_norm(attributes, data, gamma, beta, mean, variance):
    shape = [-1 if a == attributes["axis"] else 1 for a in range(data.ndim)]
    scaled = (data - mean.reshape(shape)) / np.sqrt(variance + attributes["epsilon"]).reshape(shape)
    return scaled * gamma.reshape(shape) + beta.reshape(shape), mean, variance


def _softmax(data):
    powers = np.exp(data - data.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _layer_norm(attributes, data, gamma=1.0, beta=0.0):
    axes = tuple(attributes.get("axes", (-1,)))
    away = data - data.mean(axis=axes, keepdims=True)
    scaled = away / np.sqrt((away**2).mean(axis=axes, keepdims=True) + attributes["epsilon"])
    return scaled * (gamma if attributes.get("scale", True) else 1) + (beta if attributes.get("center", True) else 0)


def _windows(attributes, array, number):
    """Return what windows read of an array with its channels first, their elements last; `number` is the padding."""
    rank, padding = array.ndim - 2, attributes["padding"]
    array = np.pad(array, [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)], constant_values=number)
    reach = [(size - 1) * step + 1 for size, step in zip(attributes["pool_size"], attributes["dilation"], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(array, reach, tuple(range(2, 2 + rank)))
    places, steps = (tuple(slice(None, None, one) for one in attributes[name]) for name in ("strides", "dilation"))
    return windows[(slice(None), slice(None), *places, *steps)]


def _max_pool(attributes, data):
    data = _channels_first(data, attributes["layout"])
    least = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    found = _windows(attributes, data, least).max(axis=tuple(range(2 - data.ndim, 0)))
    return _in_order(found, attributes["layout"])


def _avg_pool(attributes, data):
    data = _channels_first(data, attributes["layout"])
    axes = tuple(range(2 - data.ndim, 0))
    counts = np.prod(attributes["pool_size"])
    if not attributes["count_include_pad"]:
        counts = _windows(attributes, np.ones_like(data), 0.0).sum(axis=axes)
    return _in_order(_windows(attributes, data, 0.0).sum(axis=axes) / counts, attributes["layout"])


def _adaptive_pool(attributes, data):
    data = _channels_first(data, attributes["layout"])
    counts = attributes["output_size"]
    parts = [size // count for size, count in zip(data.shape[2:], counts, strict=True)]
    split = data.reshape(*data.shape[:2], *(n for pair in zip(counts, parts, strict=True) for n in pair))
    found = split.mean(axis=tuple(range(3, 3 + 2 * len(parts), 2)))
    return _in_order(found, attributes["layout"])


def _split(attributes, data):
    sections = attributes["indices_or_sections"]
    places = sections if isinstance(sections, int) else [int(place) for place in sections]
    return tuple(np.split(data, places, axis=int(attributes["axis"])))


def _own(name):
    return lambda attributes, *arguments: OPERATORS[name].compute(*arguments, **attributes)


_FUNCTIONS = {
    "split": _split,
    "add": lambda _, a, b: a + b,
    "multiply": lambda _, a, b: a * b,
    "sigmoid": lambda _, a: 1.0 / (1.0 + np.exp(-a)),
    "item": lambda own, a: a[own["index"]],
    "reshape": lambda _, a, shape: a.reshape(shape),
    "permute_dims": lambda own, a: np.transpose(a, own["axes"]),
    "mean": lambda own, a: a.mean(axis=own["axis"], keepdims=own["keepdims"]),
    "concat": lambda own, arrays: np.concatenate(arrays, own["axis"]),
    "matmul": lambda _, a, b: a @ b,
    **{f"nn.{name}": lambda _, a, f=function: f(a) for name, function in _ACTIVATIONS.items()},
    "divide": lambda _, a, b: a / b,
    "erf": lambda _, a: special.erf(a),
    "power": lambda _, a, b: a**b,
    "tanh": lambda _, a: np.tanh(a),
    "nn.softmax": lambda _, a: _softmax(a),
    "nn.layer_norm": _layer_norm,
    SOFTMAX: _own(SOFTMAX),
    "anatune.layer_norm": _layer_norm,
    "nn.batch_norm": _batch_norm,
    **{f"nn.max_pool{rank}d": _max_pool for rank in (1, 2, 3)},
    **{f"nn.avg_pool{rank}d": _avg_pool for rank in (1, 2, 3)},
    **dict.fromkeys(("nn.adaptive_avg_pool1d", "nn.adaptive_avg_pool2d"), _adaptive_pool),
    "sum": lambda own, a: a.sum(axis=own["axis"], keepdims=own["keepdims"]),
    "max": lambda own, a: a.max(axis=own["axis"], keepdims=own["keepdims"]),
    "min": lambda own, a: a.min(axis=own["axis"], keepdims=own["keepdims"]),
    ATTENTION: _own(ATTENTION),
    CONCAT: lambda own, *parts: np.concatenate(parts, axis=1),
    WINDOW: _own(WINDOW),
    **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), _plain_convolution),
    "anatune.convolution": _own_convolution,
    "anatune.matmul": lambda own, a, b, *more: _fused(own, a @ b, more, 1),
    "anatune.batch_matmul": lambda own, a, b, *more: _fused(own, a @ b, more, 2),
}
