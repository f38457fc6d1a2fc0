"""Divisors of whole numbers that may be zero, which kernels of a CPU are to refuse before anything divides by them."""

from __future__ import annotations

import numpy as np

from anatune.graph.nodes import Constant, Graph, Node, Scalar, Value, is_unknown, rewritten, tensor_type
from anatune.graph.operators import DIVISIONS, DIVISOR

__all__ = ["with_checked_divisors"]


def with_checked_divisors(graph: Graph) -> Graph:
    """Return a graph whose divisions of whole numbers read divisors that were looked at, unless none can be zero."""
    checked: dict[tuple[int, str], Node] = {}

    def replace(node: Node) -> Value:
        if node.op not in DIVISIONS or "int" not in tensor_type(node).dtype or 0 in tensor_type(node).shape:
            return node
        first, second = node.arguments
        if isinstance(second, Scalar):
            if not isinstance(second.value, int) or second.value != 0:
                return node
            second = Constant(np.zeros((), tensor_type(node).dtype))
        assert isinstance(second, Value)
        if isinstance(second, Constant) and not is_unknown(second.array) and second.array.all():
            return node
        key = (id(second), node.op)
        if key not in checked:
            checked[key] = Node(DIVISOR, (second,), second.type, {"operator": node.op})
        return node.of((first, checked[key]), tensor_type(node))

    return rewritten(graph, replace)
