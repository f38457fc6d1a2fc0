"""What one operator makes of given operands, in float64: which one of a compiled model's is wrong.

Products are no part of this: `anatune.measure.run.reference` computes them from their workloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from anatune.core.activations import ACTIVATIONS
from anatune.graph.attention import ATTENTION
from anatune.graph.concatenations import CONCAT
from anatune.graph.folding import computed, layer_norm
from anatune.graph.nodes import Argument, Array, Constant, Node, Scalar, Shape, TensorType, Value
from anatune.graph.reductions import REDUCTION
from anatune.graph.rows import LAYER_NORM, MAP, SOFTMAX
from anatune.graph.windows import WINDOW

__all__ = ["FUNCTIONS", "value_of"]


def value_of(node: Node, operands: Mapping[int, Array]) -> Array | None:
    """Return a node's result, floating-point numbers in float64; None: what its operator computes is not known here.

    Parameters
    ----------
    operands : mapping of int to ndarray
        By ``id`` of each value that the node reads and that is no constant.
    """
    if not isinstance(node.type, TensorType):
        return None
    arguments = tuple(_known(argument, operands) for argument in node.arguments)
    function = FUNCTIONS.get(node.op)
    with np.errstate(all="ignore"):
        if function is not None:
            return np.asarray(function(node.attributes, *(one.array for one in arguments)))
        kind = TensorType(node.type.shape, "float64" if node.type.dtype.startswith("float") else node.type.dtype)
        found = computed(Node(node.op, arguments, kind, node.attributes, node.kind))
    return found.array if isinstance(found, Constant) else None


def _known(argument: Argument, operands: Mapping[int, Array]) -> Any:
    """Return an argument with arrays in the place of values."""
    if isinstance(argument, Value):
        array = argument.array if isinstance(argument, Constant) else operands[id(argument)]
        return Constant(array.astype(np.float64) if array.dtype.kind == "f" else array)
    if isinstance(argument, Scalar) and argument.dtype.startswith("float"):
        return Scalar(argument.value, "float64")
    if isinstance(argument, tuple) and not isinstance(argument, Shape | Scalar):
        return tuple(_known(one, operands) for one in argument)
    return argument


def _softmax(attributes: Mapping[str, Any], data: Array, mask: Array | None = None) -> Array:
    scores = data * attributes["scale"]
    if mask is not None:
        rows, block = np.arange(len(scores)), attributes["block"]
        own = len(mask) // (len(scores) // block)
        scores = scores + mask[rows // block * own % len(mask) + rows % own]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    found = powers / powers.sum(axis=-1, keepdims=True)
    if attributes.get("zero_rows", False):
        found = np.where(np.isneginf(scores).all(axis=-1, keepdims=True), 0.0, found)
    return np.asarray(found)


def _map(attributes: Mapping[str, Any], data: Array) -> Array:
    return np.asarray(_ELEMENTARY[attributes["function"]](data))


def _window(attributes: Mapping[str, Any], data: Array, *operands: Array) -> Array:
    kind, sizes, more = attributes["kind"], data.shape[2:4], list(operands)
    weight = more.pop(0) if kind == "depthwise" else None
    shape = (*data.shape[:2], *attributes["outputs"], data.shape[4])
    found = np.full(shape, -np.inf if kind == "max" else 0.0)
    count = np.zeros((*attributes["outputs"], 1))
    for taps in np.ndindex(attributes["window"]):
        inner: list[NDArray[np.int64]] = []
        whole: list[NDArray[np.int64]] = []
        for axis in range(2):
            places = np.arange(attributes["outputs"][axis])
            at = places * attributes["strides"][axis] + taps[axis] * attributes["dilation"][axis]
            at -= attributes["before"][axis]
            is_inside = (at >= 0) & (at < sizes[axis])
            inner.append(at[is_inside])
            whole.append(places[is_inside])
        part = data[:, :, inner[0][:, None], inner[1][None]]
        y, x = whole[0][:, None], whole[1][None]
        if kind == "max":
            found[:, :, y, x] = np.maximum(found[:, :, y, x], part)
        else:
            found[:, :, y, x] += part if weight is None else part * weight[:, taps[0], taps[1], None, None]
        count[y, x] += 1
    if kind == "mean":
        found /= math.prod(attributes["window"]) if attributes["counts_padding"] else np.maximum(count, 1)
    for step in attributes["epilogue"]:
        if step == "bias":
            found += more.pop(0)[:, None, None]
        else:
            found = found + more.pop(0) if step == "add" else ACTIVATIONS[step](found)
    return found


def _reduction(attributes: Mapping[str, Any], data: Array) -> Array:
    return np.asarray(getattr(np, attributes["kind"])(data, axis=1))


_ELEMENTARY: dict[str, Callable[[Array], Array]] = {
    "erf": special.erf,
    "exp": np.exp,
    "sigmoid": special.expit,
    "tanh": np.tanh,
    **ACTIVATIONS,
}


def _attention(own: Mapping[str, Any], query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    sizes = [(own["queries"], own["dim"]), (own["keys"], own["dim"]), (own["keys"], own["value_dim"])]
    heads = np.indices((own["batch"], own["heads"]))[..., None, None]
    found = []
    for array, (rows, columns), (offset, *strides) in zip((query, key, value), sizes, own["places"], strict=True):
        places = zip(strides, (*heads, np.arange(rows)[:, None]), strict=True)
        found.append(array.reshape(-1)[offset + np.arange(columns) + sum(stride * place for stride, place in places)])
    scores = found[0] @ np.swapaxes(found[1], -1, -2)
    powers = _softmax(own, scores.reshape(-1, own["keys"]), mask).reshape(scores.shape)
    return np.asarray(np.swapaxes(powers @ found[2], 1, 2).reshape(own["batch"] * own["queries"], -1))


FUNCTIONS: dict[str, Callable[..., Array]] = {
    LAYER_NORM: lambda own, *given: layer_norm(*given, **own),
    MAP: _map,
    CONCAT: lambda _, *parts: np.concatenate(parts, axis=1),
    REDUCTION: _reduction,
    SOFTMAX: _softmax,
    ATTENTION: _attention,
    WINDOW: _window,
}
"""Operator -> its attributes and operands' values -> the result; what is not here is known to `folding`, or nobody."""
