"""Remove operators that compute nothing: identities, reshapes of reshapes, repeated computations."""

from __future__ import annotations

import math
from collections.abc import Hashable

import numpy as np

from anatune.network.graph.folding import fold
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
    drop_repeats,
    is_unknown,
    map_argument,
    rewrite_graph,
    tensor_type,
)
from anatune.network.graph.operators import OPERATORS, apply_operator, find_operator

__all__ = ["permute_value", "reshape_value", "simplify", "source_of"]


def simplify(graph: Graph) -> Graph:
    """Return a graph without operators on constants, identities, repeated computations, and equal constants.

    Equal constants are frequent: importers and passes copy weights that are read several times.
    """
    results: dict[Hashable, Value] = {}
    constants: dict[Hashable, list[Constant]] = {}

    def share_constant(argument: Argument) -> Argument:
        return _find_twin(argument, constants) if isinstance(argument, Constant) else argument

    def replace(node: Node) -> Value:
        shared_node = node.of(map_argument(node.arguments, share_constant))
        key = _node_key(shared_node)
        if key not in results:
            new = _simplify_node(shared_node)
            results[key] = results.setdefault(_node_key(new), new) if isinstance(new, Node) else share_constant(new)
        return results[key]

    return rewrite_graph(graph, replace)


def _find_twin(value: Constant, constants: dict[Hashable, list[Constant]]) -> Constant:
    """Return the first of several equal constants; `constants` holds those seen so far, by type and some elements."""
    array = value.array
    if is_unknown(array):
        return value
    some = array[tuple(slice(None, None, max(1, size // 3)) for size in array.shape)]
    candidates = constants.setdefault((value.type, some.tobytes()), [])
    for constant in candidates:
        if constant is value or _same_bits(constant.array, array):
            return constant
    candidates.append(value)
    return value


def _may_be_nan(value: Argument) -> bool:
    """Return whether elements of a tensor may be NaN."""
    return isinstance(value, Value) and "float" in tensor_type(value).dtype


def _same_bits(first: Array, second: Array) -> bool:
    """Return whether arrays of one type hold the same bits, so that NaNs and signed zeros count as numbers."""
    if first.strides == second.strides:  # compare repeated elements only once
        first, second = drop_repeats(first), drop_repeats(second)
    return first.tobytes() == second.tobytes()


def reshape_value(value: Value, shape: tuple[int, ...]) -> Value:
    """Return a value in another shape with as many elements: itself, a constant, or one reshape."""
    return _simplify_node(apply_operator("reshape", value, Shape(shape)))


def permute_value(value: Value, axes: tuple[int, ...]) -> Value:
    """Return a value with its dimensions in another order."""
    return _simplify_node(apply_operator("permute_dims", value, axes=axes))


def _simplify_node(node: Node) -> Value:
    """Return a node or a simpler value that is equal to it."""
    node = _drop_empty_parts(_normalise_form(node))
    first = node.arguments[0] if node.arguments else None
    if node.op == ITEM and isinstance(first, Node) and first.op == "nn.dropout" and node.attributes["index"] == 0:
        return first.arguments[0]  # type: ignore[no-any-return]
    if node.op == ITEM and isinstance(first, Node) and first.op == "split":
        return _simplify_split(node, first)
    if node.op == "concat" and isinstance(first, tuple) and len(first) == 1:
        return first[0]  # type: ignore[no-any-return]
    if not isinstance(first, Value):
        return fold(node)
    if find_operator(node).is_conversion and first.type == node.type:
        return first
    if node.op == "reshape" and isinstance(first, Node) and first.op == "reshape":
        return reshape_value(first.arguments[0], node.arguments[1])
    if node.op == "matmul" and isinstance(node.arguments[1], Constant):
        return _use_single_weight(node)
    if node.op == "permute_dims":
        axes = node.attributes["axes"]
        moved = [axis for axis in axes if tensor_type(first).shape[axis] > 1]
        if moved == sorted(moved):  # only dimensions of size 1 change their position
            return reshape_value(first, tensor_type(node).shape)
        if isinstance(first, Node) and first.op == "permute_dims":
            return permute_value(first.arguments[0], tuple(first.attributes["axes"][axis] for axis in axes))
    return fold(node)


def source_of(value: Value) -> Value:
    """Return the value that a chain of reshapes starts from, which may be the value itself."""
    while isinstance(value, Node) and value.op == "reshape":
        value = value.arguments[0]
    return value


def _simplify_split(node: Node, split: Node) -> Value:
    """Return one result of a split: folded if it is known, or a slice if other results are empty, which TVM rejects."""
    data, kinds = split.arguments[0], split.type
    assert not isinstance(kinds, TensorType)
    if not isinstance(data, Constant) and all(math.prod(kind.shape) for kind in kinds):
        return node
    axis = split.attributes["axis"] % len(tensor_type(data).shape)
    ends = np.cumsum([kind.shape[axis] for kind in kinds])
    end, size = int(ends[node.attributes["index"]]), tensor_type(node).shape[axis]
    numbers = tuple((Scalar(number, "int64"),) for number in (axis, end - size, end, 1))
    kind = OPERATORS["strided_slice"].kind
    return fold(Node("strided_slice", (data, *numbers), node.type, {"assume_inbound": False}, kind))


def _drop_empty_parts(node: Node) -> Node:
    """Return a concatenation without its empty operands; other nodes are returned unchanged."""
    if node.op != "concat" or not isinstance(node.arguments[0], tuple):
        return node
    parts = tuple(part for part in node.arguments[0] if math.prod(tensor_type(part).shape))
    return node.of((parts,)) if 0 < len(parts) < len(node.arguments[0]) else node


def _use_single_weight(node: Node) -> Value:
    """Return a batched product by equal matrices as a product by one matrix, else the folded node.

    PyTorch repeats the weights of linear layers whose data is not a contiguous batch of rows.
    """
    data, weight = node.arguments
    shape, kind = weight.array.shape, tensor_type(data).shape
    if len(shape) < 3 or kind[:-2] != tensor_type(node).shape[:-2]:
        return fold(node)
    first = weight.array[(0,) * (len(shape) - 2)]
    if not np.array_equal(weight.array, np.broadcast_to(first, shape)):
        return fold(node)
    return node.of((data, Constant(first)))


def _normalise_form(node: Node) -> Node:
    """Return a node in the form that later passes expect: reshapes have one name, constants are the second operand.

    A comparison of a value with itself becomes ``isnan``, because TVM folds ``x != x`` to false.
    """
    operator = find_operator(node)
    if operator.is_reshape and isinstance(node.arguments[0], Value):
        return apply_operator("reshape", node.arguments[0], Shape(tensor_type(node).shape))
    if node.op == "permute_dims":
        rank, axes = len(tensor_type(node).shape), node.attributes.get("axes")
        order = tuple(reversed(range(rank)) if axes is None else (axis % rank for axis in axes))
        return node if order == axes else apply_operator(node.op, *node.arguments, axes=order)
    if node.op in ("equal", "not_equal") and node.arguments[0] is node.arguments[1] and _may_be_nan(node.arguments[0]):
        differs = apply_operator("isnan", node.arguments[0])
        return differs if node.op == "not_equal" else apply_operator("logical_not", differs)
    if operator.commutes and isinstance(node.arguments[0], Constant):
        first, second = node.arguments
        if not isinstance(second, Constant):
            return node.of((second, first))
    return node


def _node_key(node: Node) -> Hashable:
    """Return a key that is the same for equal nodes."""
    return (
        node.op,
        _argument_key(node.arguments),
        node.type,
        tuple((name, str(value)) for name, value in node.attributes.items()),
    )


def _argument_key(argument: Argument) -> Hashable:
    if isinstance(argument, Value):
        return argument
    if isinstance(argument, Shape | Scalar):
        return tuple(argument)
    return tuple(_argument_key(part) for part in argument) if isinstance(argument, tuple) else argument
