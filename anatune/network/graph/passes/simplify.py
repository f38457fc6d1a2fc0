"""What needs no computing at all: identities, reshapes of reshapes, the same thing twice."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np

from anatune.network.graph.folding import computed
from anatune.network.graph.nodes import (
    ITEM,
    Argument,
    Array,
    Constant,
    Graph,
    Node,
    Scalar,
    Shape,
    TensorType,
    Value,
    is_unknown,
    mapped,
    once,
    rewritten,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, applied, operator_of

__all__ = ["permuted", "reshaped", "simplified", "source_of"]


def simplified(graph: Graph) -> Graph:
    """Return a graph without operators on constants, identities, nodes that compute what another one does, and twins.

    Twins are constants of the same values: importers copy weights that are read several times, and so do passes.
    """
    known: dict[Hashable, Value] = {}
    constants: dict[Hashable, list[Constant]] = {}

    def shared(argument: Argument) -> Argument:
        return _twin(argument, constants) if isinstance(argument, Constant) else argument

    def replace(node: Node) -> Value:
        own = node.of(mapped(node.arguments, shared))
        key = _key(own)
        if key not in known:
            made = _simpler(own)
            known[key] = known.setdefault(_key(made), made) if isinstance(made, Node) else shared(made)
        return known[key]

    return rewritten(graph, replace)


def _twin(value: Constant, constants: dict[Hashable, list[Constant]]) -> Constant:
    """Return the first one of equal constants; `constants` has those that there were, by type and some elements."""
    array = value.array
    if is_unknown(array):
        return value
    some = array[tuple(slice(None, None, max(1, size // 3)) for size in array.shape)]
    alike = constants.setdefault((value.type, some.tobytes()), [])
    for one in alike:
        if one is value or _same_bits(one.array, array):
            return one
    alike.append(value)
    return value


def _may_be_nan(value: Argument) -> bool:
    """Whether a tensor's elements may differ from themselves."""
    return isinstance(value, Value) and "float" in tensor_type(value).dtype


def _same_bits(first: Array, second: Array) -> bool:
    """Whether arrays of one type hold the same numbers, not a number and signs of zeros included."""
    if first.strides == second.strides:  # what both repeat is looked at once
        first, second = once(first), once(second)
    return first.tobytes() == second.tobytes()


def reshaped(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value in another shape of as many elements: itself, a constant, or one reshape."""
    return _simpler(applied("reshape", value, Shape(shape)))


def permuted(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order."""
    return _simpler(applied("permute_dims", value, axes=axes))


def _simpler(node: Node) -> Value:
    """Return a node, or what is as good."""
    node = _with_parts(_in_one_form(node))
    first = node.arguments[0] if node.arguments else None
    if node.op == ITEM and isinstance(first, Node) and first.op == "nn.dropout" and node.attributes["index"] == 0:
        return first.arguments[0]  # type: ignore[no-any-return]
    if node.op == ITEM and isinstance(first, Node) and first.op == "split":
        return _part(node, first)
    if node.op == "concat" and isinstance(first, tuple) and len(first) == 1:
        return first[0]  # type: ignore[no-any-return]
    if not isinstance(first, Value):
        return computed(node)
    if operator_of(node).is_conversion and first.type == node.type:
        return first
    if node.op == "reshape" and isinstance(first, Node) and first.op == "reshape":
        return reshaped(first.arguments[0], node.arguments[1])
    if node.op == "matmul" and isinstance(node.arguments[1], Constant):
        return _with_one_weight(node)
    if node.op == "permute_dims":
        axes = node.attributes["axes"]
        moved = [axis for axis in axes if tensor_type(first).shape[axis] > 1]
        if moved == sorted(moved):  # dimensions of size 1 alone move
            return reshaped(first, tensor_type(node).shape)
        if isinstance(first, Node) and first.op == "permute_dims":
            return permuted(first.arguments[0], tuple(first.attributes["axes"][axis] for axis in axes))
    return computed(node)


def source_of(value: Value) -> Value:
    """Return what a value is a reshape of: the value itself where it is none."""
    while isinstance(value, Node) and value.op == "reshape":
        value = value.arguments[0]
    return value


def _part(node: Node, split: Node) -> Value:
    """Return a part of a tensor: computed where that is known; a slice where others are empty, which stops TVM."""
    data, kinds = split.arguments[0], split.type
    assert not isinstance(kinds, TensorType)
    if not isinstance(data, Constant) and all(math.prod(kind.shape) for kind in kinds):
        return node
    axis = split.attributes["axis"] % len(tensor_type(data).shape)
    ends = np.cumsum([kind.shape[axis] for kind in kinds])
    end, size = int(ends[node.attributes["index"]]), tensor_type(node).shape[axis]
    numbers = tuple((Scalar(number, "int64"),) for number in (axis, end - size, end, 1))
    kind = OPERATORS["strided_slice"].kind
    return computed(Node("strided_slice", (data, *numbers), node.type, {"assume_inbound": False}, kind))


def _with_parts(node: Node) -> Node:
    """Return a concatenation without tensors that have no elements; other nodes as they are."""
    if node.op != "concat" or not isinstance(node.arguments[0], tuple):
        return node
    parts = tuple(part for part in node.arguments[0] if math.prod(tensor_type(part).shape))
    return node.of((parts,)) if 0 < len(parts) < len(node.arguments[0]) else node


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
    return node.of((data, Constant(first)))


def _in_one_form(node: Node) -> Node:
    """Return a node as later passes expect it: reshapes have one name, constants stand second.

    That something differs from itself says that it is NaN; TVM takes it for false.
    """
    operator = operator_of(node)
    if operator.is_reshape and isinstance(node.arguments[0], Value):
        return applied("reshape", node.arguments[0], Shape(tensor_type(node).shape))
    if node.op == "permute_dims":
        rank, axes = len(tensor_type(node).shape), node.attributes.get("axes")
        order = tuple(reversed(range(rank)) if axes is None else (axis % rank for axis in axes))
        return node if order == axes else applied(node.op, *node.arguments, axes=order)
    if node.op in ("equal", "not_equal") and node.arguments[0] is node.arguments[1] and _may_be_nan(node.arguments[0]):
        differs = applied("isnan", node.arguments[0])
        return differs if node.op == "not_equal" else applied("logical_not", differs)
    if operator.commutes and isinstance(node.arguments[0], Constant):
        first, second = node.arguments
        if not isinstance(second, Constant):
            return node.of((second, first))
    return node


def _key(node: Node) -> Hashable:
    """Return what equal nodes have in common."""
    return (
        node.op,
        _words(node.arguments),
        node.type,
        tuple((name, str(value)) for name, value in node.attributes.items()),
    )


def _words(argument: Argument) -> Hashable:
    if isinstance(argument, Value):
        return argument
    if isinstance(argument, Shape | Scalar):
        return tuple(argument)
    return tuple(_words(one) for one in argument) if isinstance(argument, tuple) else argument
