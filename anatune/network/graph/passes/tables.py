"""Replace functions of 8-bit integers by tables of at most 256 entries."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import evaluate_node
from anatune.network.graph.nodes import (
    Array,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    TensorType,
    Value,
    iterate_values,
    rewrite_graph,
    tensor_type,
)
from anatune.network.graph.operators import QUANTIZE, find_operator

__all__ = ["replace_by_tables"]

_DEAR = (
    "erf", "exp", "log", "lookup", "nn.gelu", "nn.gelu_tanh", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt", "tanh",
)  # fmt: skip
"""Functions that take at least as long as a table lookup."""
_LONG = 12
"""The number of operators from integers to integers that take longer than a lookup. LLVM took an hour to compile GELU
as a formula of 40 operators, each rounded to 8 bits."""


def replace_by_tables(graph: Graph) -> Graph:
    """Return a graph in which expensive functions from 8-bit integers to 8-bit integers are table lookups.

    Such a function may round to 8 bits in between, and may read a rounded value more than once. Tables are exact: they
    are computed in float64.
    """
    origins: dict[Value, Value] = {}
    """Value -> the integers that it is an elementwise function of."""

    def replace(node: Node) -> Value:
        origin = _find_origin(node, origins)
        if origin is None:
            return node
        lookup = _make_lookup(node, origin) if node.op == QUANTIZE else None
        origins[lookup or node] = origin
        return lookup or node

    return rewrite_graph(graph, replace)


def _is_byte(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in BYTE_DTYPES


def _find_origin(node: Node, origins: Mapping[Value, Value]) -> Value | None:
    """Return the only 8-bit integer tensor that a node is an elementwise function of, or None."""
    if find_operator(node).layout != "elementwise" or not isinstance(node.type, TensorType):
        return None
    origin: Value | None = None
    for argument in node.arguments:
        if isinstance(argument, Scalar) or (isinstance(argument, Constant) and argument.array.size == 1):
            continue
        if not isinstance(argument, Node | Input) or argument.type == ():
            return None
        if not isinstance(argument.type, TensorType) or argument.type.shape != node.type.shape:
            return None
        argument_origin = origins.get(argument, argument if _is_byte(argument) else None)
        if argument_origin is None or origin not in (None, argument_origin):
            return None
        origin = argument_origin
    return origin


def _make_lookup(node: Node, origin: Value) -> Node | None:
    """Return a table lookup for a node, or None if computing it is as fast or an operator cannot be evaluated."""
    chain = _nodes_between(node, origin)
    if len(chain) < _LONG and not any(one.op in _DEAR for one in chain):
        return None
    low, high = INTEGER_RANGE[tensor_type(origin).dtype]
    codes = np.arange(low, high + 1).astype(tensor_type(origin).dtype)
    arrays: dict[Value, Array] = {origin: codes}
    for link in chain:
        array = evaluate_node(link.of(link.arguments, TensorType(codes.shape, tensor_type(link).dtype)), arrays)
        if array is None:
            return None
        arrays[link] = array
    table = tuple(int(code) for code in arrays[node])
    return Node("lookup", (origin,), node.type, {"table": table})


def _nodes_between(node: Node, origin: Value) -> list[Node]:
    """Return the nodes that lead from some integers to a node, each after its arguments."""
    chain: dict[Node, None] = {}

    def visit(link: Value) -> None:
        if link is origin or link in chain or not isinstance(link, Node):
            return
        for value in iterate_values(link.arguments):
            visit(value)
        chain[link] = None

    visit(node)
    return list(chain)
