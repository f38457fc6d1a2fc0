"""Fold batch norms and other factors of channels into the weights before them."""

from __future__ import annotations

import numpy as np

from anatune.network.graph.nodes import (
    ITEM,
    Array,
    Constant,
    Graph,
    Node,
    TensorType,
    Value,
    rewrite_graph,
    rewrite_with_originals,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTIONS, apply_operator

__all__ = ["channel_axis", "channel_values", "fold_batch_norms", "fold_scales", "move_scalars_last"]

_CHANNELS_FIRST = {"NCW", "NCHW", "NCDHW"}
_OUTPUTS_FIRST = {"OIW", "OIHW", "OIDHW"}
_CANCELLED = 2.0**-14
"""The ratio of a combined constant to its parts below which the first addition was a means to round the sum."""


def channel_axis(node: Node) -> int | None:
    """Return the axis of the result that holds the outputs of the weights, or None if the node has no weights."""
    if len(node.arguments) < 2 or not isinstance(node.arguments[1], Constant):
        return None
    if node.op in CONVOLUTIONS:
        is_channels_first = (
            node.attributes["data_layout"] in _CHANNELS_FIRST and node.attributes["kernel_layout"] in _OUTPUTS_FIRST
        )
        is_order_kept = node.attributes["out_layout"] in ("", node.attributes["data_layout"])
        return 1 if is_channels_first and is_order_kept else None
    if node.op == "matmul" and len(tensor_type(node.arguments[1]).shape) == 2 and len(tensor_type(node).shape) >= 2:
        return len(tensor_type(node).shape) - 1
    return None


def channel_values(value: Value, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return a constant that varies only along `axis` of `shape`, as an array (shape[axis],), else None."""
    if not isinstance(value, Constant):
        return None
    array = value.array
    if array.ndim > len(shape):
        return None
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(size != 1 for dimension, size in enumerate(padded.shape) if dimension != axis):
        return None
    return np.broadcast_to(padded.reshape(-1), (shape[axis],))


def _broadcast_along(values: Array, rank: int, axis: int) -> Constant:
    shape = tuple(-1 if dimension == axis else 1 for dimension in range(rank))
    return Constant(np.ascontiguousarray(values).reshape(shape))


def fold_batch_norms(graph: Graph) -> Graph:
    """Return a graph in which each batch norm with known statistics is a multiplication and an addition by channel."""

    def replace(node: Node) -> Value:
        norm = node.arguments[0] if node.op == ITEM else None
        if not (isinstance(norm, Node) and norm.op == "nn.batch_norm" and node.attributes["index"] == 0):
            return node
        data, *parameters = norm.arguments
        if norm.attributes["training"] or not all(isinstance(value, Constant) for value in parameters):
            return node
        gamma, beta, mean, variance = (value.array.astype(np.float64) for value in parameters)
        factor = 1.0 / np.sqrt(variance + norm.attributes["epsilon"])
        if norm.attributes["scale"]:
            factor = factor * gamma
        shift = -mean * factor
        if norm.attributes["center"]:
            shift = shift + beta
        kind = tensor_type(data)
        rank, axis = len(kind.shape), norm.attributes["axis"] % len(kind.shape)
        scaled = apply_operator("multiply", data, _broadcast_along(factor.astype(kind.dtype), rank, axis))
        return apply_operator("add", scaled, _broadcast_along(shift.astype(kind.dtype), rank, axis))

    return rewrite_graph(graph, replace)


def move_scalars_last(graph: Graph) -> Graph:
    """Return a graph in which scalar factors come after the reshapes, transposes and matrix products that read them.

    There they can be folded into weights or into a softmax. Attention, for example, scales its operands.
    """

    def replace(node: Node) -> Value:
        if node.op not in ("reshape", "permute_dims", "broadcast_to", "matmul") or not isinstance(
            node.type, TensorType
        ):
            return node
        factor, inner = 1.0, []
        for argument in node.arguments:
            scalar = argument.arguments[1] if isinstance(argument, Node) and argument.op == "multiply" else None
            if isinstance(scalar, Constant) and scalar.array.size == 1 and argument.arguments[0].type == argument.type:
                factor, argument = factor * float(scalar.array.reshape(())), argument.arguments[0]
            inner.append(argument)
        if all(one is other for one, other in zip(inner, node.arguments, strict=True)):
            return node
        return apply_operator("multiply", node.of(tuple(inner)), Constant(np.asarray(factor, node.type.dtype)))

    return rewrite_graph(graph, replace)


def fold_scales(graph: Graph) -> Graph:
    """Return a graph in which factors of channels after products are folded into the products' weights.

    Additions of constants in between are scaled as well, and neighbouring ones are joined: ``(x w + a) s + b`` becomes
    ``x (w s) + (a s + b)``. Products with other readers do not change.
    """
    uses = graph.uses()
    alone: set[Value] = set()

    def replace(node: Node, old: Node) -> Value:
        folded: Value | None = None
        if node.op == "multiply":
            folded = _scale_weights(node, alone)
        elif node.op == "add":
            folded = _join_sums(node, alone)
        result = node if folded is None else folded
        if uses[old] == 1:
            alone.add(result)
        return result

    return rewrite_with_originals(graph, replace)


def _scale_weights(node: Node, alone: set[Value]) -> Value | None:
    """Return ``data * factors`` with the factors folded into the weights before it, or None if that is impossible."""
    data, factors = node.arguments
    if not (isinstance(data, Node) and data in alone and data.type == node.type):
        return None
    if data.op == "add" and isinstance(data.arguments[1], Constant):
        inner = _scale_weights(Node("multiply", (data.arguments[0], factors), node.type), alone)
        if inner is None:
            return None
        sums = _round_like(data.arguments[1].array.astype(np.float64) * factors.array, data.arguments[1].array)
        return None if sums is None else apply_operator("add", inner, Constant(sums))
    axis = channel_axis(data)
    if axis is None:
        return None
    values = channel_values(factors, tensor_type(node).shape, axis)
    if values is None:
        return None
    weight = data.arguments[1].array
    output_axis = 0 if data.op in CONVOLUTIONS else weight.ndim - 1
    shape = tuple(-1 if dimension == output_axis else 1 for dimension in range(weight.ndim))
    scaled = _round_like(weight.astype(np.float64) * values.reshape(shape), weight)
    if scaled is None:
        return None
    product = data.of((data.arguments[0], Constant(scaled)))
    alone.add(product)
    return product


def _join_sums(node: Node, alone: set[Value]) -> Value | None:
    """Return ``(data + a) + b`` with one constant, or None if there are no two constants."""
    data, second = node.arguments
    if not (isinstance(data, Node) and data.op == "add" and data in alone and isinstance(second, Constant)):
        return None
    first = data.arguments[1]
    if not isinstance(first, Constant) or first.array.ndim != second.array.ndim or data.type != node.type:
        return None
    if first.array.shape != second.array.shape:
        return None
    exact = first.array.astype(np.float64) + second.array
    if (abs(exact) < _CANCELLED * abs(second.array)).all():  # the sum rounds its operand: (x + c) - c
        return None
    total = _round_like(exact, second.array)
    return None if total is None else apply_operator("add", data.arguments[0], Constant(total))


def _round_like(exact: Array, like: Array) -> Array | None:
    """Return float64 numbers in the dtype of `like`, or None if it cannot represent the largest one."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(like.dtype)
        largest = abs(exact[np.isfinite(exact)]).max(initial=0)
        error = abs(float(largest.astype(like.dtype)) - largest)
    return rounded if error <= largest * 2.0**-7 else None
