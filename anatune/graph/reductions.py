"""Sums, means and extremes along dimensions next to each other, as kernels of their own for CPUs.

``anatune.reduction`` takes data (outer, length, inner) and returns (outer, inner); attribute ``kind`` is "sum", "mean",
"max" or "min".
"""

from __future__ import annotations

import math

from anatune.core.workload.orders import order_named
from anatune.graph.nodes import Argument, Graph, Node, TensorType, Value, rewritten, tensor_type
from anatune.graph.simplify import reshaped

__all__ = ["REDUCTION", "with_reductions"]

REDUCTION = "anatune.reduction"
_DTYPE = "float32"
_KINDS = ("sum", "mean", "max", "min")
_GLOBAL = {"nn.adaptive_avg_pool1d": 1, "nn.adaptive_avg_pool2d": 2}
"""Pools that are the mean of an image where their result has one element a channel -> dimensions of the image."""


def with_reductions(graph: Graph) -> Graph:
    """Return a graph whose reductions are anatune's."""

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        own = node.of(arguments)
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE:
            return own
        data = own.arguments[0] if own.arguments else None
        if own.op not in (*_KINDS, *_GLOBAL) or not isinstance(data, Value):
            return own
        axes = _axes(own, tensor_type(data).shape)
        return own if axes is None else _reduction(own, data, axes)

    return rewritten(graph, replace)


def _axes(node: Node, shape: tuple[int, ...]) -> range | None:
    """Return the dimensions that are reduced, None where they do not lie next to each other."""
    rank = len(shape)
    if node.op in _GLOBAL:
        order = order_named(node.attributes["layout"], _GLOBAL[node.op])
        if order is None:
            return None
        first = 1 if order.is_last else 2
        axes = range(first, first + _GLOBAL[node.op])
        return axes if all(tensor_type(node).shape[axis] == 1 for axis in axes) else None
    named = node.attributes["axis"]
    found = sorted(range(rank) if named is None else {int(axis) % rank for axis in named})
    kept = [axis for axis in found if shape[axis] != 1]
    if not kept or any(shape[axis] != 1 and axis not in kept for axis in range(kept[0], kept[-1])):
        return None
    return range(kept[0], kept[-1] + 1)


def _reduction(node: Node, data: Value, axes: range) -> Value:
    shape = tensor_type(data).shape
    if not math.prod(shape):
        return node
    outer, inner = math.prod(shape[: axes.start]), math.prod(shape[axes.stop :])
    length = math.prod(shape[axes.start : axes.stop])
    kind = node.op if node.op in _KINDS else "mean"
    made = Node(
        REDUCTION, (reshaped(data, (outer, length, inner)),), TensorType((outer, inner), _DTYPE), {"kind": kind}
    )
    return reshaped(made, tensor_type(node).shape)
