"""Batch norms and other factors of channels, folded into the weights in front of them."""

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
    rewritten,
    rewritten_beside,
    tensor_type,
)
from anatune.network.graph.operators import CONVOLUTIONS, applied

__all__ = ["channel_axis", "channel_values", "scalars_last", "without_batch_norms", "without_scales"]

_CHANNELS_FIRST = {"NCW", "NCHW", "NCDHW"}
_OUTPUTS_FIRST = {"OIW", "OIHW", "OIDHW"}
_CANCELLED = 2.0**-14
"""Of the constants of two sums: where less is left of all, the first of them was there to round."""


def channel_axis(node: Node) -> int | None:
    """Return the dimension of the result along which the weights' outputs lie; None: it is no product with weights."""
    if len(node.arguments) < 2 or not isinstance(node.arguments[1], Constant):
        return None
    if node.op in CONVOLUTIONS:
        plain = node.attributes["data_layout"] in _CHANNELS_FIRST and node.attributes["kernel_layout"] in _OUTPUTS_FIRST
        same = node.attributes["out_layout"] in ("", node.attributes["data_layout"])
        return 1 if plain and same else None
    if node.op == "matmul" and len(tensor_type(node.arguments[1]).shape) == 2 and len(tensor_type(node).shape) >= 2:
        return len(tensor_type(node).shape) - 1
    return None


def channel_values(value: Value, shape: tuple[int, ...], axis: int) -> Array | None:
    """Return a constant that is broadcast to `shape` and differs along `axis` alone, (shape[axis],); else None."""
    if not isinstance(value, Constant):
        return None
    own = value.array
    if own.ndim > len(shape):
        return None
    padded = own.reshape((1,) * (len(shape) - own.ndim) + own.shape)
    if any(size != 1 for place, size in enumerate(padded.shape) if place != axis):
        return None
    return np.broadcast_to(padded.reshape(-1), (shape[axis],))


def _along(values: Array, rank: int, axis: int) -> Constant:
    shape = tuple(-1 if place == axis else 1 for place in range(rank))
    return Constant(np.ascontiguousarray(values).reshape(shape))


def without_batch_norms(graph: Graph) -> Graph:
    """Return a graph in which each batch norm of known statistics is a product and a sum along the channels."""

    def replace(node: Node) -> Value:
        norm = node.arguments[0] if node.op == ITEM else None
        if not (isinstance(norm, Node) and norm.op == "nn.batch_norm" and node.attributes["index"] == 0):
            return node
        data, *known = norm.arguments
        if norm.attributes["training"] or not all(isinstance(value, Constant) for value in known):
            return node
        gamma, beta, mean, variance = (value.array.astype(np.float64) for value in known)
        factor = 1.0 / np.sqrt(variance + norm.attributes["epsilon"])
        if norm.attributes["scale"]:
            factor = factor * gamma
        shift = -mean * factor
        if norm.attributes["center"]:
            shift = shift + beta
        kind = tensor_type(data)
        rank, axis = len(kind.shape), norm.attributes["axis"] % len(kind.shape)
        scaled = applied("multiply", data, _along(factor.astype(kind.dtype), rank, axis))
        return applied("add", scaled, _along(shift.astype(kind.dtype), rank, axis))

    return rewritten(graph, replace)


def scalars_last(graph: Graph) -> Graph:
    """Return a graph whose factors of whole tensors stand behind the reshapes, transposes and matrix products they fed.

    There they become part of weights, or of a softmax: attention scales its operands, not its products.
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
        return applied("multiply", node.of(tuple(inner)), Constant(np.asarray(factor, node.type.dtype)))

    return rewritten(graph, replace)


def without_scales(graph: Graph) -> Graph:
    """Return a graph in which factors of channels behind products with weights are part of the weights.

    Sums with constants in between are scaled, too, and neighbouring ones become one: ``(x w + a) s + b`` becomes
    ``x (w s) + (a s + b)``. Products that something else reads stay as they are.
    """
    uses = graph.uses()
    alone: set[Value] = set()

    def replace(own: Node, old: Node) -> Value:
        found: Value | None = None
        if own.op == "multiply":
            found = _scaled(own, alone)
        elif own.op == "add":
            found = _summed(own, alone)
        made = own if found is None else found
        if uses[old] == 1:
            alone.add(made)
        return made

    return rewritten_beside(graph, replace)


def _scaled(node: Node, alone: set[Value]) -> Value | None:
    """Return ``data * factors`` with the factors moved into the weights before it; None: they cannot be."""
    data, factors = node.arguments
    if not (isinstance(data, Node) and data in alone and data.type == node.type):
        return None
    if data.op == "add" and isinstance(data.arguments[1], Constant):
        inner = _scaled(Node("multiply", (data.arguments[0], factors), node.type), alone)
        if inner is None:
            return None
        sums = _round_like(data.arguments[1].array.astype(np.float64) * factors.array, data.arguments[1].array)
        return None if sums is None else applied("add", inner, Constant(sums))
    axis = channel_axis(data)
    if axis is None:
        return None
    values = channel_values(factors, tensor_type(node).shape, axis)
    if values is None:
        return None
    weight = data.arguments[1].array
    along = 0 if data.op in CONVOLUTIONS else weight.ndim - 1
    shape = tuple(-1 if place == along else 1 for place in range(weight.ndim))
    scaled = _round_like(weight.astype(np.float64) * values.reshape(shape), weight)
    if scaled is None:
        return None
    made = data.of((data.arguments[0], Constant(scaled)))
    alone.add(made)
    return made


def _summed(node: Node, alone: set[Value]) -> Value | None:
    """Return ``(data + a) + b`` with one constant; None: there are no two."""
    data, second = node.arguments
    if not (isinstance(data, Node) and data.op == "add" and data in alone and isinstance(second, Constant)):
        return None
    first = data.arguments[1]
    if not isinstance(first, Constant) or first.array.ndim != second.array.ndim or data.type != node.type:
        return None
    if first.array.shape != second.array.shape:
        return None
    exact = first.array.astype(np.float64) + second.array
    if (abs(exact) < _CANCELLED * abs(second.array)).all():  # a sum that rounds what it is added to: (x + c) - c
        return None
    total = _round_like(exact, second.array)
    return None if total is None else applied("add", data.arguments[0], Constant(total))


def _round_like(exact: Array, like: Array) -> Array | None:
    """Return float64 numbers in the dtype of others; None: it has no number near the largest one."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(like.dtype)
        largest = abs(exact[np.isfinite(exact)]).max(initial=0)
        error = abs(float(largest.astype(like.dtype)) - largest)
    return rounded if error <= largest * 2.0**-7 else None
