"""Quantise float32 networks: convert to 8-bit integers and back where the ranges of values are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anatune.network.graph.integers.scaled import QuantisationScale, dequantize, quantize
from anatune.network.graph.nodes import (
    Constant,
    Graph,
    Input,
    Node,
    TensorType,
    Value,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTIONS
from anatune.network.graph.passes.integers import MAXIMA, MOVES
from anatune.network.graph.passes.scaling import channel_axis, channel_values

__all__ = ["QuantisedLayer", "Sites", "choose_scale", "find_sites", "insert_conversions"]

_LEVELS = 255
_RECTIFIERS = ("nn.relu", "nn.relu6", "clip", "maximum", "minimum")


class QuantisedLayer(NamedTuple):
    """A product with constant weights, and the last node that is fused into it: a bias, a rectifier."""

    product: Node
    end: Node


class Sites(NamedTuple):
    """The places where a graph is quantised.

    Attributes
    ----------
    layers : list of QuantisedLayer
    tensors : list of Value
        The values that become integers: operands of products, and results of convolutions.
    """

    layers: list[QuantisedLayer]
    tensors: list[Value]


def find_sites(graph: Graph) -> Sites:
    """Return the places where a graph is quantised; batch norms have been folded into weights before."""
    readers = graph.only_readers()
    layers: list[QuantisedLayer] = []
    tensors: dict[Value, None] = {}
    for node in graph.nodes():
        if not _is_product(node):
            continue
        end = node
        while (user := readers.get(end)) is not None and _is_fused(user, end):
            end = user
        layers.append(QuantisedLayer(node, end))
        data = node.arguments[0]
        if not isinstance(data, Constant):
            tensors[data] = None
        if node.op in CONVOLUTIONS and end not in graph.outputs:
            tensors[end] = None
    return Sites(layers, list(tensors))


def _is_product(node: Node) -> bool:
    is_one = node.op in CONVOLUTIONS or node.op == "matmul"
    return is_one and tensor_type(node).dtype == "float32" and channel_axis(node) is not None


def _is_fused(user: Node, before: Node) -> bool:
    """Return whether a node is fused into the product before it."""
    if not isinstance(user.type, TensorType) or user.type != before.type:
        return False
    if user.op == "add":
        axis = 1 if before.op in CONVOLUTIONS else len(user.type.shape) - 1
        return any(channel_values(argument, user.type.shape, axis) is not None for argument in user.arguments)
    return user.op in _RECTIFIERS and all(
        isinstance(argument, Constant) or not isinstance(argument, Value) for argument in user.arguments[1:]
    )


def choose_scale(low: float, high: float) -> QuantisationScale:
    """Return the scale that maps numbers from `low` to `high` to uint8; the range includes 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / _LEVELS or 1.0)
    return QuantisationScale(np.asarray(scale), np.asarray(np.clip(np.rint(-low / scale), 0, _LEVELS), np.int32))


def insert_conversions(graph: Graph, scales: Mapping[Value, QuantisationScale]) -> tuple[Graph, dict[Value, Value]]:
    """Return a graph that quantises some values, and the weights of the products that read them.

    Weights get a scale for each output, so that the largest weight of an output becomes 127 or -127.

    Parameters
    ----------
    scales : mapping of Value to QuantisationScale

    Returns
    -------
    Graph, dict of Value to Value
        The graph, and the new value of each old value.
    """
    all_scales = dict(scales)
    new: dict[Value, Value] = {}

    def convert(value: Value, scale: QuantisationScale) -> Value:
        return dequantize(quantize(value, scale, "uint8"), scale)

    first = {value: convert(value, scales[value]) for value in graph.inputs if value in scales}

    def replace(node: Node, old: Node) -> Value:
        arguments = tuple(first.get(one, one) if isinstance(one, Input) else one for one in node.arguments)
        result: Value = node.of(arguments)
        if _is_product(old) and old.arguments[0] in all_scales:
            result = node.of((arguments[0], _quantised_weight(old)))
        if old in all_scales:
            source = old.arguments[0] if old.arguments else None
            if old.op in (*MOVES, *MAXIMA) and source in all_scales:  # moves keep the integers
                all_scales[old] = all_scales[source]
            result = convert(result, all_scales[old])
        return result

    return rewrite_with_originals(graph, replace, new), new


def _quantised_weight(node: Node) -> Node:
    """Return a product's weights as integers with a scale for each output."""
    array = node.arguments[1].array
    axis = 0 if node.op in CONVOLUTIONS else array.ndim - 1
    others = tuple(dimension for dimension in range(array.ndim) if dimension != axis)
    largest = np.abs(array).max(axis=others, keepdims=True).astype(np.float64)
    scale = (np.where(largest > 0, largest, 1.0) / 127).astype(np.float32)
    integers = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
    return dequantize(Constant(integers), QuantisationScale(scale, np.zeros((), np.int32)))
