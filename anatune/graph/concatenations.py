"""Concatenations as kernels of their own for CPUs.

``anatune.concat`` takes matrices of as many rows and returns their rows behind each other.
"""

from __future__ import annotations

import math

from anatune.graph.nodes import Argument, Graph, Node, TensorType, Value, rewritten, tensor_type
from anatune.graph.simplify import reshaped

__all__ = ["CONCAT", "with_concatenations"]

CONCAT = "anatune.concat"
_DTYPE = "float32"


def with_concatenations(graph: Graph) -> Graph:
    """Return a graph whose concatenations are anatune's; nested ones are one."""
    uses = graph.uses()
    inner: dict[int, Node] = {}  # concatenations that only another one reads, by what stands in their place

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        own = node.of(arguments)
        if not isinstance(own.type, TensorType) or own.type.dtype != _DTYPE or not math.prod(own.type.shape):
            return own
        if own.op != "concat" or not isinstance(own.arguments[0], tuple):
            return own
        axis = _axis(own)
        parts: list[Value] = []
        for part in own.arguments[0]:
            nested = inner.get(id(part))
            parts += nested.arguments[0] if nested is not None and _axis(nested) == axis else [part]
        whole = Node(own.op, (tuple(parts),), own.type, own.attributes, own.kind)
        made = _concat(whole, parts, axis)
        if uses[id(node)] == 1:
            inner[id(made)] = whole
        return made

    return rewritten(graph, replace)


def _axis(node: Node) -> int:
    rank = len(tensor_type(node).shape)
    return int(node.attributes["axis"] or 0) % rank


def _concat(node: Node, parts: list[Value], axis: int) -> Value:
    shape = tensor_type(node).shape
    outer = math.prod(shape[:axis])
    matrices = tuple(
        reshaped(part, (outer, math.prod(tensor_type(part).shape[axis:])))
        for part in parts
        if math.prod(tensor_type(part).shape)
    )
    made = Node(CONCAT, matrices, TensorType((outer, math.prod(shape[axis:])), _DTYPE))
    return reshaped(made, shape)
