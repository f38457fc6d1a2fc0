"""What needs no computing at all: identities, reshapes of reshapes, the same thing twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from anatune.graph.folding import computed
from anatune.graph.nodes import (
    ITEM,
    Argument,
    Constant,
    Graph,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    rewritten,
    tensor_type,
)

__all__ = ["permuted", "reshaped", "simplified"]

_SAME = ("broadcast_to", "astype", "reshape", "copy", "wrap_param", "stop_lift_params")
"""Operators that return their first argument where its type is the result's."""
_RESHAPES = ("expand_dims", "squeeze", "flatten", "nn.batch_flatten")
_COMMUTES = ("add", "multiply", "maximum", "minimum")


def simplified(graph: Graph) -> Graph:
    """Return a graph without operators on constants, identities, and nodes that compute what another one does."""
    known: dict[Any, Value] = {}

    def replace(node: Node, arguments: tuple[Argument, ...]) -> Value:
        made = _simpler(node.of(arguments))
        if not isinstance(made, Node):
            return made
        return known.setdefault(_key(made), made)

    return rewritten(graph, replace)


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value in another shape of as many elements: itself, a constant, or one reshape."""
    kind = tensor_type(value)
    return _simpler(Node("reshape", (value, Shape(shape)), TensorType(tuple(shape), kind.dtype)))


def permuted(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order; where only dimensions of size 1 move, that is a reshape."""
    kind = tensor_type(value)
    shape = tuple(kind.shape[axis] for axis in axes)
    moved = [axis for axis in axes if kind.shape[axis] > 1]
    if moved == sorted(moved):
        return reshaped(value, shape)
    return _simpler(
        Node("permute_dims", (value,), TensorType(shape, kind.dtype), {"axes": axes}, "relax.attrs.PermuteDimsAttrs")
    )


def _simpler(node: Node) -> Value:
    """Return a node, or what is as good."""
    node = _in_one_form(node)
    first = node.arguments[0] if node.arguments else None
    if node.op == ITEM and isinstance(first, Node) and first.op == "nn.dropout" and node.attributes["index"] == 0:
        return first.arguments[0]  # type: ignore[no-any-return]
    if not isinstance(first, Value):
        return computed(node)
    if node.op in _SAME and first.type == node.type:
        return first
    if node.op == "reshape" and isinstance(first, Node) and first.op == "reshape":
        return reshaped(first.arguments[0], node.arguments[1])
    if node.op == "matmul" and isinstance(node.arguments[1], Constant):
        return _with_one_weight(node)
    if node.op == "permute_dims":
        axes = node.attributes["axes"]
        if axes == tuple(range(len(axes))):
            return first
        if isinstance(first, Node) and first.op == "permute_dims":
            return permuted(first.arguments[0], tuple(first.attributes["axes"][axis] for axis in axes))
    return computed(node)


def _with_one_weight(node: Node) -> Value:
    """Return a product of a batch with the one matrix that all of it has; else as it is.

    PyTorch repeats the weights of linear layers whose data is no contiguous batch of rows.
    """
    data, weight = node.arguments
    shape, kind = weight.array.shape, tensor_type(data).shape
    if len(shape) < 3 or kind[:-2] != tensor_type(node).shape[:-2]:
        return computed(node)
    first = weight.array[(0,) * (len(shape) - 2)]
    if not np.array_equal(weight.array, np.broadcast_to(first, shape)):
        return computed(node)
    return Node(node.op, (data, Constant(first)), node.type, node.attributes, node.kind)


def _in_one_form(node: Node) -> Node:
    """Return a node as later passes expect it: reshapes have one name, constants stand second."""
    if node.op in _RESHAPES and isinstance(node.arguments[0], Value):
        kind = tensor_type(node)
        return Node("reshape", (node.arguments[0], Shape(kind.shape)), kind)
    if node.op == "permute_dims" and node.attributes.get("axes") is None:
        rank = len(tensor_type(node).shape)
        return Node(node.op, node.arguments, node.type, {"axes": tuple(reversed(range(rank)))}, node.kind)
    if node.op == "permute_dims" and min(node.attributes["axes"], default=0) < 0:
        axes = node.attributes["axes"]
        return Node(node.op, node.arguments, node.type, {"axes": tuple(axis % len(axes) for axis in axes)}, node.kind)
    if node.op in _COMMUTES and isinstance(node.arguments[0], Constant):
        first, second = node.arguments
        if not isinstance(second, Constant):
            return node.of((second, first))
    return node


def _key(node: Node) -> Any:
    """Return what equal nodes have in common."""
    return (
        node.op,
        _words(node.arguments),
        node.type,
        tuple((name, str(value)) for name, value in node.attributes.items()),
    )


def _words(argument: Argument) -> Any:
    if isinstance(argument, Value):
        return id(argument)
    if isinstance(argument, Shape | Scalar):
        return tuple(argument)
    return tuple(_words(one) for one in argument) if isinstance(argument, tuple) else argument
