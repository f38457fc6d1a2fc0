"""Functions of 8-bit integers as tables: there are no more than 256 values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anatune.core.workload.access import INTEGER_RANGE
from anatune.core.workload.number_formats import BYTE_DTYPES
from anatune.network.graph.folding import value_of
from anatune.network.graph.nodes import (
    Array,
    Constant,
    Graph,
    Input,
    Node,
    Scalar,
    TensorType,
    Value,
    rewritten,
    tensor_type,
    values_in,
)
from anatune.network.graph.operators import QUANTIZE, operator_of

__all__ = ["with_tables"]

_DEAR = (
    "erf", "exp", "log", "lookup", "nn.gelu", "nn.gelu_tanh", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt", "tanh",
)  # fmt: skip
"""Functions that take as long as a look into a table, or longer."""
_LONG = 12
"""Operators between integers and integers that take longer than a look, too. LLVM worked for an hour on the formula of
a GELU with 40 of them, each rounded to 8 bits."""


def with_tables(graph: Graph) -> Graph:
    """Return a graph in which dear functions of 8-bit integers that become integers again are looked up.

    Such a function may round to 8 bits on its way, and may use what it has rounded more than once. Tables are exact:
    what they hold was computed in float64.
    """
    origins: dict[Value, Value] = {}
    """Value -> the integers that it is a function of, element by element."""

    def replace(node: Node) -> Value:
        origin = _origin(node, origins)
        if origin is None:
            return node
        made = _looked_up(node, origin) if node.op == QUANTIZE else None
        origins[made or node] = origin
        return made or node

    return rewritten(graph, replace)


def _is_byte(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in BYTE_DTYPES


def _origin(node: Node, origins: Mapping[Value, Value]) -> Value | None:
    """Return the one tensor of 8-bit integers that a node is a function of, element by element; None: there is none."""
    if operator_of(node).layout != "elementwise" or not isinstance(node.type, TensorType):
        return None
    found: Value | None = None
    for argument in node.arguments:
        if isinstance(argument, Scalar) or (isinstance(argument, Constant) and argument.array.size == 1):
            continue
        if not isinstance(argument, Node | Input) or argument.type == ():
            return None
        if not isinstance(argument.type, TensorType) or argument.type.shape != node.type.shape:
            return None
        own = origins.get(argument, argument if _is_byte(argument) else None)
        if own is None or found not in (None, own):
            return None
        found = own
    return found


def _looked_up(node: Node, origin: Value) -> Node | None:
    """Return a table of what integers become; None: computing it is as fast, or an operator is not known."""
    chain = _between(node, origin)
    if len(chain) < _LONG and not any(one.op in _DEAR for one in chain):
        return None
    low, high = INTEGER_RANGE[tensor_type(origin).dtype]
    codes = np.arange(low, high + 1).astype(tensor_type(origin).dtype)
    known: dict[Value, Array] = {origin: codes}
    for one in chain:
        found = value_of(one.of(one.arguments, TensorType(codes.shape, tensor_type(one).dtype)), known)
        if found is None:
            return None
        known[one] = found
    table = tuple(int(code) for code in known[node])
    return Node("lookup", (origin,), node.type, {"table": table})


def _between(node: Node, origin: Value) -> list[Node]:
    """Return the nodes that lead from some integers to a node, each behind its arguments."""
    chain: dict[Node, None] = {}

    def visit(one: Value) -> None:
        if one is origin or one in chain or not isinstance(one, Node):
            return
        for value in values_in(one.arguments):
            visit(value)
        chain[one] = None

    visit(node)
    return list(chain)
