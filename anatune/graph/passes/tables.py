"""Functions of 8-bit integers as tables: there are no more than 256 values."""

from __future__ import annotations

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.graph.folding import value_of
from anatune.graph.integers.scaled import scale_of
from anatune.graph.nodes import Array, Constant, Graph, Node, Scalar, TensorType, Value, rewritten, tensor_type
from anatune.graph.operators import DEQUANTIZE, QUANTIZE, operator_of

__all__ = ["with_tables"]

_DEAR = ("erf", "exp", "log", "nn.gelu", "nn.gelu_tanh", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt", "tanh")
"""Functions that take longer than a look into a table."""
_DEEPEST = 12
"""Operators between integers and integers."""


def with_tables(graph: Graph) -> Graph:
    """Return a graph in which dear functions of converted integers that become integers again are looked up.

    Tables are exact: what they hold was computed in float64.
    """

    def replace(node: Node) -> Value:
        if node.op != QUANTIZE or (scale := scale_of(node, QUANTIZE)) is None or not scale.is_one:
            return node
        chain: list[Node] = []
        source = _source(node, chain, 0)
        if source is None or not any(one.op in _DEAR for one in chain):
            return node
        data = source.arguments[0]
        low, high = INTEGER_RANGE[tensor_type(data).dtype]
        known: dict[int, Array] = {}
        codes = np.arange(low, high + 1)
        known[id(source)] = _numbers(codes, source)
        for one in chain:
            kind = TensorType(codes.shape, tensor_type(one).dtype)
            found = value_of(one.of(one.arguments, kind), known)
            if found is None:
                return node
            known[id(one)] = found
        table = tuple(int(code) for code in known[id(node)])
        return Node("lookup", (data,), node.type, {"table": table})

    return rewritten(graph, replace)


def _numbers(codes: Array, source: Node) -> Array:
    """Return the numbers that integers become."""
    scale = scale_of(source)
    assert scale is not None
    return np.asarray((codes - scale.zero.reshape(())) * scale.scale.reshape(()).astype(np.float64))


def _source(node: Node, chain: list[Node], depth: int) -> Node | None:
    """Return the one conversion of integers that a node is a function of, element by element; None: there is none.

    `chain` gets what is between, in order.
    """
    if depth > _DEEPEST or operator_of(node).layout != "elementwise":
        return None
    found: Node | None = None
    for argument in node.arguments:
        if isinstance(argument, Scalar) or (isinstance(argument, Constant) and argument.array.size == 1):
            continue
        if (
            not isinstance(argument, Node)
            or argument.type == ()
            or tensor_type(argument).shape != tensor_type(node).shape
        ):
            return None
        if argument.op == DEQUANTIZE:
            scale = scale_of(argument)
            own = argument if scale is not None and scale.is_one else None
        else:
            own = _source(argument, chain, depth + 1)
        if own is None or found not in (None, own):
            return None
        found = own
    if node not in chain:
        chain.append(node)
    return found
